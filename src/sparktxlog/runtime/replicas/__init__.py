"""The replicas of all sites: reports, recounts, plans, catch-ups."""
