"""Fetching files from donors, in threads: chunks, proof, names (R09, B33, B35, V44, V64).

    caller       progress, stop, overdue requests
    stream …     one chunk after the other, from whichever donor has least to do
    prover       whole files: tree digest against the first donor's, to the disk, final name
    leases       renews every donor's lease for as long as work goes on
    matcher      finds out which files the other donors have, by tree digest

A donor that fails is given up and the others go on.  Whatever happens, what is in place stays in
place: the next fetch into the same workspace goes on from there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from sparktxlog.copying.chunks import DonorLink
from sparktxlog.copying.proving import PartProver, Prover
from sparktxlog.copying.resume import look_around
from sparktxlog.copying.schedule import FileWork, Schedule
from sparktxlog.copying.selection import digest_batches, donor_digests
from sparktxlog.copying.tasks import (
    ChunkRecord,
    FetchPlan,
    FetchStats,
    FileTask,
    PartFile,
    chunk_spans,
)
from sparktxlog.copying.workspace import CopyWorkspace, Journal, disk_error
from sparktxlog.errors import (
    FileChangedError,
    LeaseGoneError,
    TransportError,
    TxLogError,
)
from sparktxlog.model.copying import Grant

#: Called with bytes that are here and bytes in total; by the thread that fetches.
Progress = Callable[[int, int], None]
#: Seconds between two calls of it.
PROGRESS_S = 0.5
#: Seconds of a donor's silence after which it is given up.
SILENCE_S = 30.0
#: Seconds after which a stop is noticed.
_STOP_S = 0.1


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
    return _Fetch(workspace, grants, streams, silence_s).run(tasks, known, progress, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedFetch:
    """A fetch in parts, and what was found here before."""

    plans: tuple[FetchPlan, ...]
    #: To be given to `fetch_files`, with those of the parts.
    records: tuple[ChunkRecord, ...]


def plan_parts(
    workspace: CopyWorkspace,
    grants: Sequence[Grant],
    tasks: Sequence[FileTask],
    *,
    parts: int,
    streams: int = 2,
    silence_s: float = SILENCE_S,
) -> PartedFetch:
    """Spread the chunks that are not here over parts of about equal size, for `run_partition`.

    **After calling**: run the parts where the lake is in reach, then `fetch_files` with the same
    tasks and all records: it fetches what a part could not, proves the files and names them.

    Args:
        workspace, grants, tasks, silence_s: As of `fetch_files`.
        parts: At most so many plans are made.
        streams: Chunks that each part fetches at once.

    Raises:
        UnauthorizedError, LeaseGoneError, TransportError: The first donor does not answer.
        StorageError: The workspace cannot be read.
    """
    fetch = _Fetch(workspace, grants, streams, silence_s)
    link = DonorLink(grants[0], silence_s=silence_s)
    try:
        found = look_around(workspace, grants[0], tasks, link)
    finally:
        link.close()
    schedule = Schedule(found.works, [grant.node_id for grant in grants], matching=True)
    fetch.match(schedule, found.works)
    chunk_bytes = grants[0].chunk_bytes
    total = sum(task.size_bytes for task in tasks)
    share = max(1, -(-total // parts))
    filled: list[list[PartFile]] = [[] for _ in range(parts)]
    at = 0
    for work in found.works:
        spans = list(chunk_spans(work.task.size_bytes, chunk_bytes))
        chunks: dict[int, list[int]] = {}
        for number in reversed(work.missing):
            chunks.setdefault(min(at // share, parts - 1), []).append(number)
            at += spans[number][1]
        donors = tuple(sorted(work.donors))
        for part, numbers in chunks.items():
            filled[part].append(PartFile(task=work.task, chunks=tuple(numbers), donors=donors))
    bare = tuple(replace(grant, tables=()) for grant in grants)
    plans = tuple(
        FetchPlan(
            lake=str(workspace.lake), copy_id=workspace.copy_id, part=part, grants=bare,
            files=tuple(files), streams=streams, silence_s=silence_s,
        )
        for part, files in enumerate(filled)
        if files
    )  # fmt: skip
    return PartedFetch(plans=plans, records=tuple(found.records))


def run_partition(plan: FetchPlan) -> FetchStats:
    """Fetch the chunks of a part into the files of the workspace, durably; name no file.

    For `mapPartitions`: the lake is where the plan says, for every process.  Running a part twice
    does no harm.

    Raises:
        As `fetch_files`; what is in place is in the journals.
    """
    workspace = CopyWorkspace(plan.lake, plan.copy_id)
    return _Fetch(workspace, plan.grants, plan.streams, plan.silence_s).run_part(plan)


class _Fetch:
    """One fetch and its threads."""

    def __init__(
        self, workspace: CopyWorkspace, grants: Sequence[Grant], streams: int, silence_s: float
    ) -> None:
        if not grants:
            raise TransportError(
                "no donor granted a lease", hint="Ask the own node for a new ticket."
            )
        self._workspace = workspace
        self._grants = list(grants)
        self._streams = streams
        self._silence_s = silence_s
        self._chunk_bytes = grants[0].chunk_bytes
        #: Links by the thread's use; the caller breaks off what is overdue.
        self._links: list[tuple[int, DonorLink]] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._opened: set[FileWork] = set()
        self._records: list[ChunkRecord] = []
        self._keep_records = False

    # -- the caller's thread -----------------------------------------------------------------------

    def run(
        self,
        tasks: Sequence[FileTask],
        known: Iterable[ChunkRecord],
        progress: Progress | None,
        stop: threading.Event | None,
    ) -> FetchStats:
        """Fetch whole files."""
        began = time.monotonic()
        total = sum(task.size_bytes for task in tasks)
        with ThreadPoolExecutor(1, thread_name_prefix="leases") as pool:
            leases = pool.submit(self._renew, None)
            link = self._link(0)
            try:
                found = look_around(self._workspace, self._grants[0], tasks, link, known=known)
            finally:
                self._over.set()
                self._abort_links()
                link.close()
            leases.result()
        self._over.clear()
        schedule = Schedule(found.works, self._node_ids(), matching=len(self._grants) > 1)
        prover = Prover(self._workspace, self._grants[0], schedule, self._link(0))
        extra: list[Callable[[], None]] = [lambda: self._renew(schedule), prover.run]
        if len(self._grants) > 1:
            extra.append(lambda: self.match(schedule, found.works))

        def report() -> None:
            if progress is not None:
                progress(found.resumed_bytes + schedule.plain_bytes, total)

        self._drive(schedule, "", extra, report, stop)
        if schedule.finished:
            prover.sync_directories(tasks)
        return self._stats(schedule, len(tasks), total, found.resumed_bytes, began)

    def run_part(self, plan: FetchPlan) -> FetchStats:
        """Fetch chunks."""
        began = time.monotonic()
        self._keep_records = True
        works = []
        for part in plan.files:
            work = FileWork.of(part.task, self._chunk_bytes, {}, part.donors)
            work.missing = sorted(part.chunks, reverse=True)
            work.left = len(work.missing)
            works.append(work)
        total = sum(
            span[1]
            for part in plan.files
            for number, span in enumerate(chunk_spans(part.task.size_bytes, self._chunk_bytes))
            if number in set(part.chunks)
        )
        schedule = Schedule(works, self._node_ids())
        prover = PartProver(self._workspace, schedule)
        extra: list[Callable[[], None]] = [lambda: self._renew(schedule), prover.run]
        self._drive(schedule, f"p{plan.part}-", extra, lambda: None, None)
        return self._stats(schedule, len(works), total, 0, began)

    def _node_ids(self) -> list[str]:
        return [grant.node_id for grant in self._grants]

    def _drive(
        self,
        schedule: Schedule,
        prefix: str,
        extra: Sequence[Callable[[], None]],
        report: Callable[[], None],
        stop: threading.Event | None,
    ) -> None:
        """Run the threads until the fetch is over; raise what went wrong."""
        count = self._streams + len(extra)
        with ThreadPoolExecutor(count, thread_name_prefix="copy") as pool:
            futures: list[Future[None]] = [pool.submit(work) for work in extra]
            for number in range(self._streams):
                futures.append(pool.submit(self._stream, schedule, f"{prefix}{number}"))
            try:
                self._watch(schedule, futures, report, stop)
            finally:
                schedule.halt()
                self._over.set()
                self._abort_links()
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
            for _, link in self._all_links():
                if link.overdue(now):
                    link.abort()
        if schedule.error is not None:
            # Chunks under way may still be of use to the next attempt.
            wait(futures[-self._streams :], timeout=1.0, return_when=FIRST_EXCEPTION)

    def _stats(
        self, schedule: Schedule, files: int, total: int, resumed: int, began: float
    ) -> FetchStats:
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
            records=tuple(self._records),
        )

    # -- links -------------------------------------------------------------------------------------

    def _link(self, donor: int) -> DonorLink:
        link = DonorLink(self._grants[donor], silence_s=self._silence_s)
        with self._lock:
            self._links.append((donor, link))
        return link

    def _all_links(self) -> list[tuple[int, DonorLink]]:
        with self._lock:
            return list(self._links)

    def _abort_links(self) -> None:
        for _, link in self._all_links():
            link.abort()

    # -- threads -----------------------------------------------------------------------------------

    def _stream(self, schedule: Schedule, name: str) -> None:
        """Fetch one chunk after the other."""
        buffer = memoryview(bytearray(self._chunk_bytes))
        links: dict[int, DonorLink] = {}
        with self._workspace.journal(name) as journal:
            try:
                while (taken := schedule.take()) is not None:
                    donor, file, number = taken
                    if donor not in links:
                        links[donor] = self._link(donor)
                    offset = number * self._chunk_bytes
                    view = buffer[: min(self._chunk_bytes, file.task.size_bytes - offset)]
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
            descriptor = self._open(file)
            done = 0
            while done < len(view):
                done += os.pwrite(descriptor, view[done:], offset + done)
        except OSError as error:
            raise disk_error(error, part) from error
        record = ChunkRecord(
            table=file.task.table, path=file.task.path, chunk=offset // self._chunk_bytes,
            digest=digest.hex(),
        )  # fmt: skip
        journal.append(record)
        if self._keep_records:
            with self._lock:
                self._records.append(record)

    def _open(self, file: FileWork) -> int:
        with self._lock:
            if file.descriptor is None:
                part = self._workspace.part(*file.task.key)
                part.parent.mkdir(parents=True, exist_ok=True)
                file.descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                self._opened.add(file)
            return file.descriptor

    def _close(self, file: FileWork) -> None:
        with self._lock:
            if file.descriptor is not None:
                os.close(file.descriptor)
                file.descriptor = None
                self._opened.discard(file)

    def _renew(self, schedule: Schedule | None) -> None:
        """Renew the leases; a donor that does not know its lease any more is given up."""
        links = [self._link(donor) for donor in range(len(self._grants))]
        pause_s = min(grant.lease_s for grant in self._grants) / 3
        try:
            while not self._over.wait(pause_s):
                for donor, link in enumerate(links):
                    if schedule is None or schedule.in_use(donor):
                        self._renew_one(schedule, donor, link)
        finally:
            for link in links:
                link.close()

    def _renew_one(self, schedule: Schedule | None, donor: int, link: DonorLink) -> None:
        try:
            link.renew()
        except TxLogError as error:
            # One that does not answer is left to the streams: they know whether chunks come.
            gone = not isinstance(error, TransportError) or not error.retryable
            if gone and schedule is not None and not self._over.is_set():
                schedule.drop(donor, error)

    def match(self, schedule: Schedule, works: Sequence[FileWork]) -> None:
        """Find out which files other donors have alike, a batch at a time."""
        offers = [_offers(grant) for grant in self._grants]
        try:
            with ThreadPoolExecutor(max(1, len(self._grants) - 1)) as pool:
                futures = [
                    pool.submit(self._match_donor, schedule, donor, works, offers[donor])
                    for donor in range(1, len(self._grants))
                ]
                for future in futures:
                    future.result()
        finally:
            schedule.matching_over()

    def _match_donor(
        self,
        schedule: Schedule,
        donor: int,
        works: Sequence[FileWork],
        offer: dict[tuple[str, str], int],
    ) -> None:
        alike = {w.task.key: w for w in works if offer.get(w.task.key) == w.task.size_bytes}
        links = {index: self._link(index) for index in (0, donor)}
        try:
            for batch in digest_batches([work.task for work in alike.values()]):
                asked = 0
                try:
                    unknown = [task for task in batch if alike[task.key].expected is None]
                    for key, digest in donor_digests(links[0], unknown).items():
                        alike[key].expected = digest
                    asked = donor
                    theirs = donor_digests(links[donor], batch)
                except (TransportError, LeaseGoneError, FileChangedError) as error:
                    if not schedule.over:
                        schedule.drop(asked, error)
                    return
                for task in batch:
                    if theirs[task.key] == alike[task.key].expected:
                        schedule.match(donor, alike[task.key])
        finally:
            for link in links.values():
                link.close()


def _offers(grant: Grant) -> dict[tuple[str, str], int]:
    return {
        (table.definition.name, file.path): file.size_bytes
        for table in grant.tables
        for file in table.files
    }
