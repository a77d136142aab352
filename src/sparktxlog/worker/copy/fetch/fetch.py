"""Fetches files until all are staged: complete, verified, durable.

    caller       progress, overdue requests
    stream …     one chunk after the other, from the least busy donor
    others       given by the caller: proving, matching

A donor that fails is given up and the others go on.  Fetched chunks always stay in place: the next
fetch into the same workspace continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import partial

from sparktxlog.errors import TransportError, TxLogError
from sparktxlog.model.copying import Lease
from sparktxlog.storage.durability import storing, sync_parents
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork, Schedule
from sparktxlog.worker.copy.fetch.donor_link import SILENCE_S, DonorLink
from sparktxlog.worker.copy.fetch.part_writer import chunk_buffer, write_chunk
from sparktxlog.worker.copy.fetch.proving import Prover, match_donor
from sparktxlog.worker.copy.fetch.selection import Wanted
from sparktxlog.worker.copy.fetch.tasks import ChunkRecord, Fetched
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace

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
    leases: Sequence[Lease],
    wanted: Wanted,
    *,
    streams: int = 8,
    progress: Progress | None = None,
    silence_s: float = SILENCE_S,
) -> Fetched:
    """Fetch files until all are staged: complete, equal to the first donor's, durable, named.

    Args:
        leases: Best donor first: its list and digests decide; the others help with files that
            are equal.  The caller renews their leases.
        wanted: Selected in this workspace with the first lease; used up.
        streams: Chunks fetched at once.
        progress: Called twice a second and at the end; if it raises, the fetch ends.
        silence_s: Longest silence of a donor.

    Raises:
        FileChangedError: A donor no longer has a file: ask for a new ticket (definite).
        LeaseGoneError, UnauthorizedError: No donor knows its lease (definite).
        TransportError: No donor is left.
        DamagedChunkError: Chunks or a file were wrong twice.
        DiskFullError, StorageError: The disk of the lake.

        After each of them, fetched chunks are kept.
    """
    began, reused_bytes = time.monotonic(), wanted.size_bytes - wanted.missing_bytes
    leases = usable_leases(leases)
    schedule = Schedule(wanted.works, [g.node_id for g in leases], matching=len(leases) - 1)
    threads = FetchThreads(workspace, leases, schedule, silence_s=silence_s)

    def report() -> None:
        if progress is not None:
            progress(reused_bytes + schedule.fetched_bytes, wanted.size_bytes)

    if wanted.works:
        prover = Prover(workspace, schedule, threads.connect(0))
        threads.drive([prover.run, *threads.matchers(wanted.works)], streams=streams, report=report)
    with storing(workspace.root):
        sync_parents((workspace.staged(*task.key) for task in wanted.tasks), workspace.root)
    return Fetched(
        size_bytes=wanted.size_bytes,
        fetched_bytes=schedule.fetched_bytes,
        wire_bytes=schedule.wire_bytes,
        reused_bytes=reused_bytes,
        fetch_s=time.monotonic() - began,
    )


def usable_leases(leases: Sequence[Lease]) -> tuple[Lease, ...]:
    """Return the first lease and those that can help it: they have the same chunk size.

    Raises:
        TransportError: There is no lease (nothing was done).
    """
    if not leases:
        raise TransportError("no donor granted a lease", hint="Ask the own node for a new ticket.")
    return tuple(lease for lease in leases if lease.chunk_bytes == leases[0].chunk_bytes)


class FetchThreads:
    """The threads of one fetch.

    Args:
        leases: All of the same chunk size.
        silence_s: Longest silence of a donor, seconds.
    """

    def __init__(
        self,
        workspace: CopyWorkspace,
        leases: Sequence[Lease],
        schedule: Schedule,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._workspace = workspace
        self._leases = leases
        self._schedule = schedule
        self._silence_s = silence_s
        #: Grows while other threads read it: they take a copy, which is one step.
        self._links: list[DonorLink] = []

    def connect(self, donor: int) -> DonorLink:
        """Return a new link to a donor; `drive` aborts it if it is overdue, or at the end."""
        link = DonorLink(self._leases[donor], silence_s=self._silence_s)
        self._links.append(link)
        return link

    def matchers(self, works: Sequence[FileWork]) -> list[Callable[[], None]]:
        """Return tasks that ask each donor but the first for equal files; see `match_donor`."""
        return [
            partial(match_donor, self._schedule, works, donor, lease, self.connect)
            for donor, lease in enumerate(self._leases)
            if donor
        ]

    # -- the caller's thread -----------------------------------------------------------------------

    def drive(
        self,
        others: Sequence[Callable[[], None]],
        *,
        streams: int,
        prefix: str = "",
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """Run all threads until the fetch is over; raise what went wrong.

        Args:
            others: Functions beside the streams, a thread each; they end with the schedule.
            streams: Chunks fetched at once.
            prefix: Of the journals' names.
        """
        with ThreadPoolExecutor(streams + len(others), thread_name_prefix="copy") as pool:
            futures = [pool.submit(work) for work in others]
            fetching = [pool.submit(self._stream, f"{prefix}{n}") for n in range(streams)]
            try:
                self._watch([*futures, *fetching], report)
                if self._schedule.error is not None:
                    wait(fetching, timeout=_GRACE_S, return_when=FIRST_EXCEPTION)
            finally:
                self._schedule.halt()
                for link in list(self._links):
                    link.abort()
        report()
        # The first failure of a thread comes before errors that it caused.
        for future in (*futures, *fetching):
            future.result()
        if self._schedule.error is not None:
            raise self._schedule.error

    def _watch(self, futures: Sequence[Future[None]], report: Callable[[], None]) -> None:
        shown = time.monotonic()
        while not self._schedule.wait_over(_LOOK_S):
            now = time.monotonic()
            if now - shown >= PROGRESS_S:
                shown = now
                report()
            if any(future.done() and future.exception() for future in futures):
                return
            for link in list(self._links):
                if link.overdue(now):
                    link.abort()

    # -- threads -----------------------------------------------------------------------------------

    def _stream(self, name: str) -> None:
        """Fetch one chunk after the other."""
        buffer = chunk_buffer(self._leases[0].chunk_bytes)
        links: dict[int, DonorLink] = {}
        with self._workspace.journal(name) as journal, ExitStack() as opened:
            while (taken := self._schedule.take()) is not None:
                donor, file, number = taken
                if donor not in links:
                    links[donor] = opened.enter_context(closing(self.connect(donor)))
                task, offset = file.task, number * file.chunk_bytes
                view = buffer[: file.length(number)]
                try:
                    chunk = links[donor].fetch(*task.key, offset, view)
                except TxLogError as error:
                    self._schedule.failed(donor, file, number, error)
                    continue
                part = self._workspace.part(*task.key)
                with storing(part):
                    write_chunk(part, view, offset)
                # The bytes come first: after kill -9 a line without them would be wrong.
                journal.append(
                    ChunkRecord(
                        table=task.table, path=task.path, chunk=number, digest=chunk.digest.hex()
                    )
                )
                self._schedule.placed(donor, file, number, chunk.digest, chunk.wire_bytes)
