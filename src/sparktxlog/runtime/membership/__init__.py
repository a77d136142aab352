"""Who belongs to the cluster: founding, joining, epochs, addresses, standings."""
