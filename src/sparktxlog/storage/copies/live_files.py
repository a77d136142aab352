"""Live files of a Delta table at one version: what a copy has to fetch at least."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparktxlog.errors import StorageError

_log = structlog.get_logger("sparktxlog.storage")


def live_files(directory: Path, version: int) -> list[tuple[str, int]]:
    """Return paths, relative to the table, and bytes of the live data files, ascending by path.

    Paths are those of the file system: the log's, with its percent signs resolved.  Deletion
    vectors are left out.  Where delta-rs cannot read the table (a feature it does not know), all
    data files of the directory are counted instead: never less than the live ones.

    Args:
        directory: The table's directory.
        version: Delta version, 0 or more.

    Raises:
        StorageError: Directory or version are not there, or cannot be read (nothing changed).
    """
    if not (directory / "_delta_log").is_dir():
        raise StorageError(f"{directory} is no Delta table", path=str(directory))
    try:
        actions = pa.table(DeltaTable(directory, version=version).get_add_actions())
    except (DeltaError, OSError, ValueError) as error:
        _log.warning(
            "size by directory", path=str(directory), version=version, reason=str(error)[:300]
        )
        return _all_files(directory)
    paths = [unquote(path) for path in actions.column("path").to_pylist()]
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
