"""Rows of others are kept in quarantine; a repaired table holds what the log says.

examining         whose versions stand in a table before it is replaced
table_quarantine  rows that a copy or a repair would make disappear
repairing         one table restored from this site's own files and the log
"""
