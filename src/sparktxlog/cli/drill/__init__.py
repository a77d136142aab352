"""Asks a running cluster what the loss of each site would mean, and rehearses a restore."""
