"""What happens to a connection and a body before a handler is called."""
