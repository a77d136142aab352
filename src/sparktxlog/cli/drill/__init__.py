"""Rehearses on a scratch copy of a cluster what users fear, and measures what would be lost."""
