"""How rows get to a node's payload store: written by executors, uploaded, or inline."""
