"""The worker's loop and the replica in its hands.

applier      the loop: reports, and what the node answers to them
following    a worker that goes on for ever comes back from failures
recovery     carries out the machine's orders: batches, ranges, copies
replica      one batch brought to all tables, once
state        the replica's durable state and lock
driver_lock  the same lock, held by Spark's JVM
source       where segments come from and reports go to
reports      reports and heartbeats
replays      records of catch-ups by replay
maintenance  OPTIMIZE, VACUUM
"""
