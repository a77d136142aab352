"""Signed HTTP between peers: links, greetings, outgoing messages."""
