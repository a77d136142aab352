"""Tables of both kinds: definitions, changes, versions, checks."""
