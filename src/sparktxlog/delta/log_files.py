"""Names of the files of a log, and which of them make a version.

A reader needs the newest complete checkpoint and later commits; a table that takes over a log gets
all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from sparktxlog.errors import CorruptLogError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Store
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name

#: The directory of a table, or a store whose root it is.
TablePlace: TypeAlias = Path | Store

#: Where writers of a table that a catalog manages put what is to become a version.
STAGED_COMMITS = f"{COMMIT_LOG}_staged_commits"
_LOG = COMMIT_LOG.rstrip("/")
_SIDECARS = f"{COMMIT_LOG}_sidecars/"
#: Commits and checksums; the version is the first group.
_COMMIT = re.compile(r"(\d{20})\.(json|crc)")
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
#: Checkpoints: of one file, of one of several parts, and of version 2.
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})\.parquet|\.parquet|\.[0-9a-f-]{36}\.(?:json|parquet))"
)
#: Names the newest checkpoint.
LAST_CHECKPOINT = "_last_checkpoint"
_NUMBER = re.compile(r"(\d{20})\.")


def store_of(table: TablePlace) -> Store:
    """Return the store whose root is a table."""
    return DiskStore(table) if isinstance(table, Path) else table


def log_of(table: Path) -> Path:
    """Return the directory of a table's log."""
    return table / COMMIT_LOG


def has_log(table: TablePlace) -> bool:
    """Return whether a place is that of a Delta table; errors as `Store`."""
    return log_of(table).is_dir() if isinstance(table, Path) else bool(names_in_log(table))


def is_in_log(path: str) -> bool:
    """Return whether a path below the table is the log, or is in it."""
    return f"{path}/".startswith(COMMIT_LOG)


def in_order(keys: Iterable[str]) -> list[list[str]]:
    """Return the paths of a table as they are removed: data, the rest of the log, commits."""
    parts: list[list[str]] = [[], [], []]
    for key in sorted(keys):
        is_commit = is_in_log(key) and bool(commits_among([key.rpartition("/")[2]]))
        parts[2 if is_commit else int(is_in_log(key))].append(key)
    return parts


def commit_path(table: Path, version: int) -> Path:
    """Return the log file of a version."""
    return table / commit_file_name(version)


def has_commit(table: TablePlace, version: int) -> bool:
    """Return whether a table's log has the commit of a version; errors as `Store`."""
    return store_of(table).find(commit_file_name(version)) is not None


def newest_version(table: TablePlace, known: int) -> int:
    """Return the newest version, given one that exists (-1 = none); errors as `Store`."""
    version, store = known, store_of(table)
    while has_commit(store, version + 1):
        version += 1
    return version


def commits_in(table: TablePlace) -> list[int]:
    """Return the versions whose commits a table's log has, ascending; errors as `Store`.

    Delta's own cleanup removes old ones.
    """
    return commits_among(names_in_log(table))


def commits_among(names: Iterable[str]) -> list[int]:
    """Return the versions whose commits are among the names in a log, ascending."""
    found = map(_COMMIT.fullmatch, names)
    return sorted(int(match[1]) for match in found if match and match[2] == "json")


def newest_commit(table: TablePlace) -> int:
    """Return the newest version whose commit a table's log has, -1 = none; errors as `Store`."""
    return max(commits_in(table), default=-1)


def last_number(table: TablePlace) -> int:
    """Return the newest version to which a file of a table's log belongs, -1 = there is none.

    Errors as `Store`.
    """
    return max(map(number_of, names_in_log(table)), default=-1)


def number_of(name: str) -> int:
    """Return the version to which the file of that name in a log belongs, -1 = to none."""
    match = _NUMBER.match(name)
    return int(match[1]) if match else -1


def is_of_checkpoint(path: str) -> bool:
    """Return whether a path below the table is a checkpoint, a part of one, or names the last."""
    name = path.removeprefix(COMMIT_LOG)
    is_part = path.startswith(_SIDECARS) or _CHECKPOINT.fullmatch(name) is not None
    return is_part or name == LAST_CHECKPOINT


def names_in_log(table: TablePlace) -> Sequence[str]:
    """Return the names of the files in a table's log, no order; empty if there is none.

    Errors as `Store`.
    """
    return store_of(table).names(_LOG)


def log_paths(paths: Iterable[str], version: int, *, whole: bool = True) -> list[str]:
    """Return the files of the log that a version needs, in the order of `paths`.

    Args:
        whole: Everything up to the version; else from the newest complete checkpoint on.
    """
    found = list(paths)
    start = -1 if whole else _start(found, version)
    return [path for path in found if is_in_log(path) and _is_wanted(path, start, version)]


def _is_wanted(path: str, start: int, version: int) -> bool:
    if path.startswith(_SIDECARS):
        return not path.startswith(f"{_SIDECARS}.")
    name = path.removeprefix(COMMIT_LOG)
    if match := _COMMIT.fullmatch(name):
        return start <= int(match[1]) <= version
    if match := _COMPACTED.fullmatch(name):
        return start < 0 and int(match[1]) <= version
    match = _CHECKPOINT.fullmatch(name)
    return match is not None and int(match[1]) <= version and start in (-1, int(match[1]))


def files_of_log(table: TablePlace, version: int) -> list[str]:
    """Return the files of the log up to a version, by path below the table, ascending.

    Raises:
        CorruptLogError: The log lacks a commit that the version needs.
        StorageError: As `Store`.
    """
    store = store_of(table)
    paths = [found.key for found in store.list(_LOG)]
    missing = missing_commit(paths, version)
    if missing is not None:
        raise CorruptLogError(f"{store.url} has no log of version {missing}", path=store.url)
    return sorted(log_paths(paths, version))


def missing_commit(paths: Iterable[str], version: int) -> int | None:
    """Return the first version after the newest checkpoint whose commit is missing, None = none."""
    there = set(paths)
    start = _start(there, version)
    numbers = range(start + 1, version + 1)
    return next((number for number in numbers if commit_file_name(number) not in there), None)


def whole_checkpoints(paths: Iterable[str], version: int) -> list[tuple[int, tuple[str, ...]]]:
    """Return the checkpoints of a version or before that have all parts, ascending.

    Returns:
        Version, and the paths of its parts; for a checkpoint of version 2 the path at the top.
    """
    parts: dict[tuple[int, int, str], list[str]] = {}
    for path in paths:
        match = _CHECKPOINT.fullmatch(path.removeprefix(COMMIT_LOG))
        if match and int(match[1]) <= version:
            key = (int(match[1]), int(match[3] or 1), match[3] or path)
            parts.setdefault(key, []).append(path)
    return sorted(
        (at, tuple(sorted(found))) for (at, total, _), found in parts.items() if len(found) >= total
    )


def _start(paths: Iterable[str], version: int) -> int:
    """Return the version of the newest whole checkpoint, -1 = none."""
    return max((at for at, _ in whole_checkpoints(paths, version)), default=-1)
