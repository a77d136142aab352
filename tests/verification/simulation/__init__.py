"""Deterministic simulation of a cluster: real cores, simulated disks, network and clocks.

One seed is one history: everything by chance is drawn from one generator, so a seed that fails
fails again.  `world` holds the parts together, `clients` commit, `faults` breaks things, `checks`
and `outcomes` assert the invariants of the protocol at every step, `marks` counts that rare
branches were really taken, `trace` tells one history from another.
"""
