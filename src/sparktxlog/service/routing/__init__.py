"""Routes as they are declared, and what is derived from that."""
