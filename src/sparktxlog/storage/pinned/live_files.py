"""Live files of a Delta table at one version: the least that a copy has to fetch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.errors import StorageError

_log = structlog.get_logger("sparktxlog.storage")


def live_files(directory: Path, version: int) -> list[tuple[str, int]]:
    """Return paths, relative to the table, and bytes of the live data files, ascending by path.

    Paths are those of the file system: the log's with percent escapes decoded.  Deletion vectors
    are left out.  If delta-rs cannot read the table (unknown feature), all data files of the
    directory are counted instead, which are never less.

    Args:
        directory: The table's directory.
        version: Delta version, 0 or more.

    Raises:
        StorageError: Directory or version do not exist or cannot be read; nothing changed.
    """
    if not (directory / "_delta_log").is_dir():
        raise StorageError(f"{directory} is not a Delta table", path=str(directory))
    try:
        actions = pa.table(DeltaTable(directory, version=version).get_add_actions())
    except (DeltaError, OSError, ValueError) as error:
        _log.warning(
            "size by directory", path=str(directory), version=version, reason=str(error)[:300]
        )
        return _all_files(directory)
    paths = [path_of_file(path) for path in actions.column("path").to_pylist()]
    return sorted(zip(paths, actions.column("size_bytes").to_pylist(), strict=True))


def _all_files(directory: Path) -> list[tuple[str, int]]:
    found = []
    try:
        for path in directory.rglob("*"):
            relative = path.relative_to(directory)
            hidden = any(part[0] in "._" and "=" not in part for part in relative.parts)
            if not hidden and path.is_file():
                found.append((relative.as_posix(), path.stat().st_size))
    except OSError as error:
        raise StorageError(
            f"{directory} cannot be read: {error.strerror}", path=str(directory)
        ) from error
    return sorted(found)
