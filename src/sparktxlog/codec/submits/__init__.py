"""Transactions as clients submit them: their form, checks against the tables, their content."""
