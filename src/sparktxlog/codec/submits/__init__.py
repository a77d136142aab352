"""Transactions as clients submit them: their form, checks against the catalog, their content."""
