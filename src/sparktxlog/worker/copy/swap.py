"""Replaces a table by a staged one: by its directory, or by one Delta commit.

    RENAME   the staged directory, log included, becomes the table's; the old one is moved to
             the attic first.  Versions and commit times are then the donor's.
    COMMIT   staged files are linked next to the old ones, and one commit removes the old live files
             and adds the donor's.  The old state stays in the table's history.

Both work only at the version of the old table that was examined (`examining`).  If somebody
committed since, that commit is examined and its rows are exported before the next attempt.

Both may be repeated after a crash at any point: a renamed directory is recognized by its log, a
commit by the copy's id in it.  The commit sets the table's `txn`, so that Delta takes the next
batch and skips what the donor had applied.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING

from sparktxlog.delta.file_paths import live_paths
from sparktxlog.delta.log_files import log_of, newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CopyConflictError
from sparktxlog.files.durability import move_durably, place_durably
from sparktxlog.model.copying import Lease, OfferedTable
from sparktxlog.worker.apply.batches import STEPS
from sparktxlog.worker.apply.deltalog import (
    Action,
    LogTransaction,
    forget_log,
    removal_of,
)
from sparktxlog.worker.apply.settling import settle
from sparktxlog.worker.apply.tables import OwnCommit, read_commit
from sparktxlog.worker.apply.worker_session import tagged
from sparktxlog.worker.copy.layout import Way
from sparktxlog.worker.repair.examining import placed_log
from sparktxlog.worker.repair.table_quarantine import TableQuarantine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Step number of a copy's commit: after all steps of the batch that ended at its position.
COPY_STEP = STEPS - 1
#: Most attempts to swap a table while others write to it.
SWAP_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """A table fetched from a donor: a readable Delta table next to the replica's."""

    offered: OfferedTable
    #: Its directory.
    path: Path
    log: LogState
    way: Way

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.offered.definition.name


def swap_table(
    session: SparkSession,
    lake: Path,
    staged: StagedTable,
    lease: Lease,
    quarantine: TableQuarantine,
    copy_id: str,
    examined: int,
) -> int:
    """Replace a table by a staged one, durably; return its version.

    Args:
        session: The worker's own.
        lease: Position, hash and node that the staged table comes from.
        examined: Newest version of the old table that was examined; -1 = it had no commit.

    Raises:
        CopyConflictError: Somebody else wrote to the table since then (definite); examine that and
            try again.
        PySparkException, Py4JError, OSError: The table keeps its last complete state, or does not
            exist because its directory was moved away and the new one was not put there yet;
            repeat it.
    """
    table = lake / staged.name
    if staged.way is Way.RENAME:
        if staged.path.exists():
            _check_examined(table, newest_commit(table), examined)
            _rename(session, lake, staged, quarantine)
        # Not the newest version: later commits of others must be found as theirs.
        return staged.offered.version
    done = find_copy(table, copy_id, lease)
    if done is not None:
        return done
    with tagged(session, "swap", staged.name):
        _place_files(staged, table)
        version = _commit(session, table, staged, lease, copy_id, examined)
    settle(table, version, version)
    return version


def find_copy(table: Path, copy_id: str, lease: Lease) -> int | None:
    """Return the newest version if a copy's own commit made it, None otherwise."""
    newest = newest_commit(table)
    if newest < 0:
        return None
    own = read_commit(table, newest).own
    wanted = (lease.log_id, copy_id, lease.position, lease.chain_hash)
    if own is not None and (own.log_id, own.copy_id, own.last_position, own.to_hash) == wanted:
        return newest
    return None


def is_renamed(table: Path, offered: OfferedTable) -> bool:
    """Return whether a table's log ends with the last offered commit, of its size and time."""
    placed = placed_log(offered)
    return placed is not None and placed.stands_in(table) and newest_commit(table) == placed.version


def date_commits(staged: Path, offered: OfferedTable) -> None:
    """Give staged commits the donor's times, from which Delta dates them.

    All other files keep the time of the copy: VACUUM judges unreferenced files by their age.
    """
    times = {file.path: file.modified_at * 1000 for file in offered.files}
    for path in log_of(staged).rglob("*"):
        if (at := times.get(path.relative_to(staged).as_posix())) is not None:
            os.utime(path, ns=(at, at))


def _check_examined(table: Path, newest: int, examined: int) -> None:
    if newest != examined:
        raise CopyConflictError(
            f"{table} is at version {newest}, the one that was examined is {examined}",
            hint="Nothing was changed; stop other writers of this table.",
            path=str(table),
        )


# --- by directory -----------------------------------------------------------------------------


def _rename(
    session: SparkSession, lake: Path, staged: StagedTable, quarantine: TableQuarantine
) -> None:
    table = lake / staged.name
    if os.path.lexists(table):
        reason = f"replaced by a copy of version {staged.offered.version} with its own log"
        quarantine.save_files(staged.name, (), reason)
    for path in live_paths(staged.log.adds.values()):
        os.utime(staged.path / path)
    date_commits(staged.path, staged.offered)
    move_durably(staged.path, table)
    for directory in (table, staged.path):
        forget_log(session, directory)


# --- by commit --------------------------------------------------------------------------------


def _place_files(staged: StagedTable, table: Path) -> None:
    """Link the staged live files into the table, durably.

    Another file of the same name is damaged and replaced: names of data files are never reused.
    """
    paths = sorted(live_paths(staged.log.adds.values()))
    places = {table / path: staged.path / path for path in paths}
    for target, source in places.items():
        if not (target.exists() and target.samefile(source)):
            os.utime(source)  # until they are committed, VACUUM judges files by their age
    place_durably(places, table)


def _commit(
    session: SparkSession,
    table: Path,
    staged: StagedTable,
    lease: Lease,
    copy_id: str,
    examined: int,
) -> int:
    offered = staged.offered
    own = OwnCommit(
        log_id=lease.log_id,
        epoch=lease.epoch,
        table=staged.name,
        first=lease.position,
        last_position=lease.position,
        from_hash=lease.chain_hash,
        to_hash=lease.chain_hash,
        step=COPY_STEP,
        last=True,
        signature=offered.signature.to_text(),
        copy_id=copy_id,
        donor=lease.node_id,
    )
    return commit_files(session, table, staged.log, own, examined)


def commit_files(
    session: SparkSession,
    table: Path,
    files: LogState,
    own: OwnCommit,
    examined: int,
    *,
    keep_protocol: bool = False,
) -> int:
    """Replace a table's live files in one commit after the examined version; return its version.

    Args:
        files: The table's new live files and metadata.
        own: Identifies the commit.
        examined: The only version that the commit may follow.
        keep_protocol: The table keeps its protocol: Delta refuses an older one.

    Raises:
        CopyConflictError: Somebody else wrote to the table since then; nothing was committed.
        StorageError: Its log cannot be read; nothing was committed.
    """
    forget_log(session, table)
    transaction = LogTransaction(session, table)
    # Delta itself refuses to commit after later commits of others.
    _check_examined(table, transaction.version, examined)
    old = LogState.read(table, examined)
    if keep_protocol:
        files = replace(files, protocol=old.protocol)
    actions = swap_actions(old, files, own, now_ms=time_ns() // 1_000_000)
    return transaction.commit(actions, own)


def swap_actions(old: LogState, new: LogState, own: OwnCommit, *, now_ms: int) -> list[Action]:
    """Return the actions that replace a table's live files by the new ones; equal files stay.

    Metadata and protocol are replaced if they differ; the table keeps its id.
    """
    before = {_file_key(add): add for add in old.adds.values()}
    after = {_file_key(add): add for add in new.adds.values()}
    actions: list[Action] = [
        {"txn": {"appId": own.app_id, "version": own.txn_version, "lastUpdated": now_ms}}
    ]
    if _versioned(old.protocol) != _versioned(new.protocol):
        actions.append({"protocol": new.protocol})
    kept = {key: old.metadata.get(key) for key in ("id", "name", "createdTime")}
    metadata = {**new.metadata, **{key: value for key, value in kept.items() if value is not None}}
    if {**metadata, **kept} != {**old.metadata, **kept}:
        actions.append({"metaData": metadata})
    for key in sorted(before.keys() - after.keys()):
        actions.append({"remove": removal_of(before[key], now_ms)})
    for key in sorted(after.keys() - before.keys()):
        actions.append({"add": {**after[key], "dataChange": True}})
    return actions


def _file_key(add: Action) -> tuple[str, str]:
    """Return what identifies a logical file: its path and its deletion vector."""
    vector = add.get("deletionVector") or {}
    parts = [str(vector.get(key, "")) for key in ("storageType", "pathOrInlineDv", "offset")]
    return str(add["path"]), "|".join(parts)


def _versioned(protocol: Action) -> tuple[int, int, frozenset[str], frozenset[str]]:
    return (
        int(protocol["minReaderVersion"]),
        int(protocol["minWriterVersion"]),
        frozenset(protocol.get("readerFeatures", ())),
        frozenset(protocol.get("writerFeatures", ())),
    )
