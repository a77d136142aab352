"""The worker's loop, and the replica that it changes.

applier         the loop: reports to the node, and obeys its answers
replica_driver  decides what comes next: a batch, a missing range or a copy; retries, following
local_replica   applies one batch to all tables, exactly once
state           the replica's durable state and lock
driver_lock     the same lock, held by Spark's JVM
source          where segments come from and reports go to
reports         reports and heartbeats
replays         records of catch-ups by replay
"""
