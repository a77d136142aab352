"""Finds which of the wanted files are already here, and which chunks must be fetched.

A file may be staged, in the replica's own table under the same path, or staged in part.  If the
donor is another replica of the site, its data files may be on this machine.  What is here is
compared with the donor's digests, chunk by chunk.  Files that are equal are staged by a hard link
and not fetched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sparktxlog.errors import DiskFullError
from sparktxlog.files.donor_link import digest_batches
from sparktxlog.files.durability import storing
from sparktxlog.files.file_donors import StoredFiles, connect
from sparktxlog.files.tasks import FileTask, FileWork, hash_chunks
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.model.copying import Lease
from sparktxlog.model.tables.commit_table import COMMIT_LOG

#: Bytes that must stay free on the disk of the lake.
MARGIN_BYTES = 64 << 20
_THREADS = 2
#: The file system has no link for it: the file is fetched.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Wanted files, and which of them must be fetched."""

    tasks: tuple[FileTask, ...]
    #: Files that are not staged yet, ascending as the tasks.
    works: tuple[FileWork, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(task.size_bytes for task in self.tasks)

    @property
    def paths(self) -> frozenset[str]:
        """Paths of all files."""
        return frozenset(task.path for task in self.tasks)

    @property
    def missing_bytes(self) -> int:
        """Bytes that are not here."""
        return sum(work.missing_bytes for work in self.works)


def select_files(
    workspace: CopyWorkspace, donor: Lease | StoredFiles, tasks: Sequence[FileTask]
) -> Wanted:
    """Find files in the workspace and in the replica's tables; link the latter into the workspace.

    A staged file that differs from the donor's is removed.

    Args:
        donor: Its lease, or the stored files.
        tasks: Files of this donor.

    Raises:
        UnauthorizedError, LeaseGoneError, FileChangedError, TransportError: The donor does not
            send digests.
        RemoteProtocolError: A path that leads elsewhere (definite).
        DiskFullError, StorageError: A link cannot be made; made ones stay and are right.
    """
    works = {task: FileWork.whole(task, donor.chunk_bytes) for task in tasks}
    pins = Path(donor.pins) if isinstance(donor, Lease) and donor.pins else None
    found = {task: path for task in tasks if (path := _find(workspace, task, pins)) is not None}
    with (
        closing(connect(donor)) as link,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="hashing") as pool,
    ):
        for batch in digest_batches(list(found)):
            paths = [found[task] for task in batch]
            own = pool.map(partial(_hashed, chunk_bytes=donor.chunk_bytes), batch, paths)
            theirs = link.digests(batch)
            for task, path, here in zip(batch, paths, own, strict=True):
                equal = zip(here, theirs[task.key], strict=False)
                present = {chunk for chunk, (one, other) in enumerate(equal) if one == other}
                if path == workspace.part(*task.key):
                    works[task].missing -= present
                elif works[task].missing == present and _stage(workspace, task, path):
                    del works[task]
                else:
                    workspace.staged(*task.key).unlink(missing_ok=True)
    return Wanted(tasks=tuple(tasks), works=tuple(works.values()))


def _find(workspace: CopyWorkspace, task: FileTask, pins: Path | None) -> Path | None:
    """Return the staged file, or else the own table's, of this name and size, or else the part.

    Args:
        pins: Where the donor's files are on this machine; None = they are not.
    """
    staged, part = workspace.staged(*task.key), workspace.part(*task.key)
    places = [staged, workspace.lake / task.table / task.path]
    # Writers write into files of a log, such as the one that names the newest checkpoint.
    if pins is not None and not task.path.startswith(COMMIT_LOG):
        places.append(pins / task.table / task.path)
    whole = (path for path in places if is_file(path, task.size_bytes))
    return next(whole, part if part.exists() else None)


def _hashed(task: FileTask, path: Path, *, chunk_bytes: int) -> list[str]:
    with storing(path):
        try:
            return hash_chunks(path, task.size_bytes, chunk_bytes)
        except FileNotFoundError:
            return []


def is_file(path: Path, size_bytes: int) -> bool:
    """Return whether a regular file of this size is there."""
    with storing(path):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size_bytes


def _stage(workspace: CopyWorkspace, task: FileTask, found: Path) -> bool:
    """Give a whole file its staged name; False if it no longer exists, or cannot be linked."""
    staged = workspace.staged(*task.key)
    with storing(staged):
        if found != staged:
            staged.parent.mkdir(parents=True, exist_ok=True)
            # One of another size.
            staged.unlink(missing_ok=True)
            try:
                os.link(found, staged, follow_symlinks=False)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno in _NO_LINK:
                    return False
                raise
        # From an earlier attempt: the staged directory may become the table's.
        workspace.part(*task.key).unlink(missing_ok=True)
    return True


def require_space(workspace: CopyWorkspace, works: Iterable[FileWork]) -> int:
    """Check before the first chunk that the files fit on the disk of the lake; nothing is written.

    Args:
        works: Files to fetch; their parts in the workspace need no more space.

    Returns:
        Bytes that the files will take.

    Raises:
        DiskFullError: They do not fit (definite).
    """
    needed = missing_bytes(workspace, works)
    status = os.statvfs(workspace.lake)
    free = status.f_bavail * status.f_frsize
    if needed + MARGIN_BYTES > free:
        raise DiskFullError(
            f"the copy needs {needed:,} bytes and a margin of {MARGIN_BYTES:,}, "
            f"{free:,} bytes are free in {workspace.lake}",
            hint=f"Free {needed + MARGIN_BYTES - free:,} bytes on that disk; nothing was fetched.",
            needed_bytes=needed,
            free_bytes=free,
            path=str(workspace.lake),
        )
    return needed


def missing_bytes(workspace: CopyWorkspace, works: Iterable[FileWork]) -> int:
    """Return what files will still take on the disk, in bytes."""
    missing = 0
    for work in works:
        names = workspace.part(*work.task.key), workspace.staged(*work.task.key)
        present = sum(path.stat().st_blocks * 512 for path in names if path.exists())
        missing += max(0, work.task.size_bytes - present)
    return missing
