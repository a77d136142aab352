"""What a session or a client writes: operations, transactions, batches, merges, retries."""
