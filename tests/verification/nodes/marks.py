"""Marks: rare branches that the simulation of whole nodes must have taken at least once."""

from __future__ import annotations

#: Marks that a run of enough seeds must show.
EXPECTED = (
    "kill", "kill before a write", "kill between write and completion",
    "kill inside a transaction", "power loss", "clean stop", "rolling restart", "disk lost",
    "disk full", "disk full while a batch waits", "slow disk", "pause", "partition", "one-way cut",
    "bad weather", "clock far off", "fsync of files fails",
    "copy runs beside its node", "copy refused beside its node",
    "commit failed", "stopped by a failed write", "start on a failing disk",
    "power loss after a failed commit", "power loss while a commit was written",
    "doubtful commit found at a start", "container in a file", "quorum changed",
    "request lost after it was taken", "request repeated",
    "request taken though its sender gave up", "post overtaken by a newer one",
    "refused as replayed", "refused as stale",
    "member evicted", "member admitted", "returned after a loss", "summary of a queue taken",
    "follower promoted", "places changed", "change of places refused",
    "change of places unknown",
    "staged file fetched", "staged file harmed", "run withdrawn",
    "run fetched", "tail sent", "payloads forgotten", "published",
    "acknowledged at accepted", "acknowledged at acquired", "acknowledged at ordered",
    "committed elsewhere after its node was lost", "duplicate rejected", "outcome unknown",
    "condition held", "conflict told",
    "prepared: committed", "prepared: rolled-back", "prepared: expired-transaction",
    "commit table: create", "commit table: commit", "commit table: dropped",
    "commit table: told 200", "commit table: told 409", "commit table: name-taken",
    "commit table: its node was lost", "commit table: outcome unknown",
    "commit table: several told 200", "commit table: several told 409",
    "commit table: versions are missing", "commit table: copied from another site",
)  # fmt: skip
