"""HTTP client of a node, for clients, jobs and commands: `link` (connections, errors), `tokens`."""
