"""Commit tables and plain Delta tables: one becomes the other.

plain_reading   a Delta table, read by Spark
table_adoption  a Delta table becomes a commit table
table_release   a commit table becomes a Delta table
"""
