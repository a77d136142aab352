"""Fetches files of one donor until all are staged: complete, verified, durable.

    caller       progress, overdue requests
    stream …     one chunk after the other; the last one of a file completes it

Fetched chunks always stay in place: the next fetch into the same workspace, from this donor or
another one, goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace

from sparktxlog.errors import StorageError
from sparktxlog.files.donor_link import SILENCE_S
from sparktxlog.files.durability import storing, sync_parents
from sparktxlog.files.file_donors import FileDonor, StoredFiles, connect
from sparktxlog.files.part_writer import chunk_buffer, complete_part, write_chunk
from sparktxlog.files.selection import Wanted, is_file
from sparktxlog.files.tasks import Fetched, FileWork
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.model.copying import Lease

#: Called with present and total bytes, by the thread that fetches.
Progress = Callable[[int, int], None]

#: Seconds between two reports of progress.
PROGRESS_S = 0.5
#: Seconds between two checks for overdue requests.
_LOOK_S = 0.1
#: Seconds for chunks under way after a fetch has failed: the next one can use them.
_GRACE_S = 1.0


def fetch_files(
    workspace: CopyWorkspace,
    donor: Lease | StoredFiles,
    wanted: Wanted,
    *,
    streams: int = 8,
    progress: Progress | None = None,
    silence_s: float = SILENCE_S,
) -> Fetched:
    """Fetch files until all are staged: complete, equal to the donor's, durable, named.

    Args:
        donor: Its lease, which the caller renews, or the stored files.
        wanted: Selected in this workspace with this donor; used up.
        streams: Chunks fetched at once.
        progress: Called twice a second and at the end; if it raises, the fetch ends.
        silence_s: Longest silence of the donor.

    Raises:
        FileChangedError: The donor no longer has a file: ask for a new ticket (definite).
        LeaseGoneError, UnauthorizedError: The donor does not know the lease (definite).
        DamagedChunkError, CorruptLogError: A chunk of a node was wrong twice, a stored one once.
        TransportError: The donor failed.
        DiskFullError, StorageError: The disk of the lake.

        After each of them, fetched chunks are kept.
    """
    began, reused_bytes = time.monotonic(), wanted.size_bytes - wanted.missing_bytes
    fetch = _Fetch(workspace, donor, wanted.works, silence_s)

    def report() -> None:
        if progress is not None:
            progress(reused_bytes + fetch.fetched_bytes, wanted.size_bytes)

    if wanted.works:
        fetch.run(streams, report)
    report()
    with storing(workspace.root):
        sync_parents((workspace.staged(*task.key) for task in wanted.tasks), workspace.root)
    return Fetched(
        size_bytes=wanted.size_bytes,
        fetched_bytes=fetch.fetched_bytes,
        wire_bytes=fetch.wire_bytes,
        reused_bytes=reused_bytes,
        fetch_s=time.monotonic() - began,
    )


class _Fetch:
    """The threads of one fetch, and the chunks that none of them has taken."""

    def __init__(
        self,
        workspace: CopyWorkspace,
        donor: Lease | StoredFiles,
        works: Iterable[FileWork],
        silence_s: float,
    ) -> None:
        self._workspace = workspace
        self._donor = donor
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._untaken = _chunks_of(works)
        self._over = False
        #: Grows while the caller's thread reads it, which takes a copy: that is one step.
        self._links: list[FileDonor] = []
        #: Bytes put in place, uncompressed and as sent.
        self.fetched_bytes = 0
        self.wire_bytes = 0

    def run(self, streams: int, report: Callable[[], None]) -> None:
        """Run all threads until the files are staged; raise the first failure."""
        with ThreadPoolExecutor(streams, thread_name_prefix="copy") as pool:
            running = {pool.submit(self._stream) for _ in range(streams)}
            try:
                self._watch(running, report)
            finally:
                self._over = True
                wait(running, timeout=_GRACE_S)
                for link in list(self._links):
                    link.abort()

    def _watch(self, running: set[Future[None]], report: Callable[[], None]) -> None:
        shown = time.monotonic()
        while running:
            done, running = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            now = time.monotonic()
            if now - shown >= PROGRESS_S:
                shown = now
                report()
            for link in list(self._links):
                if link.overdue(now):
                    link.abort()

    # -- threads -----------------------------------------------------------------------------------

    def _stream(self) -> None:
        """Fetch one chunk after the other."""
        buffer = chunk_buffer(self._donor.chunk_bytes)
        link = connect(self._donor, silence_s=self._silence_s)
        self._links.append(link)
        with closing(link):
            while (taken := self._take()) is not None:
                work, chunk = taken
                wire = 0 if chunk is None else self._fetch(link, work, chunk, buffer)
                with self._lock:
                    if chunk is not None:
                        work.missing.discard(chunk)
                        self.fetched_bytes += work.length(chunk)
                        self.wire_bytes += wire
                    whole = not work.missing
                if whole:
                    self._complete(work)

    def _take(self) -> tuple[FileWork, int | None] | None:
        with self._lock:
            return None if self._over else next(self._untaken, None)

    def _fetch(self, link: FileDonor, work: FileWork, chunk: int, buffer: memoryview) -> int:
        """Put a chunk in its place; return its bytes as sent."""
        offset, view = chunk * work.chunk_bytes, buffer[: work.length(chunk)]
        wire = link.fetch(*work.task.key, offset, view)
        part = self._workspace.part(*work.task.key)
        with storing(part):
            write_chunk(part, view, offset)
        return wire

    def _complete(self, work: FileWork) -> None:
        task, part = work.task, self._workspace.part(*work.task.key)
        with storing(part):
            staged = self._workspace.staged(*task.key)
            if is_file(staged, task.size_bytes):
                # Another attempt at this task was first; what came since is only a part.
                part.unlink(missing_ok=True)
                return
            complete_part(part, staged, task.size_bytes, task.modified_at * 1000)


def _chunks_of(works: Iterable[FileWork]) -> Iterator[tuple[FileWork, int | None]]:
    """Yield each missing chunk; None for a file whose bytes are all in place."""
    for work in works:
        for chunk in sorted(work.missing) or (None,):
            yield work, chunk


# -- executors -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPart:
    """Files that another process fetches: picklable, with everything that it needs."""

    workspace: CopyWorkspace
    #: Without its file lists.
    lease: Lease
    works: tuple[FileWork, ...]
    #: Chunks fetched at once by this part.
    streams: int


def split(
    workspace: CopyWorkspace, lease: Lease, wanted: Wanted, *, parts: int, streams: int
) -> list[FetchPart]:
    """Distribute the files to fetch over parts of about equal bytes, for `fetch_part`.

    **After calling**: run the parts where the lake is in reach, then `fetch_files` for those of
    `unstaged`.

    Args:
        workspace, lease, wanted: As in `fetch_files`; of a node.
        parts: At most so many are made.
        streams: Chunks that each part fetches at once.

    Raises:
        DiskFullError, StorageError: The workspace cannot be made.
    """
    with storing(workspace.root):
        # An executor finds by this directory that it has the lake of its driver.
        workspace.root.mkdir(parents=True, exist_ok=True)
    shares = [list[FileWork]() for _ in range(min(parts, len(wanted.works)))]
    loads = [0] * len(shares)
    for work in sorted(wanted.works, key=lambda one: one.missing_bytes, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(work)
        loads[least] += work.missing_bytes
    bare = replace(lease, tables=())
    return [
        FetchPart(workspace=workspace, lease=bare, works=tuple(works), streams=streams)
        for works in shares
    ]


def fetch_part(part: FetchPart) -> Fetched:
    """Fetch the files of a part, for `mapPartitions`: each process sees the lake under its path.

    Raises:
        StorageError: This process does not see the workspace (definite).
        TxLogError: As `fetch_files`.
    """
    workspace = part.workspace
    if not workspace.root.is_dir():
        raise StorageError(
            f"{workspace.root} is not there: this process does not see the lake of its driver",
            hint="Put the lake on storage that all executors share, or copy without them.",
            path=str(workspace.root),
        )
    # A task that runs again finds what its first attempt staged.
    works = unstaged(workspace, part.works)
    wanted = Wanted(tasks=tuple(work.task for work in works), works=works)
    return fetch_files(workspace, part.lease, wanted, streams=part.streams)


def unstaged(workspace: CopyWorkspace, works: Sequence[FileWork]) -> tuple[FileWork, ...]:
    """Return the files without a staged one of their size."""
    return tuple(
        work
        for work in works
        if not is_file(workspace.staged(*work.task.key), work.task.size_bytes)
    )
