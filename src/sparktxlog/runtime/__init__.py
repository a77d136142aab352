"""The node: time, tasks and threads around the protocol core."""
