"""What of a log stands beside a front that is new: the front of before was lost.

A node without its front would begin at position 1 again, and give positions anew that clients were
told before.  So a node alone does not start.  One with peers starts, takes nothing, and only joins
a log that a peer has: it founds none, not even with others that lost theirs (P21).
"""

from __future__ import annotations

import os
from pathlib import Path

from sparktxlog.config import NodeConfig
from sparktxlog.errors import FrontLostError
from sparktxlog.runtime.donors.donor import read_replica_state
from sparktxlog.storage.journal.journal import JOURNAL_NAME
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME
from sparktxlog.storage.payloads.local_store import INCOMING


def find_remains(config: NodeConfig) -> list[str]:
    """Return what stands there of a log, as parts of a sentence; cheap, however large it is."""
    found = []
    table = config.data_dir / "log" / QUEUE_NAME
    if any(table.glob("*.parquet")):
        found.append(f"rows in {table}")
    if _has_file(config.payload_dir):
        found.append(f"files in {config.payload_dir}")
    replica = read_replica_state(config.lake_dir)
    if replica is not None and replica.position:
        found.append(f"a replica at position {replica.position:,} in {config.lake_dir}")
    return found


def _has_file(root: Path) -> bool:
    for directory, below, names in os.walk(root):
        if names:
            return True
        if Path(directory) == root and INCOMING in below:
            below.remove(INCOMING)
    return False


def front_lost(config: NodeConfig, found: list[str]) -> FrontLostError:
    """Return the error of a node that has no front, but what belonged to one."""
    front = config.data_dir / JOURNAL_NAME
    if config.peers:
        advice = (
            "Start the others, of which one has the log: this node joins it by itself.  If no node "
            "has it any more, put back the front, with its -wal file, or move data-dir, lake-dir "
            "and payload-dir away at all nodes to begin a new log."
        )
    else:
        advice = (
            "Put it back, with its -wal file.  If it is gone, move data-dir, lake-dir and "
            "payload-dir away: a new log begins, and what is in them stays readable as Delta "
            "tables."
        )
    return FrontLostError(
        f"{front} is new, but there are {' and '.join(found)}: the front was lost, and "
        "acknowledged transactions would be forgotten",
        hint=advice,
        path=str(front),
    )
