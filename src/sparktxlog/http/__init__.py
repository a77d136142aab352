"""Calls to a node from outside the cluster: `link` (connections, errors), `tokens`."""
