"""Replaces a table by a staged one: by its directory, or by one Delta commit.

    RENAME   the staged directory, log included, becomes the table's; the old one is moved to
             the attic first.  Versions and, on a disk, commit times are then the donor's.
    COMMIT   staged files are put next to the old ones, and one commit removes the old live files
             and adds the donor's.  The old state stays in the table's history.

On a disk files are linked and directories renamed; in a bucket they are sent (`Lake`).

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
from sparktxlog.delta.log_files import TablePlace, log_of, newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import CopyConflictError
from sparktxlog.model.copying import Lease, OfferedTable
from sparktxlog.worker.apply.batches import STEPS
from sparktxlog.worker.apply.deltalog import Action, forget_log, removal_of
from sparktxlog.worker.apply.merging import log_transaction
from sparktxlog.worker.apply.tables import OwnCommit, read_commit
from sparktxlog.worker.apply.worker_session import tagged
from sparktxlog.worker.copy.layout import Way
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.repair.examining import placed_log
from sparktxlog.worker.repair.table_quarantine import TableQuarantine
from sparktxlog.worker.replica.state import PlacedLog

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
    lake: Lake,
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
    table = lake.table(staged.name)
    if staged.way is Way.RENAME:
        if staged.path.exists():
            _rename(session, lake, staged, quarantine, copy_id, examined)
        # Not the newest version: later commits of others must be found as theirs.
        return staged.offered.version
    done = find_copy(table, copy_id, lease)
    if done is not None:
        return done
    with tagged(session, "swap", staged.name):
        lake.add_files(staged.name, _live_of(staged))
        version = _commit(session, lake, staged, lease, copy_id, examined)
    lake.settle(staged.name, version, version)
    return version


def find_copy(table: TablePlace, copy_id: str, lease: Lease) -> int | None:
    """Return the newest version if a copy's own commit made it, None otherwise."""
    newest = newest_commit(table)
    if newest < 0:
        return None
    own = read_commit(table, newest).own
    wanted = (lease.log_id, copy_id, lease.position, lease.chain_hash)
    if own is not None and (own.log_id, own.copy_id, own.last_position, own.to_hash) == wanted:
        return newest
    return None


def is_renamed(table: TablePlace, offered: OfferedTable, noted: PlacedLog | None) -> bool:
    """Return whether a table's log ends with the last offered commit.

    Args:
        noted: What the copy was about to put there; in a bucket its bytes say whether it is there.
    """
    placed = placed_log(offered)
    if placed is None:
        return False
    if not isinstance(table, Path):
        if noted is None or replace(noted, digest="") != placed:
            return False
        placed = noted
    return placed.stands_in(table) and newest_commit(table) == placed.version


def date_commits(staged: Path, offered: OfferedTable) -> None:
    """Give staged commits the donor's times, from which Delta dates them.

    All other files keep the time of the copy: VACUUM judges unreferenced files by their age.
    """
    times = {file.path: file.modified_at * 1000 for file in offered.files}
    for path in log_of(staged).rglob("*"):
        if (at := times.get(path.relative_to(staged).as_posix())) is not None:
            os.utime(path, ns=(at, at))


def _check_examined(url: str, newest: int, examined: int) -> None:
    if newest != examined:
        raise CopyConflictError(
            f"{url} is at version {newest}, the one that was examined is {examined}",
            hint="Nothing was changed; stop other writers of this table.",
            path=url,
        )


# --- by directory -----------------------------------------------------------------------------


def _rename(
    session: SparkSession,
    lake: Lake,
    staged: StagedTable,
    quarantine: TableQuarantine,
    copy_id: str,
    examined: int,
) -> None:
    name = staged.name
    if not lake.is_begun(name, copy_id):
        _check_examined(lake.url_of(name), newest_commit(lake.table(name)), examined)
        if lake.has(name):
            reason = f"replaced by a copy of version {staged.offered.version} with its own log"
            quarantine.save_files(name, (), reason)
    for path in live_paths(staged.log.adds.values()):
        os.utime(staged.path / path)
    date_commits(staged.path, staged.offered)
    lake.take_over(name, staged.path, copy_id)
    for place in (lake.url_of(name), staged.path):
        forget_log(session, place)


# --- by commit --------------------------------------------------------------------------------


def _live_of(staged: StagedTable) -> dict[str, Path]:
    """Return the staged live files: path below the table → file."""
    return {path: staged.path / path for path in sorted(live_paths(staged.log.adds.values()))}


def _commit(
    session: SparkSession,
    lake: Lake,
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
    return commit_files(session, lake, staged.name, staged.log, own, examined)


def commit_files(
    session: SparkSession,
    lake: Lake,
    name: str,
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
    url = lake.url_of(name)
    forget_log(session, url)
    transaction = log_transaction(session, lake, name)
    # Delta itself refuses to commit after later commits of others; in a bucket the request does.
    _check_examined(url, transaction.version, examined)
    old = LogState.read(lake.table(name), examined)
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
