"""Finds which of the wanted files are already here, and which must be fetched.

A whole file is either staged or in the replica's own table under the same path; equal tree digests
prove that it equals the donor's.  Own files are staged by a hard link and not fetched.  Of other
files, the chunks that a journal names are hashed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.errors import DiskFullError
from sparktxlog.model.copying import Lease
from sparktxlog.storage.durability import storing
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork
from sparktxlog.worker.copy.fetch.donor_link import DonorLink, digest_batches
from sparktxlog.worker.copy.fetch.tasks import FileTask, file_digest, hash_chunks
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, FileRecord

#: Bytes that must stay free on the disk of the lake.
MARGIN_BYTES = 64 << 20
_THREADS = 2


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


def select_files(workspace: CopyWorkspace, lease: Lease, tasks: Sequence[FileTask]) -> Wanted:
    """Find files in the workspace and in the replica's tables; link the latter into the workspace.

    A staged file that differs from the donor's is removed.

    Args:
        lease: Of the first donor, whose digests decide.
        tasks: Files of this lease.

    Raises:
        UnauthorizedError, LeaseGoneError, FileChangedError, TransportError: The donor does not
            tell digests.
        RemoteProtocolError: A path that leads elsewhere (definite).
        DiskFullError, StorageError: A link cannot be made; made ones stay and are right.
    """
    inspector = Inspector(workspace, lease.chunk_bytes)
    found = [(task, path) for task in tasks if (path := inspector.find_whole(task)) is not None]
    paths, here = dict(found), set[FileTask]()
    with (
        closing(DonorLink(lease)) as link,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="hashing") as pool,
    ):
        for batch in digest_batches(list(paths)):
            own = pool.map(inspector.digest, batch, [paths[task] for task in batch])
            theirs = link.digests(batch)
            equal = [t for t, digest in zip(batch, own, strict=True) if digest == theirs[t.key]]
            workspace.record_files(
                FileRecord.of(task, theirs[task.key], lease.chunk_bytes) for task in equal
            )
            here.update(task for task in equal if _stage(workspace, task, paths[task]))
            for task in set(batch) - here:
                workspace.staged(*task.key).unlink(missing_ok=True)
        works = [FileWork.whole(task, lease.chunk_bytes) for task in tasks if task not in here]
        for work, chunks in zip(works, pool.map(inspector.chunks, works), strict=True):
            work.keep(chunks)
    return Wanted(tasks=tuple(tasks), works=tuple(works))


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
        part = workspace.part(*work.task.key)
        present = part.stat().st_blocks * 512 if part.exists() else 0
        missing += max(0, work.task.size_bytes - present)
    return missing


class Inspector:
    """Checks one file at a time, in any thread."""

    def __init__(self, workspace: CopyWorkspace, chunk_bytes: int) -> None:
        self._workspace = workspace
        self._chunk_bytes = chunk_bytes
        self._files = workspace.file_records()
        self._chunks = workspace.chunk_records()

    def find_whole(self, task: FileTask) -> Path | None:
        """Return the staged file, or else the own table's file, of this name and size."""
        staged = self._workspace.staged(*task.key)
        own = self._workspace.lake / task.table / task.path
        return next((path for path in (staged, own) if _is_file(path, task.size_bytes)), None)

    def digest(self, task: FileTask, path: Path) -> str | None:
        """Return the tree digest of a whole file, None if it is shorter now, or gone."""
        record = self._files.get(task.key)
        measure = task.size_bytes, self._chunk_bytes
        if (
            path == self._workspace.staged(*task.key)
            and record is not None
            and (record.size_bytes, record.chunk_bytes) == measure
        ):
            return record.digest
        # An own file; or a power cut lost the record; or it had another chunk size.
        with storing(path):
            try:
                return file_digest(path, *measure)
            except FileNotFoundError:
                return None

    def chunks(self, work: FileWork) -> dict[int, bytes]:
        """Return number → binary digest of the missing chunks that are in place."""
        named = self._chunks.get(work.task.key, {})
        wanted = [chunk for chunk in work.missing if chunk in named]
        part = self._workspace.part(*work.task.key)
        with storing(part):
            if not wanted or not part.exists():
                return {}
            hashed = hash_chunks(part, work.task.size_bytes, self._chunk_bytes, wanted)
        return {chunk: digest for chunk, digest in hashed.items() if digest.hex() in named[chunk]}


def _is_file(path: Path, size_bytes: int) -> bool:
    with storing(path):
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size_bytes


def _stage(workspace: CopyWorkspace, task: FileTask, found: Path) -> bool:
    """Give a whole file its staged name; False if it no longer exists."""
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
        # From an earlier attempt: the staged directory may become the table's.
        workspace.part(*task.key).unlink(missing_ok=True)
    return True
