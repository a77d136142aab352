"""A node leaves its history for another one, and keeps what only it has."""
