"""Delta commits and the catalog's API for them, as values."""
