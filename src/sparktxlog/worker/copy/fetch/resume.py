"""What of the wanted files is in the workspace already, after whatever broke off.

Staged files were proved before they got their name; they are compared with the donor's digest
anew only if it is another lease's.  Of other files, the chunks that a journal names are hashed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sparktxlog.model.copying import Grant
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork
from sparktxlog.worker.copy.fetch.donor_link import DonorLink
from sparktxlog.worker.copy.fetch.selection import donor_digests
from sparktxlog.worker.copy.fetch.tasks import (
    ChunkRecord,
    FileKey,
    FileTask,
    chunk_count,
    chunk_spans,
    file_digest,
    hash_chunks,
)
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, FileRecord, disk_error

_THREADS = 2


@dataclass(slots=True, kw_only=True)
class Found:
    """What is here of the wanted files."""

    #: Files that are not finished.
    works: list[FileWork] = field(default_factory=list)
    #: Bytes of finished files and of chunks.
    resumed_bytes: int = 0
    #: Chunks found, of files that are not finished.
    records: list[ChunkRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inspected:
    task: FileTask
    #: Tree digest of the staged file, None if there is none.
    digest: str | None = None
    #: It was compared with this lease's.
    proved: bool = False
    chunks: dict[int, bytes] = field(default_factory=dict)


def look_around(
    workspace: CopyWorkspace,
    grant: Grant,
    tasks: Sequence[FileTask],
    link: DonorLink,
    *,
    known: Iterable[ChunkRecord] = (),
    stop: threading.Event | None = None,
) -> Found | None:
    """Return what the workspace has of the files; a staged file that is another's is removed.

    Args:
        grant: The first donor's.
        link: To the first donor, asked only for digests of files staged under another lease.
        known: Chunks put in place by parts of this very fetch: not hashed again.
        stop: When set, it ends soon, and returns None.

    Raises:
        UnauthorizedError, LeaseGoneError, FileChangedError, TransportError: As `DonorLink.digests`.
        StorageError: The workspace cannot be read.
    """
    inspector = Inspector(workspace, grant, known, stop)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hashing") as pool:
        seen = list(pool.map(inspector.inspect, tasks))
    if stop is not None and stop.is_set():
        return None
    unproved = [item.task for item in seen if item.digest is not None and not item.proved]
    theirs = donor_digests(link, unproved)
    found = Found()
    with workspace.file_journal() as journal:
        for item in seen:
            task = item.task
            if item.proved or (item.digest is not None and item.digest == theirs[task.key]):
                if not item.proved:
                    journal.append(
                        FileRecord(
                            table=task.table, path=task.path, size_bytes=task.size_bytes,
                            digest=theirs[task.key], lease_id=grant.lease_id,
                            chunk_bytes=grant.chunk_bytes,
                        )
                    )  # fmt: skip
                found.resumed_bytes += task.size_bytes
                workspace.part(*task.key).unlink(missing_ok=True)
                continue
            if item.digest is not None:
                workspace.staged(*task.key).unlink()
            _add_work(found, item, grant.chunk_bytes)
    return found


def _add_work(found: Found, item: _Inspected, chunk_bytes: int) -> None:
    task = item.task
    spans = list(chunk_spans(task.size_bytes, chunk_bytes))
    for number, digest in sorted(item.chunks.items()):
        found.resumed_bytes += spans[number][1]
        found.records.append(
            ChunkRecord(table=task.table, path=task.path, chunk=number, digest=digest.hex())
        )
    found.works.append(FileWork.of(task, chunk_bytes, item.chunks, (0,)))


class Inspector:
    """Looks at one file at a time, in any thread."""

    def __init__(
        self,
        workspace: CopyWorkspace,
        grant: Grant,
        known: Iterable[ChunkRecord] = (),
        stop: threading.Event | None = None,
    ) -> None:
        self._stop = stop
        self._workspace = workspace
        self._lease_id = grant.lease_id
        self._chunk_bytes = grant.chunk_bytes
        self._files = workspace.file_records()
        self._chunks = workspace.chunk_records()
        self._known: dict[FileKey, dict[int, bytes]] = {}
        for record in known:
            file = self._known.setdefault((record.table, record.path), {})
            file[record.chunk] = bytes.fromhex(record.digest)

    def inspect(self, task: FileTask) -> _Inspected:
        """Return what is here of a file."""
        staged = self._workspace.staged(*task.key)
        if self._stop is not None and self._stop.is_set():
            return _Inspected(task=task)
        try:
            if staged.stat().st_size == task.size_bytes:
                return self._staged(task)
            staged.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise disk_error(error, staged) from error
        return _Inspected(task=task, chunks=self.chunks(task))

    def _staged(self, task: FileTask) -> _Inspected:
        record = self._files.get(task.key)
        measure = task.size_bytes, self._chunk_bytes
        if record is not None and (record.size_bytes, record.chunk_bytes) == measure:
            proved = record.lease_id == self._lease_id
            return _Inspected(task=task, digest=record.digest, proved=proved)
        # A power cut took the record but not the file; or other chunks were its measure.
        staged = self._workspace.staged(*task.key)
        return _Inspected(task=task, digest=file_digest(staged, task.size_bytes, self._chunk_bytes))

    def chunks(self, task: FileTask, wanted: Collection[int] | None = None) -> dict[int, bytes]:
        """Return number → binary digest of the chunks that are in place, of the wanted ones."""
        count = chunk_count(task.size_bytes, self._chunk_bytes)
        trusted = {n: d for n, d in self._known.get(task.key, {}).items() if n < count}
        named = self._chunks.get(task.key, {})
        doubtful = sorted(
            n
            for n in named
            if 0 <= n < count and n not in trusted and (wanted is None or n in wanted)
        )
        part = self._workspace.part(*task.key)
        try:
            hashed = (
                hash_chunks(part, task.size_bytes, self._chunk_bytes, doubtful) if doubtful else {}
            )
            if trusted and not part.exists():
                trusted = {}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise disk_error(error, part) from error
        good = {n: digest for n, digest in hashed.items() if digest.hex() in named[n]}
        return trusted | good
