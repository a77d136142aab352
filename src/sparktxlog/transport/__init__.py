"""Signed HTTP between peers: links, greetings, what waits to be sent; see ARCHITECTURE.md."""
