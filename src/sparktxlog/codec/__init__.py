"""Values to bytes and back: wire messages, payload containers, digests, Arrow schemas."""
