"""What tokens of clients share, and the token of the worker."""
