"""The node as the catalog of commit tables."""
