"""Credentials of providers: what signs with them, and what gives some away."""
