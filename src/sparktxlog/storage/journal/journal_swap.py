"""A front whose history was given up is kept beside the one that takes its place (protocol P28)."""

from __future__ import annotations

from pathlib import Path

from sparktxlog.errors import StorageError
from sparktxlog.storage.durability import link_or_copy, storage_error, sync_directory


def swap_journal(path: Path, other: Path, kept: Path) -> None:
    """Put a closed front into the place of another closed one, which is kept under a new name.

    Raises:
        StorageError: The old one is in its place still; do it again.
    """
    try:
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise StorageError(
                f"{log} was not folded into its database: another program has it open",
                hint="Close that program.",
                path=str(log),
            )
        link_or_copy(path, kept)
        for directory in (kept.parent, other.parent):
            sync_directory(directory)
        other.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise storage_error(error, path) from error
