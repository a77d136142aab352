"""The worker's loop, and the replica that it brings forward.

applier         the loop: reports, and what the node answers to them
replica_driver  which comes next: a batch, a missing range or a copy; retries, following
local_replica   one batch brought to all tables, once
state           the replica's durable state and lock
driver_lock     the same lock, held by Spark's JVM
source          where segments come from and reports go to
reports         reports and heartbeats
replays         records of catch-ups by replay
maintenance     OPTIMIZE, VACUUM
"""
