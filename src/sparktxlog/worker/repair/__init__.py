"""Rows of others, kept in quarantine; a table given back what the log says.

examining   whose versions stand in a table before it is replaced
quarantine  what a copy or a repair would make disappear
repairing   one table brought back from this site's own files and the log
"""
