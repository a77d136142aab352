"""Fetching files until all are staged: whole, proved, durable.

    caller       progress, stop, overdue requests, leases that are gone
    stream …     one chunk after the other, from whichever donor has least to do
    others       given by the caller: proving, matching

A donor that fails is given up and the others go on.  Whatever happens, what is in place stays in
place: the next fetch into the same workspace goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from sparktxlog.errors import FileChangedError, LeaseGoneError, TransportError
from sparktxlog.model.copying import Grant
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork, Schedule
from sparktxlog.worker.copy.fetch.donor_link import SILENCE_S, DonorLink, LeaseKeeper
from sparktxlog.worker.copy.fetch.matching import match_files
from sparktxlog.worker.copy.fetch.part_writer import PartWriter, chunk_buffer
from sparktxlog.worker.copy.fetch.proving import Prover, sync_directories
from sparktxlog.worker.copy.fetch.resume import look_around
from sparktxlog.worker.copy.fetch.tasks import ChunkRecord, FetchStats, FileTask
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, Journal, disk_error

#: Called with bytes that are here and bytes in total; by the thread that fetches.
Progress = Callable[[int, int], None]


def fetch_files(
    workspace: CopyWorkspace,
    grants: Sequence[Grant],
    tasks: Sequence[FileTask],
    *,
    streams: int = 8,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    silence_s: float = SILENCE_S,
    known: Iterable[ChunkRecord] = (),
) -> FetchStats:
    """Fetch files until all are staged: whole, equal to the first donor's, durable, named.

    Args:
        workspace: Goes on from what it has.
        grants: Best donor first: its list and its digests are the measure; the others help with
            files that they have alike.
        tasks: Files of the first grant.
        streams: Chunks fetched at once.
        progress: Called twice a second and at the end.
        stop: When set, the fetch ends soon, with `complete` false.
        silence_s: Longest silence of a donor.
        known: Records of parts of this very fetch (`run_partition`): not hashed again.

    Raises:
        FileChangedError: A donor has a file no more: ask for a new ticket (definite).
        LeaseGoneError, UnauthorizedError: No donor knows its lease any more (definite).
        TransportError: No donor is left.
        DamagedChunkError: Chunks or a file were wrong twice.
        DiskFullError, StorageError: The disk of the lake.

        After each of them, what is done is kept.
    """
    began = time.monotonic()
    threads = Streams(workspace, grants, streams, silence_s)
    total = sum(task.size_bytes for task in tasks)
    with LeaseKeeper(threads.grants, silence_s=silence_s) as leases:
        link = threads.connect(0)
        try:
            found = look_around(workspace, threads.grants[0], tasks, link, known=known, stop=stop)
        finally:
            link.close()
        if found is None:
            return FetchStats(
                complete=False, files=len(tasks), size_bytes=total,
                seconds=time.monotonic() - began,
            )  # fmt: skip
        several = len(threads.grants) > 1
        schedule = Schedule(found.works, threads.node_ids, matching=several)
        prover = Prover(workspace, threads.grants[0], schedule, threads.connect(0))
        others: list[Callable[[], None]] = [prover.run]
        if several:
            others.append(
                lambda: match_files(schedule, threads.grants, found.works, threads.connect)
            )

        def report() -> None:
            if progress is not None:
                progress(found.resumed_bytes + schedule.plain_bytes, total)

        threads.drive(schedule, leases, others, report=report, stop=stop)
    if schedule.finished:
        sync_directories(workspace, tasks)
    return threads.stats(schedule, len(tasks), total, found.resumed_bytes, began)


#: Seconds between two reports of progress.
PROGRESS_S = 0.5
#: Seconds after which a stop is noticed.
_STOP_S = 0.1
#: Seconds that chunks under way get when a fetch has failed: they are of use to the next one.
_GRACE_S = 1.0


class Streams:
    """The threads of one fetch.

    Args:
        grants: Best donor first; one with another chunk size than the first cannot help.
        streams: Chunks fetched at once.
        silence_s: Longest silence of a donor, seconds.

    Raises:
        TransportError: There is no grant (nothing was done).
    """

    def __init__(
        self, workspace: CopyWorkspace, grants: Sequence[Grant], streams: int, silence_s: float
    ) -> None:
        if not grants:
            raise TransportError(
                "no donor granted a lease", hint="Ask the own node for a new ticket."
            )
        self.chunk_bytes = grants[0].chunk_bytes
        self.grants = tuple(grant for grant in grants if grant.chunk_bytes == self.chunk_bytes)
        self._workspace = workspace
        self._streams = streams
        self._silence_s = silence_s
        self._links: list[DonorLink] = []
        self._opened: set[FileWork] = set()
        self._records: list[ChunkRecord] | None = None
        self._lock = threading.Lock()

    @property
    def node_ids(self) -> list[str]:
        """Nodes of the donors."""
        return [grant.node_id for grant in self.grants]

    def keep_records(self) -> None:
        """Remember what is put in place, for `FetchStats.records`."""
        self._records = []

    def connect(self, donor: int) -> DonorLink:
        """Return a new link to a donor; `drive` breaks it off when it is overdue, or at the end."""
        link = DonorLink(self.grants[donor], silence_s=self._silence_s)
        with self._lock:
            self._links.append(link)
        return link

    def _all_links(self) -> list[DonorLink]:
        with self._lock:
            return list(self._links)

    # -- the caller's thread -----------------------------------------------------------------------

    def drive(
        self,
        schedule: Schedule,
        leases: LeaseKeeper,
        others: Sequence[Callable[[], None]],
        *,
        prefix: str = "",
        report: Callable[[], None] = lambda: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Run all threads until the fetch is over; raise what went wrong.

        Args:
            others: What runs beside the streams, a thread each; ends when the schedule is over.
            prefix: Of the journals' names.
        """
        with ThreadPoolExecutor(self._streams + len(others), thread_name_prefix="copy") as pool:
            futures = [pool.submit(work) for work in others]
            futures += [
                pool.submit(self._stream, schedule, f"{prefix}{number}")
                for number in range(self._streams)
            ]
            try:
                self._watch(schedule, leases, futures, report, stop)
            finally:
                schedule.halt()
                for link in self._all_links():
                    link.abort()
        for file in list(self._opened):
            self._close(file)
        report()
        # What a thread died of comes before what the others made of it.
        for future in futures:
            future.result()
        if schedule.error is not None:
            raise schedule.error

    def _watch(
        self,
        schedule: Schedule,
        leases: LeaseKeeper,
        futures: Sequence[Future[None]],
        report: Callable[[], None],
        stop: threading.Event | None,
    ) -> None:
        shown = time.monotonic()
        while not schedule.wait_over(_STOP_S):
            now = time.monotonic()
            if now - shown >= PROGRESS_S:
                shown = now
                report()
            if stop is not None and stop.is_set():
                return
            if any(future.done() and future.exception() for future in futures):
                return
            for donor, error in list(leases.gone.items()):
                schedule.drop(donor, error)
            for link in self._all_links():
                if link.overdue(now):
                    link.abort()
        if schedule.error is not None:
            wait(futures[-self._streams :], timeout=_GRACE_S, return_when=FIRST_EXCEPTION)

    def stats(
        self, schedule: Schedule, files: int, total: int, resumed: int, began: float
    ) -> FetchStats:
        """Return what was done; `began` in monotonic seconds, sizes in bytes."""
        return FetchStats(
            complete=schedule.finished,
            files=files,
            size_bytes=total,
            fetched_bytes=schedule.plain_bytes,
            wire_bytes=schedule.wire_bytes,
            resumed_bytes=resumed,
            chunks=schedule.chunks,
            seconds=time.monotonic() - began,
            by_donor=tuple((donor.node_id, donor.plain_bytes) for donor in schedule.donors),
            dropped=tuple(
                (donor.node_id, donor.error.message)
                for donor in schedule.donors
                if donor.error is not None
            ),
            records=tuple(self._records or ()),
        )

    # -- threads -----------------------------------------------------------------------------------

    def _stream(self, schedule: Schedule, name: str) -> None:
        """Fetch one chunk after the other."""
        buffer = chunk_buffer(self.chunk_bytes)
        links: dict[int, DonorLink] = {}
        with self._workspace.journal(name) as journal:
            try:
                while (taken := schedule.take()) is not None:
                    donor, file, number = taken
                    if donor not in links:
                        links[donor] = self.connect(donor)
                    offset = number * self.chunk_bytes
                    view = buffer[: min(self.chunk_bytes, file.task.size_bytes - offset)]
                    try:
                        chunk = links[donor].fetch(*file.task.key, offset, view)
                    except FileChangedError as error:
                        schedule.lacks(donor, file, error)
                        schedule.put_back(donor, file, number)
                    except (TransportError, LeaseGoneError) as error:
                        # An end from outside breaks requests off: that is not the donor's fault.
                        if not schedule.over:
                            schedule.drop(donor, error)
                        schedule.put_back(donor, file, number)
                    else:
                        self._place(file, offset, view, journal, chunk.digest)
                        sizes = len(view), chunk.wire_bytes
                        if schedule.placed(donor, file, number, chunk.digest, sizes):
                            self._close(file)
                            schedule.hand_over(file)
            finally:
                for link in links.values():
                    link.close()

    def _place(
        self, file: FileWork, offset: int, view: memoryview, journal: Journal, digest: bytes
    ) -> None:
        """Write a chunk, then its line: a line without bytes would be a lie after kill -9."""
        part = self._workspace.part(*file.task.key)
        try:
            self._open(file, part).write(view, offset)
        except OSError as error:
            raise disk_error(error, part) from error
        record = ChunkRecord(
            table=file.task.table, path=file.task.path, chunk=offset // self.chunk_bytes,
            digest=digest.hex(),
        )  # fmt: skip
        journal.append(record)
        if self._records is not None:
            with self._lock:
                self._records.append(record)

    def _open(self, file: FileWork, part: Path) -> PartWriter:
        with self._lock:
            if file.writer is None:
                file.writer = PartWriter(part)
                self._opened.add(file)
            return file.writer

    def _close(self, file: FileWork) -> None:
        with self._lock:
            if file.writer is not None:
                file.writer.close()
                file.writer = None
                self._opened.discard(file)
