"""Commits: accepts transactions, runs the core, writes what it persists, answers with receipts."""
