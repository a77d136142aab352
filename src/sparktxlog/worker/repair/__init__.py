"""Rows of other writers are kept in quarantine; a repaired table holds what the log says.

examining         which versions a table has before it is replaced, and who wrote them
table_quarantine  rows that a copy or a repair would make disappear
repairing         one table restored from this site's own files and the log
"""
