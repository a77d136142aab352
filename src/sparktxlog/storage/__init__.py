"""Durable state of a node: the journal (SQLite), the log tables (Delta), the payload store."""
