"""Switches a site: a follower goes in, the old site goes out, and nothing is lost."""
