"""Durable state of a node: the front (SQLite), the queue tables (Delta), the payload store."""
