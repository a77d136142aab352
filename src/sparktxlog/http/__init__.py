"""How everybody who is no node calls a node: `link` (connections, errors), `tokens`."""
