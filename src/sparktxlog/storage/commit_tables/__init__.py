"""Directories of commit tables at this site."""
