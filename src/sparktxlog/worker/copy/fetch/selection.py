"""What has to travel: wanted files less those that the target's own table has already.

Files of equal path and size are candidates; equal tree digests prove them.  They are staged by a
hard link, and no byte of them travels.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.errors import DiskFullError, FileChangedError
from sparktxlog.model.copying import Grant, OfferedTable
from sparktxlog.worker.copy.fetch.donor_link import MAX_DIGESTS, SILENCE_S, DonorLink
from sparktxlog.worker.copy.fetch.tasks import FileKey, FileTask, file_digest
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, FileRecord, disk_error

#: Room that must be left on the disk of the lake.
MARGIN_BYTES = 64 << 20
#: Bytes of files whose digests are asked for at once, if it is more than one file.
_DIGEST_BYTES = 256 << 20
_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Files of a table that are wanted, and what of them has to travel."""

    #: Bytes of all of them, and of those staged by a hard link to a file of the target's own table.
    size_bytes: int
    reused_bytes: int
    #: To be fetched, ascending by path.
    tasks: tuple[FileTask, ...]


def wanted_files(offered: OfferedTable, wanted: Collection[str]) -> list[FileTask]:
    """Return the wanted files of a table, ascending by path.

    Raises:
        FileChangedError: The grant lacks one of them (definite).
    """
    files = {file.path: file for file in offered.files}
    table = offered.definition.name
    tasks = []
    for path in sorted(set(wanted)):
        if path not in files:
            raise FileChangedError(
                f"table {table!r}: the grant has no file {path[:300]!r}, which version "
                f"{offered.version} needs",
                hint="Ask the own node for a new ticket.",
                table=table,
                path=path[:300],
            )
        file = files[path]
        tasks.append(
            FileTask(
                table=table, path=path, size_bytes=file.size_bytes, modified_at=file.modified_at
            )
        )
    return tasks


def select_files(
    workspace: CopyWorkspace,
    grant: Grant,
    offered: OfferedTable,
    wanted: Collection[str],
    table_dir: Path,
) -> Wanted:
    """Part the wanted files of a table into those to fetch and those that are here; stage these.

    Args:
        workspace: Gets the links.
        grant: Of the first donor, whose digests decide.
        offered: The table, of this grant.
        wanted: Paths that the version needs; the caller read them in the donor's Delta log.
        table_dir: The target's own table; it may be missing.

    Raises:
        FileChangedError: The grant lacks a wanted file (definite).
        UnauthorizedError, LeaseGoneError, TransportError: The donor does not tell digests.
        DiskFullError, StorageError: A link cannot be made; made ones stay and are right.
    """
    tasks = wanted_files(offered, wanted)
    alike = [task for task in tasks if _is_alike(table_dir / task.path, task, workspace)]
    reused: list[FileTask] = []
    link = DonorLink(grant, silence_s=SILENCE_S)
    try:
        with (
            workspace.file_journal() as journal,
            ThreadPoolExecutor(_THREADS, thread_name_prefix="hashing") as pool,
        ):
            for batch in digest_batches(alike):
                own = pool.map(lambda task: _own_digest(table_dir, task, grant.chunk_bytes), batch)
                theirs = link.digests([task.key for task in batch], _size(batch))
                for task, here, there in zip(batch, own, theirs, strict=True):
                    if here == there and _stage_link(workspace, table_dir, task):
                        journal.append(
                            FileRecord(
                                table=task.table, path=task.path, size_bytes=task.size_bytes,
                                digest=there, lease_id=grant.lease_id,
                                chunk_bytes=grant.chunk_bytes,
                            )
                        )  # fmt: skip
                        reused.append(task)
    finally:
        link.close()
    taken = {task.path for task in reused}
    return Wanted(
        size_bytes=_size(tasks),
        reused_bytes=_size(reused),
        tasks=tuple(task for task in tasks if task.path not in taken),
    )


def require_space(
    workspace: CopyWorkspace, tasks: Iterable[FileTask], *, margin_bytes: int = MARGIN_BYTES
) -> int:
    """Check before the first chunk that the files fit on the disk of the lake; nothing is written.

    Args:
        tasks: Files to fetch; what the workspace has of them takes no room again.
        margin_bytes: Room that must be left.

    Returns:
        Bytes that the files will take.

    Raises:
        DiskFullError: They do not fit (definite).
    """
    needed = workspace.missing_bytes(tasks)
    status = os.statvfs(workspace.lake)
    free = status.f_bavail * status.f_frsize
    if needed + margin_bytes > free:
        raise DiskFullError(
            f"the copy needs {needed:,} bytes and a margin of {margin_bytes:,}, "
            f"{free:,} bytes are free in {workspace.lake}",
            hint=f"Free {needed + margin_bytes - free:,} bytes on that disk; nothing was fetched.",
            needed_bytes=needed,
            free_bytes=free,
            path=str(workspace.lake),
        )
    return needed


def digest_batches(tasks: Sequence[FileTask]) -> Iterator[list[FileTask]]:
    """Yield files in groups whose digests one request may ask for."""
    batch: list[FileTask] = []
    size = 0
    for task in tasks:
        if batch and (len(batch) == MAX_DIGESTS or size + task.size_bytes > _DIGEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += task.size_bytes
    if batch:
        yield batch


def donor_digests(link: DonorLink, tasks: Sequence[FileTask]) -> dict[FileKey, str]:
    """Return a donor's tree digests of files.

    Raises:
        UnauthorizedError, LeaseGoneError, FileChangedError, TransportError: As `DonorLink.digests`.
    """
    found: dict[FileKey, str] = {}
    for batch in digest_batches(tasks):
        keys = [task.key for task in batch]
        found.update(zip(keys, link.digests(keys, _size(batch)), strict=True))
    return found


def _size(tasks: Iterable[FileTask]) -> int:
    return sum(task.size_bytes for task in tasks)


def _is_alike(own: Path, task: FileTask, workspace: CopyWorkspace) -> bool:
    # Staged ones are proved by the fetch; the check of the name comes with it.
    if workspace.staged(*task.key).exists():
        return False
    try:
        return own.stat(follow_symlinks=False).st_size == task.size_bytes and own.is_file()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _own_digest(table_dir: Path, task: FileTask, chunk_bytes: int) -> str | None:
    try:
        return file_digest(table_dir / task.path, task.size_bytes, chunk_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(error, table_dir / task.path) from error


def _stage_link(workspace: CopyWorkspace, table_dir: Path, task: FileTask) -> bool:
    target = workspace.staged(*task.key)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(table_dir / task.path, target, follow_symlinks=False)
        # Of an attempt that did not know of the own file: the table's directory is for its files.
        workspace.part(*task.key).unlink(missing_ok=True)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise disk_error(error, target) from error
    return True
