"""What was at a node: waits of the order, and figures of the last day; for people who look."""
