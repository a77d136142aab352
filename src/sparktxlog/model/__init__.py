"""Frozen values that every room shares: ids, tables, operations, signatures, reports.

No clock, no Spark, no I/O.  Names are the terms of docs/glossary.md.
"""
