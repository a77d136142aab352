"""HTTP client of a node, for clients, jobs and commands.

`link`: connections and errors.  `authorities`, `tokens`: what both sides prove.
"""
