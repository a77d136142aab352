"""Finds what is left of a log next to a new journal: the former journal was lost.

A node without its journal would begin at position 1 again, and give other transactions positions
that clients know already.  So a node without peers does not start.  One with peers starts, takes
nothing, and only joins a log that a peer has.  It founds none, not even with others that lost
theirs (P21).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from sparktxlog.config import NodeConfig
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.errors import (
    CorruptLogError,
    JournalLostError,
    ObjectMissingError,
    StorageError,
)
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.pins import OWN_DIRECTORY
from sparktxlog.files.stores.opening import store_at
from sparktxlog.runtime.commit_tables.site_places import settings_of_stores
from sparktxlog.storage.journal.journal import JOURNAL_NAME
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME
from sparktxlog.storage.payload_log import PAYLOAD_LOG

_log = structlog.get_logger("sparktxlog.storage")

#: A start does not wait longer for each bucket.
_PATIENCE_S = 5.0


class OwnState(msgspec.Struct):
    """The part of the worker's `state.json` that identifies the lake of a report."""

    worker_id: str
    position: int = 0


def find_remains(config: NodeConfig) -> list[str]:
    """Return what is left of a log, as parts of a sentence; cheap, however large it is."""
    found = []
    table = config.data_dir / "log" / QUEUE_NAME
    if any(table.glob("*.parquet")):
        found.append(f"rows in {table}")
    payload_log = config.data_dir / PAYLOAD_LOG
    if any(payload_log.glob("*")):
        found.append(f"runs in {payload_log}")
    if _has_file(config.payload_dir):
        found.append(f"files in {config.payload_dir}")
    replica = read_replica_state(config.lake_dir)
    if replica is not None and replica.position:
        found.append(f"a replica at position {replica.position:,} in {config.lake_dir}")
    return found


def find_remains_in_buckets(config: NodeConfig) -> list[str]:
    """Return the same of what a site has in buckets; blocks, asks each one or two things.

    One that does not answer is left out, and the log of the process says so.
    """
    settings = replace(settings_of_stores(config), patience_s=_PATIENCE_S, answer_s=_PATIENCE_S)
    found = []
    for key, url in (("payload-url", config.payload_url), ("lake-url", config.lake_url)):
        if url is None:
            continue
        try:
            store = store_at(url, settings, field=key)
            if key == "payload-url":
                staged = (one for one in store.list() if _is_staged(one.key))
                if next(staged, None) is not None:
                    found.append(f"files in {url}")
            else:
                replica = read_replica_state(store)
                if replica is not None and replica.position:
                    found.append(f"a replica at position {replica.position:,} in {url}")
        except StorageError as error:
            if isinstance(error, CorruptLogError):
                raise
            _log.warning("a new journal begins, and its bucket is not seen", reason=str(error))
    return found


def _is_staged(key: str) -> bool:
    top, _, below = key.partition("/")
    return bool(below) and top != INCOMING


def _has_file(root: Path) -> bool:
    for directory, below, names in os.walk(root):
        if names:
            return True
        if Path(directory) == root and INCOMING in below:
            below.remove(INCOMING)
    return False


def journal_lost(config: NodeConfig, found: list[str]) -> JournalLostError:
    """Return the error of a node without a journal next to the rest of a log."""
    journal = config.data_dir / JOURNAL_NAME
    prefixes = ""
    if config.payload_url or config.lake_url:
        prefixes = "  What lies in a bucket stays there: name other prefixes for the new log."
    if config.peers:
        advice = (
            "Start a node that has the log: then this node joins it.  If the nodes that have it "
            "are too few for a majority, `sparktxlog peer force` at one of them goes on without "
            "the others, and admits this one.  If no node has it any more, "
            f"put back the journal with its -wal file and {PAYLOAD_LOG}, or move data-dir, "
            "lake-dir and payload-dir away at all nodes to begin a new log."
        )
    else:
        advice = (
            f"Put it back with its -wal file and {PAYLOAD_LOG}.  If it is lost, move data-dir, "
            "lake-dir and payload-dir away: a new log begins, and what is in them stays readable "
            "as Delta tables."
        )
    return JournalLostError(
        f"{journal} is new, but there are {' and '.join(found)}: the journal was lost, and "
        "acknowledged transactions would be forgotten",
        hint=advice + prefixes,
        path=str(journal),
    )


def read_replica_state(lake: TablePlace) -> OwnState | None:
    """Return the state of the replica in a lake, None if there is none.

    Raises:
        CorruptLogError: Its state cannot be read.
        StorageError: As `Store`, in a bucket.
    """
    key = f"{OWN_DIRECTORY}/state.json"
    path = f"{lake}/{key}" if isinstance(lake, Path) else lake.url_of(key)
    try:
        content = Path(path).read_bytes() if isinstance(lake, Path) else lake.read(key)
        return msgspec.json.decode(content, type=OwnState)
    except (FileNotFoundError, ObjectMissingError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise CorruptLogError(
            f"the replica's state {path} cannot be read: {error}", path=str(path)
        ) from error
