"""Mutation of the protocol core: each rule is broken once, and something must find out.

`mutants/*.txt` lists the mutations rule by rule as text patches, `isolation` runs a patched core in
a process of its own, `killers` is what may find it there (random schedules, simulation, directed
traces), and `python -m tests.verification.mutation` (`make mutants`) runs all and writes
docs/verification/mutants.md.
"""
