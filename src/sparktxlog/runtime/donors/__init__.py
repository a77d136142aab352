"""Copies of a replica: leases, chunks, and which donors a site asks."""
