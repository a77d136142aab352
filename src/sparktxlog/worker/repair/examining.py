"""Which versions a table has before it is replaced, and the writers of these versions.

A table is replaced only at the version that was examined, after that version's foreign rows were
exported.  If another writer commits in between, the table is examined again.  All is read from the
table's log, the replica's state and the record of exports, so a process that starts after a kill
gets the same answer.

A table that somebody put in another one's place numbers its versions from 0 again.  So a version is
identified by its number and the time of its commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from sparktxlog.delta.log_files import TablePlace, commit_path, has_commit, newest_commit
from sparktxlog.errors import DivergedError
from sparktxlog.model.copying import OfferedTable
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.worker.apply.tables import TableCommit, check_recorded, is_own, read_commit
from sparktxlog.worker.replica.state import PlacedLog, ReplicaTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCommit:
    """A version that another writer made."""

    version: int
    #: User and engine, if the log has them.
    author: str
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A table's newest version, and the commits of others up to it."""

    #: -1 = there is no commit.
    version: int
    #: Modification time of its commit's file, microseconds since 1970 UTC; 0 = no commit.
    committed_at: int = 0
    #: Version in which the present copy's swap ended; None = this is still the old table.
    swapped: int | None = None
    #: Commits of others after that swap, or else after the version in the replica's state.
    foreign: tuple[ForeignCommit, ...] = ()
    #: Empty, or why this is not the table in the replica's state.
    replaced: str = ""


def examine(
    table: TablePlace,
    known: ReplicaTable | None,
    *,
    log_id: str,
    name: str,
    copy_id: str,
    placed: PlacedLog | None,
) -> Examined:
    """Examine a table up to its newest version.

    Args:
        known: The table in the replica's state.
        copy_id: Of the present copy.
        placed: Log that this copy was about to put in the table's place, None = none.

    Raises:
        ApplyError: A commit is damaged (definite).
    """
    newest = newest_commit(table)
    if newest < 0:
        return Examined(version=-1)
    recorded = known.version if known else -1
    swapped, foreign = None, list[ForeignCommit]()
    if placed is not None and placed.stands_in(table):
        swapped = recorded = placed.version
    for version in _versions(table, recorded + 1, newest):
        commit = read_commit(table, version)
        if not is_own(commit.own, log_id, name):
            if commit.changes:
                foreign.append(_foreign(commit))
        elif commit.own.copy_id == copy_id:
            # A swap is made on an examined version: all older commits were handled.
            swapped, foreign = version, []
    return Examined(
        version=newest,
        committed_at=committed_at(table, newest),
        swapped=swapped,
        foreign=tuple(foreign),
        replaced="" if swapped is not None else _replaced(table, recorded, newest, log_id, name),
    )


def committed_at(table: TablePlace, version: int) -> int:
    """Return the time of a commit's file, microseconds since 1970 UTC; 0 = none."""
    if isinstance(table, Path):
        try:
            return commit_path(table, version).stat().st_mtime_ns // 1000
        except FileNotFoundError:
            return 0
    found = table.find(commit_file_name(version))
    return 0 if found is None else int(found.changed_s * 1_000_000)


def placed_log(offered: OfferedTable, staged: Path | None = None) -> PlacedLog | None:
    """Return what identifies an offered log; None = its last commit is not offered.

    Args:
        staged: Directory with that commit; None = it is not here.
    """
    path = commit_file_name(offered.version)
    for file in offered.files:
        if file.path == path:
            return PlacedLog(
                version=offered.version,
                size_bytes=file.size_bytes,
                modified_at=file.modified_at,
                digest=_digest_of(staged, path),
            )
    return None


def _digest_of(staged: Path | None, path: str) -> str:
    """Return the SHA-256 of a staged file, hexadecimal; empty = it is not here any more."""
    try:
        return "" if staged is None else sha256((staged / path).read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def foreign_commits(
    table: TablePlace, recorded: int, log_id: str, name: str
) -> tuple[ForeignCommit, ...]:
    """Return the commits after a version that this log's worker did not make."""
    commits = (
        read_commit(table, version)
        for version in _versions(table, recorded + 1, newest_commit(table))
    )
    return tuple(
        _foreign(commit)
        for commit in commits
        if commit.changes and not is_own(commit.own, log_id, name)
    )


def _versions(table: TablePlace, first: int, last: int) -> list[int]:
    """Return the versions whose commits exist: Delta's own cleanup removes old ones."""
    return [v for v in range(first, last + 1) if has_commit(table, v)]


def _foreign(commit: TableCommit) -> ForeignCommit:
    return ForeignCommit(version=commit.version, author=commit.author, operation=commit.operation)


def _replaced(table: TablePlace, recorded: int, newest: int, log_id: str, name: str) -> str:
    if newest < recorded:
        return f"table {name!r}: version {recorded} is gone, its newest one is {newest}"
    try:
        check_recorded(table, recorded, log_id, name)
    except DivergedError as error:
        return error.message
    return ""
