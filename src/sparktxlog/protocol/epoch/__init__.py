"""How one epoch follows another: suspicion, ballots, joining, changes by an operator."""
