"""The live files of a version, from its log: the newest whole checkpoint, and the commits after it.

Features that are known here say how rows are read, not which files are live.  A table that needs
others is not read: nobody knows what its log means.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from sparktxlog.delta.checkpoints import newest_checkpoint
from sparktxlog.delta.commit_contents import LiveFiles, NeededFile, TableProtocol
from sparktxlog.delta.file_paths import may_be_data
from sparktxlog.delta.log_files import commit_path, has_log, log_of, newest_commit
from sparktxlog.errors import CorruptLogError, StagedCommitError, StorageError
from sparktxlog.storage.durability import storing
from sparktxlog.storage.foreign_files import foreign_file

_log = structlog.get_logger("sparktxlog.delta")

#: The newest version of readers' protocols that is known, and its features.
_READER_VERSION = 3
_FEATURES = frozenset(
    """
    catalogManaged columnMapping deletionVectors timestampNtz typeWidening typeWidening-preview
    v2Checkpoint vacuumProtocolCheck variantType variantType-preview
    """.split()
)


def live_files(table: Path, version: int | None = None) -> LiveFiles:
    """Return the files that readers of a version need.

    Args:
        version: None = the newest.

    Raises:
        CorruptLogError: The directory has no log, or lacks the version, or it cannot be read.
        StorageError: The table needs features that are not known here; or the disk fails.
    """
    with storing(table):
        version = newest_commit(table) if version is None else version
        live, base = LiveFiles(), newest_checkpoint(table, version)
        if not has_log(table) or version < 0:
            raise CorruptLogError(f"{table} is not a Delta table", path=str(table))
        first, number, path = 0, -1, log_of(table)
        try:
            if base is not None:
                first, number = base.version + 1, base.version
                _check_known(table, base.protocol())
                live.begin(base.adds())
            for number in range(first, version + 1):
                path = commit_path(table, number)
                _check_known(table, live.read(foreign_file(table, path).read()))
        except FileNotFoundError as error:
            raise CorruptLogError(
                f"{table} has no version {number}: {path.name} is missing", path=str(path)
            ) from error
        except StagedCommitError as error:
            raise CorruptLogError(
                f"version {number} of {table} cannot be read: {error.message}", path=str(table)
            ) from error
    return live


def _check_known(table: Path, protocol: TableProtocol | None) -> None:
    if protocol is None:
        return
    unknown = sorted({*protocol.reader_features} - _FEATURES)
    if unknown or protocol.min_reader_version > _READER_VERSION:
        raise StorageError(
            f"{table} needs what is not known here: reader version {protocol.min_reader_version}, "
            f"features {unknown}",
            path=str(table),
        )


def needed_files(table: Path, version: int) -> dict[str, NeededFile]:
    """Return the files that readers of a version need, by path; never less than these.

    If the log cannot be read, all files count that may be data.

    Raises:
        StorageError: There is no table, or its directory cannot be read.
    """
    try:
        return live_files(table, version).needed
    except StorageError as error:
        if not has_log(table):
            raise
        _log.warning("files by directory", path=str(table), version=version, reason=str(error))
    found = dict[str, NeededFile]()
    with storing(table):
        for path in table.rglob("*"):
            name = path.relative_to(table).as_posix()
            if may_be_data(name) and path.is_file():
                found[name] = NeededFile(path=name, size=path.stat().st_size)
    return found
