"""Mutation of the protocol core: each rule is broken once, and something must find out.

`table` lists the mutations rule by rule, `ordinary`, `deciding` and `entering` say how each is put
in, `killers` runs what may find them (random schedules, the simulation, directed traces), and
`python -m tests.verification.mutation` (`make mutants`) runs all and writes docs/mutants.md.
"""
