"""Runs as bytes: the payload container, its sections, and the checks of what clients assembled."""
