"""Commit tables: statements of a transaction, which Spark runs on plain twins of them."""
