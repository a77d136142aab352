"""From an accepted transaction to its place in the order: the core's task, writes, receipts."""
