"""What no reader of a commit table needs any more at this site, and its removal.

    <table>/…                                  files that no version within the retention needs:
                                               removed rows, commits that lost, failed statements
    where writers of a table stage commits     staged commits whose version was decided
    <root>/<UUID>                              directories that no table of the log has: it was
                                               dropped, or its creation failed
    <root>/.transactions/…                     plain twins of jobs that were killed
    <root>/.incoming/…                         parts of files whose transfer nobody continues

Sites vacuum on their own: none of it is a commit, and old versions may go at one site and stay
at another.  A file is old if its bytes are, and if its name is an hour old: a site gives old files
their names when it places what was ordered late.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sparktxlog.delta.checkpoints import newest_checkpoint
from sparktxlog.delta.commit_contents import files_of_removed, read_commit_file
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import STAGED_COMMITS
from sparktxlog.errors import StagedCommitError
from sparktxlog.files.durability import read_whole, storing, sync_directory
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.model.tables.commit_table import UUID_NAME, commit_file_name
from sparktxlog.storage.commit_tables.table_places import KEPT_COMMITS, TRANSACTION_TWINS

#: Age of a name from which on nobody is about to use it, ms.
NAME_AGE_MS = 3_600_000
#: Age of a staged commit whose version was decided, ms: its writer asks no more.
STAGED_AGE_MS = 86_400_000
#: How long a directory must be seen without a table before it goes, ms; and how long nobody must
#: have written to what a job or a transfer left.
UNUSED_AGE_MS = 7 * 86_400_000
#: Property of a table → its value if it has none.
RETENTION, _RETENTION = "delta.deletedFileRetentionDuration", "interval 1 week"
_UNITS = {"week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
_PART = re.compile(rf"(\d+)\s+({'|'.join(_UNITS)})s?")
STAGED_NAME = re.compile(r"([0-9]{20})\.[0-9a-f-]{36}\.json")
#: Where Delta keeps the changes of rows.
_CDF = "_change_data"
#: Where a file says since when a directory has no table, below the root.
_UNUSED = ".unused"


@dataclass(slots=True)
class OldFiles:
    """Files that are not needed."""

    paths: list[Path] = field(default_factory=list)
    size_bytes: int = 0
    #: Names of theirs elsewhere, which go first.
    second_names: list[Path] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.paths)

    def add(self, path: Path, size: int) -> None:
        """Take one more."""
        self.paths.append(path)
        self.size_bytes += size

    def remove(self) -> None:
        """Remove them; one that is gone already counts as removed.

        Raises:
            StorageError: Some may be left; try again.
        """
        for path in (*self.second_names, *self.paths):
            with storing(path):
                path.unlink(missing_ok=True)


def retention_ms(properties: Mapping[str, str]) -> int | None:
    """Return how long a table keeps files that were removed, None = its property says no time."""
    text = properties.get(RETENTION, _RETENTION).strip().lower().removeprefix("interval").strip()
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    return 1_000 * sum(int(number) * _UNITS[unit] for number, unit in parts)


def unneeded_files(table: Path, version: int, *, now_ms: int, keep_ms: int) -> OldFiles:
    """Return the files of a table that no version needs which was the newest one lately.

    Args:
        version: The newest version; all are placed.
        now_ms: Milliseconds since 1970 UTC.
        keep_ms: The table's retention.

    Raises:
        CorruptLogError: The log lacks a version.
        StagedCommitError: A version cannot be read (definite).
    """
    cutoff = now_ms - keep_ms
    needed = needed_since(table, version, cutoff)
    found = OldFiles()
    for path in _files(table):
        relative = path.relative_to(table)
        if relative.name.startswith(".") and relative.name.endswith(".crc"):
            relative = relative.with_name(relative.name[1:-4])  # a checksum goes with its file
        if relative.as_posix() not in needed:
            _take_old(found, path, cutoff, now_ms - NAME_AGE_MS)
    return found


def decided_commits(table: Path, version: int, *, now_ms: int) -> OldFiles:
    """Return the staged commits of versions that are decided, the winner's and the losers'."""
    found, before = OldFiles(), now_ms - STAGED_AGE_MS
    for path in sorted((table / STAGED_COMMITS).glob("*")):
        name = path.name.removeprefix(".").removesuffix(".crc")
        match = STAGED_NAME.fullmatch(name)
        if match is not None and int(match[1]) <= version:
            _take_old(found, path, before, before)
    return found


def unused_directories(
    root: Path, known: Collection[str], *, now_ms: int, dry_run: bool
) -> list[Path]:
    """Return the directories below the root that have had no table for long enough.

    A directory that has none for the first time is remembered, and forgotten if it gets one.

    Args:
        known: UUIDs of all tables of the log.
    """
    marks, found = root / _UNUSED, []
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        if not UUID_NAME.fullmatch(directory.name):
            continue
        mark = marks / directory.name
        with storing(mark):
            if directory.name in known:
                mark.unlink(missing_ok=True)
            elif mark.exists():
                if mark.stat().st_mtime_ns // 1_000_000 < now_ms - UNUSED_AGE_MS:
                    found.append(directory)
            elif not dry_run:
                marks.mkdir(exist_ok=True)
                mark.touch()
    return found


def abandoned(root: Path, *, now_ms: int) -> list[Path]:
    """Return what jobs and transfers left below the root, and nobody wrote to for long enough.

    A job's twin is young while statements write to it: each makes a file in one of its directories.
    """
    before = (now_ms - UNUSED_AGE_MS) * 1_000_000
    twins = ((root / TRANSACTION_TWINS).glob("*"), _written_below)
    parts = ((root / INCOMING).glob("*"), _written_at)
    found = []
    for paths, written in (twins, parts):
        for path in sorted(paths):
            with storing(path), suppress(FileNotFoundError):  # its job or transfer just ended
                if written(path) < before:
                    found.append(path)
    return found


def _written_below(directory: Path) -> int:
    """Return when a name was made or removed in a directory or below it last, ns."""
    return max(_written_at(Path(one)) for one, _, _ in os.walk(directory))


def _written_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove what jobs and transfers left.

    Raises:
        StorageError: Some may be left; try again.
    """
    for path in paths:
        with storing(path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def remove_directory(directory: Path) -> None:
    """Remove the directory of no table.

    Raises:
        StorageError: A part may be left; try again.
    """
    with storing(directory):
        shutil.rmtree(directory)
        shutil.rmtree(directory.parent / KEPT_COMMITS / directory.name, ignore_errors=True)
        (directory.parent / _UNUSED / directory.name).unlink(missing_ok=True)
        sync_directory(directory.parent)


def needed_since(table: Path, version: int, cutoff: int) -> set[str]:
    """Return what readers need of all versions that were the newest one at a time or later.

    Args:
        version: The newest version.
        cutoff: The time, milliseconds since 1970 UTC.

    Raises:
        CorruptLogError: The log lacks a version.
        StagedCommitError: A version cannot be read (definite).
    """
    needed = {*live_files(table, version).needed}
    # What a version needed and the newest one does not, a commit after it removed.
    for number in range(version, -1, -1):
        try:
            content = read_commit_file(read_whole(table / commit_file_name(number)))
        except FileNotFoundError:
            break  # Delta cleaned the log up; the checkpoint says what was removed before
        if content.timestamp <= cutoff:
            break
        needed |= {file.path for file in content.files} | content.removed
    base = newest_checkpoint(table, version)
    if base is not None:
        needed |= files_of_removed(base.removed_after(cutoff))
    for path in (table / STAGED_COMMITS).glob("*.json"):
        match = STAGED_NAME.fullmatch(path.name)
        if match is not None and int(match[1]) > version:
            needed |= _files_of_staged(path)
    return needed


def _files_of_staged(path: Path) -> set[str]:
    """Return the files of a commit that waits, or that its writer is about to ask for."""
    try:
        return {file.path for file in read_commit_file(read_whole(path)).files}
    except (FileNotFoundError, StagedCommitError):
        return set()  # its writer is at it, so its files are young


def _files(table: Path) -> Iterator[Path]:
    """Yield the files that versions may name; others are somebody else's."""
    for directory, folders, names in os.walk(table):
        folders[:] = [one for one in folders if one[0] not in "._" or "=" in one or one == _CDF]
        yield from (Path(directory, name) for name in names if name[0] != "_")


def _take_old(found: OldFiles, path: Path, written: int, named: int) -> None:
    """Take a file that was written and named before two times."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    is_old = status.st_mtime_ns < written * 1_000_000 and status.st_ctime_ns < named * 1_000_000
    if is_old:
        found.add(path, status.st_size)
