"""Removes what a write that failed left below a table, at once and whatever it failed for.

Spark leaves the file of a task that failed, and those of the tasks before it.  Upkeep would remove
them after a week, and only if no worker holds the lock then; until then each attempt adds some.

While nobody knows whether a write made a version, its files stay.  They go once the table has a
later version than it began with, which settles that: a version is made once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import time

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from sparktxlog.delta.commit_files import files_of_commit
from sparktxlog.delta.file_paths import files_of, may_be_data
from sparktxlog.delta.log_files import (
    TablePlace,
    commits_among,
    is_in_log,
    newest_version,
    store_of,
)
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import StorageError, TxLogError
from sparktxlog.model.tables.commit_table import commit_file_name

_logger = logging.getLogger(__name__)

#: Ends of files that Spark and this worker write: rows, and deletion vectors.
_WRITTEN = (".parquet", ".bin")


@dataclass(slots=True)
class _Attempts:
    """Writes to a table since the last one that left nothing."""

    #: When the first one began, seconds since 1970 UTC.
    since_s: float
    is_first: bool = True
    #: The newest version when a write ended that may yet make the next one; -1 = none did.
    unknown_after: int = -1


class Leftovers:
    """What writes of this process to tables leave that fail; hold the lock of their lake."""

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempts] = {}

    @contextmanager
    def removed(self, name: str, table: TablePlace, version: Callable[[], int]) -> Iterator[None]:
        """Write to a table; remove what that leaves if it fails, and what attempts before it left.

        Tasks of a write that failed may still run, and leave more: that goes with the next attempt.

        Args:
            name: Of the table.
            version: Returns the newest version that this process made or found.
        """
        attempts = self._attempts.setdefault(name, _Attempts(time()))
        try:
            yield
        except BaseException as error:
            attempts.is_first = False
            if not _is_over(error):
                attempts.unknown_after = version()
            _remove(name, table, version(), attempts)
            raise
        if attempts.is_first or _remove(name, table, version(), attempts):
            del self._attempts[name]


def _remove(name: str, table: TablePlace, version: int, attempts: _Attempts) -> bool:
    """Return whether what attempts left was removed, or is left to upkeep."""
    if version <= attempts.unknown_after:
        return False
    try:
        freed = remove_unnamed(table, version, attempts.since_s)
    except (TxLogError, OSError) as error:
        _logger.warning("table %s: what a failed write left stays: %s", name, error)
        return False
    if freed:
        _logger.info("table %s: a failed write left %d bytes, removed", name, freed)
    return True


def _is_over(error: BaseException) -> bool:
    """Return whether what failed makes no version any more; if it made one, that is there."""
    one: BaseException | None = error
    while one is not None:
        # Without Python the JVM goes on; a request to a bucket, or to a disk of another machine,
        # may be on its way still.
        lost = (Py4JNetworkError, ConnectionError, TimeoutError)
        if not isinstance(one, Exception) or isinstance(one, lost):
            return False
        if isinstance(one, StorageError) and not one.definite:
            return False
        one = one.__cause__
    return True


def remove_unnamed(table: TablePlace, version: int, since_s: float) -> int:
    """Remove files that were written since a moment and that no version names.

    Who committed one did so after it was written, so of older versions only the newest is read.
    Clocks may say something else: nothing is removed if the times of commits do not ascend, and
    nothing that the newest version has, whenever it was written.  Nor is anything removed if there
    is another version by now: it may need them.

    Args:
        table: Of a lake whose lock this process holds.
        version: The newest version before the write.
        since_s: Seconds since 1970 UTC.

    Returns:
        How many bytes were freed.

    Raises:
        CorruptLogError: The log cannot be read; nothing was removed.
        StorageError: As `Store`; some may be removed.
    """
    if version < 0 or newest_version(table, version) != version:
        return 0
    store = store_of(table)
    young = {one.key: one.size_bytes for one in store.list() if one.changed_s >= since_s}
    number = version
    while young.pop(commit_file_name(number), None) is not None:
        for path in files_of_commit(table, number):
            young.pop(path, None)
        number -= 1
    gone = {
        key: size
        for key, size in young.items()
        if key.endswith(_WRITTEN) and may_be_data(key, changes=True)
    }
    older = commits_among(key.rpartition("/")[2] for key in young if is_in_log(key))
    if not gone or older:
        return 0
    state = LogState.read(table, version)
    for path in (*state.removed, *(one for add in state.adds.values() for one in files_of(add))):
        gone.pop(path, None)
    checksums = map(_checksum, gone)  # Spark's own, on a disk
    store.remove([*gone, *(key for key in checksums if key in young)])
    return sum(gone.values())


def _checksum(key: str) -> str:
    directory, slash, name = key.rpartition("/")
    return f"{directory}{slash}.{name}.crc"
