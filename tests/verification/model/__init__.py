"""The model of a cluster of cores that all that drives cores shares.

`disk` is what `Persist…` actions leave, a restart loads, and peers are sent of it; `invariants` is
what must hold whoever drives.  The drivers: `simulation` (random time and faults), `exploration`
(all interleavings), `cluster` with `scenario` and `strategies` (letters delivered by hand, by seed
or by Hypothesis), `mutation` (directed traces of one core).
Two models stand alone: `prepared_log`, of prepared transactions, and `commit_tables`.
"""
