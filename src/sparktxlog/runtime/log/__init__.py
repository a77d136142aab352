"""The published log: writing it, shortening it, the history of its epochs."""
