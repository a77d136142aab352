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

from sparktxlog.config import NodeConfig
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.errors import (
    CorruptLogError,
    JournalLostError,
    ObjectMissingError,
    StorageError,
    StoreNotReadyError,
)
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.pins import OWN_DIRECTORY
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store import Store
from sparktxlog.model.tables.commit_table import UUID_NAME
from sparktxlog.runtime.commit_tables.site_places import owner_in_buckets, settings_of_stores
from sparktxlog.storage.journal.journal import JOURNAL_NAME
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME
from sparktxlog.storage.payload_log import PAYLOAD_LOG
from sparktxlog.storage.site_bucket import owner_of

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
    # A new log would know none of them, and upkeep would remove them all a week later.
    if any(UUID_NAME.fullmatch(one.name) for one in config.commit_table_dir.glob("*")):
        found.append(f"commit tables in {config.commit_table_dir}")
    return found


def find_remains_in_buckets(config: NodeConfig) -> tuple[list[str], StorageError | None]:
    """Return the same of what a site has in buckets; blocks, asks each one or two things.

    Returns:
        What is left, and why one of the buckets cannot be asked, None = all were.
    """
    settings = replace(settings_of_stores(config), patience_s=_PATIENCE_S, answer_s=_PATIENCE_S)
    found, away = list[str](), None
    for key, url in (
        ("payload-url", config.payload_url),
        ("lake-url", config.lake_url),
        ("commit-table-url", config.commit_table_url),
    ):
        if url is None:
            continue
        try:
            found += _remains_in_bucket(config, store_at(url, settings, field=key), key)
        except StorageError as error:
            if isinstance(error, CorruptLogError):
                raise
            away = error
    return found, away


def _remains_in_bucket(config: NodeConfig, store: Store, key: str) -> list[str]:
    if key == "lake-url":
        replica = read_replica_state(store)
        at = 0 if replica is None else replica.position
        return [f"a replica at position {at:,} in {store.url}"] if at else []
    if owner_of(store) not in ("", owner_in_buckets(config)):
        return []  # of another site: the start refuses the setting
    is_left, what = (
        (_is_staged, "files") if key == "payload-url" else (_is_of_table, "commit tables")
    )
    left = (one for one in store.list() if is_left(one.key))
    return [f"{what} in {store.url}"] if next(left, None) is not None else []


def _is_of_table(key: str) -> bool:
    top, _, below = key.partition("/")
    return bool(below) and UUID_NAME.fullmatch(top) is not None


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
    if config.payload_url or config.lake_url or config.commit_table_url:
        prefixes = "  What lies in a bucket stays there: name other prefixes for the new log."
    if config.peers:
        advice = (
            "Start a node that has the log: then this node joins it.  If the nodes that have it "
            "are too few for a majority, `sparktxlog peer force` at one of them goes on without "
            "the others, and admits this one.  If no node has it any more, "
            f"put back the journal with its -wal file and {PAYLOAD_LOG}, or move data-dir, "
            "lake-dir and payload-dir away at all nodes, and commit-table-dir, to begin a new log."
        )
    else:
        advice = (
            f"Put it back with its -wal file and {PAYLOAD_LOG}.  If it is lost, move data-dir, "
            "lake-dir and payload-dir away, and commit-table-dir: a new log begins, and what is in "
            "them stays readable as Delta tables."
        )
    return JournalLostError(
        f"{journal} is new, but there are {' and '.join(found)}: the journal was lost, and "
        "acknowledged transactions would be forgotten",
        hint=advice + prefixes,
        path=str(journal),
    )


def buckets_unseen(config: NodeConfig, away: StorageError) -> StoreNotReadyError:
    """Return the error of a node with a new journal that cannot see whether it lost another one.

    Args:
        away: Why a bucket cannot be asked.
    """
    return StoreNotReadyError(
        f"{config.data_dir / JOURNAL_NAME} is new, and a bucket cannot be asked whether it has the "
        f"rest of a log, whose acknowledged transactions would be forgotten: {away.message}",
        hint="Start the node again once the bucket answers; it is asked at the first start only.  "
        "If the node had a log, put its journal back before that.",
        **away.fields,
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
