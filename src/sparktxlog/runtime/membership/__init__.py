"""Membership of the cluster: founding, joining, epochs, addresses, standings."""
