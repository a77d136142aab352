"""Existing Delta tables as row tables of the log: adopted, followed, released."""
