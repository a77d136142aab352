"""Repairs a table that another writer changed; that writer's rows are kept in the attic.

examining         which versions a table has before it is replaced, and their writers
table_quarantine  keeps rows that a copy or a repair would remove
repairing         restores one table from this site's own files and the log
"""
