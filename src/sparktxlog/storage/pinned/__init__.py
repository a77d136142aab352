"""The donor side of a copy: pinned files and their chunks."""
