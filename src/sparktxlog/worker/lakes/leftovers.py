"""Removes what a write that failed left below a table: on a full disk it has the last room.

Spark leaves the file of a task that failed, and those of the tasks before it.  Upkeep would remove
them after a week, and only if no worker holds the lock then; until then each attempt adds some.
"""

from __future__ import annotations

from sparktxlog.delta.commit_files import files_of_commit
from sparktxlog.delta.file_paths import may_be_data
from sparktxlog.delta.log_files import TablePlace, newest_version, store_of
from sparktxlog.model.tables.commit_table import commit_file_name

#: Ends of files that Spark and this worker write: rows, and deletion vectors.
_WRITTEN = (".parquet", ".bin")


def remove_unnamed(table: TablePlace, version: int, since_s: float) -> int:
    """Remove files that were written since a moment and that no version names.

    Who committed one did so after it was written, so only commits since then are read.  Nothing is
    removed if there is another version by now: it may need them.

    Args:
        table: Of a lake whose lock this process holds.
        version: The newest version before the write.
        since_s: Seconds since 1970 UTC.

    Returns:
        How many bytes were freed.

    Raises:
        CorruptLogError: A commit cannot be read; nothing was removed.
        StorageError: As `Store`; some may be removed.
    """
    if version < 0 or newest_version(table, version) != version:
        return 0
    store = store_of(table)
    young = {one.key: one.size_bytes for one in store.list() if one.changed_s >= since_s}
    number = version
    while commit_file_name(number) in young:
        for path in files_of_commit(table, number):
            young.pop(path, None)
        number -= 1
    gone = {
        key: size
        for key, size in young.items()
        if key.endswith(_WRITTEN) and may_be_data(key, changes=True)
    }
    checksums = map(_checksum, gone)  # Spark's own, on a disk
    store.remove([*gone, *(key for key in checksums if key in young)])
    return sum(gone.values())


def _checksum(key: str) -> str:
    directory, slash, name = key.rpartition("/")
    return f"{directory}{slash}.{name}.crc"
