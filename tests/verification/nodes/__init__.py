"""Deterministic simulation of whole nodes: all that runs in a node, but time, chance and wires.

Each simulated node is what `runtime.node` builds: core, cycle, executor, the journal in SQLite,
payload store, publisher with its Delta tables, links with their signatures, and the application
that serves its peers.  All nodes live on one event loop of one process.  Replaced are

- time and chance (`virtual`): the loop's clock jumps to the next timer; each node has a wall clock
  of its own, off and drifting; random bytes come from the seed;
- threads (`lockstep`): what a node runs in a pool runs on the loop, after a drawn delay; its
  publisher's thread runs only while the loop stands still;
- the wire (`network`): requests of links go to the other node's application in this process,
  with delays, cuts, resets and repetitions, after the rules of TCP;
- a kill (`disk`): what a node left on its disk is copied, as a kill or a power loss leaves it.

One seed is one history: everything by chance is drawn from it.  `faults` breaks things, `clones`
starts copies of nodes beside them, `checks` asserts the invariants, `marks` counts that rare
branches were really taken.
"""
