"""Fetching files until all are staged: whole, proved, durable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from sparktxlog.model.copying import Grant
from sparktxlog.worker.copy.fetch.chunk_schedule import Schedule
from sparktxlog.worker.copy.fetch.leases import LeaseKeeper
from sparktxlog.worker.copy.fetch.matching import match_files
from sparktxlog.worker.copy.fetch.proving import Prover, sync_directories
from sparktxlog.worker.copy.fetch.resume import look_around
from sparktxlog.worker.copy.fetch.streams import Streams
from sparktxlog.worker.copy.fetch.tasks import ChunkRecord, FetchStats, FileTask
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace

#: Called with bytes that are here and bytes in total; by the thread that fetches.
Progress = Callable[[int, int], None]
#: Seconds of a donor's silence after which it is given up.
SILENCE_S = 30.0


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
