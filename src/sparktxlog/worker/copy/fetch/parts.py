"""A fetch in parts, for Spark executors: plans that are sent there, and what they do there.

driver      plan_parts ──► plans
executors   run_partition(plan): chunks into `.part` files of the lake, durably; journals
driver      fetch_files(…, known=records): the rest, proofs, names
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparktxlog.errors import StorageError
from sparktxlog.model.copying import Grant
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork, Schedule
from sparktxlog.worker.copy.fetch.donor_link import SILENCE_S, LeaseKeeper
from sparktxlog.worker.copy.fetch.fetch import Streams
from sparktxlog.worker.copy.fetch.matching import match_files
from sparktxlog.worker.copy.fetch.proving import PartProver
from sparktxlog.worker.copy.fetch.resume import Inspector, look_around
from sparktxlog.worker.copy.fetch.tasks import (
    ChunkRecord,
    FetchPlan,
    FetchStats,
    FileTask,
    PartFile,
    chunk_spans,
)
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace


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
) -> PartedFetch:
    """Spread the chunks that are not here over parts of about equal size, for `run_partition`.

    **After calling**: run the parts where the lake is in reach, then `fetch_files` with the same
    tasks and all records: it fetches what a part could not, proves the files and names them.

    Args:
        workspace, grants, tasks: As of `fetch_files`.
        parts: At most so many plans are made.
        streams: Chunks that each part fetches at once.

    Raises:
        UnauthorizedError, LeaseGoneError, TransportError: The first donor does not answer.
        StorageError: The workspace cannot be read.
    """
    threads = Streams(workspace, grants, streams, SILENCE_S)
    with LeaseKeeper(threads.grants, silence_s=SILENCE_S):
        link = threads.connect(0)
        try:
            found = look_around(workspace, threads.grants[0], tasks, link)
        finally:
            link.close()
        assert found is not None
        schedule = Schedule(found.works, threads.node_ids, matching=True)
        match_files(schedule, threads.grants, found.works, threads.connect)
    bare = tuple(replace(grant, tables=()) for grant in threads.grants)
    plans = tuple(
        FetchPlan(
            lake=str(workspace.lake), copy_id=workspace.copy_id, part=part, grants=bare,
            files=tuple(files), streams=streams,
        )
        for part, files in enumerate(_spread(found.works, threads.chunk_bytes, parts))
        if files
    )  # fmt: skip
    return PartedFetch(plans=plans, records=tuple(found.records))


def _spread(works: Sequence[FileWork], chunk_bytes: int, parts: int) -> list[list[PartFile]]:
    """Return the missing chunks in parts of about equal bytes; neighbours stay together."""
    missing = [
        (work, number, min(chunk_bytes, work.task.size_bytes - number * chunk_bytes))
        for work in works
        for number in reversed(work.missing)
    ]
    share = max(1, -(-sum(length for _, _, length in missing) // parts))
    chosen: list[dict[FileWork, list[int]]] = [{} for _ in range(parts)]
    at = 0
    for work, number, length in missing:
        chosen[at // share].setdefault(work, []).append(number)
        at += length
    return [
        [
            PartFile(task=work.task, chunks=tuple(numbers), donors=tuple(sorted(work.donors)))
            for work, numbers in files.items()
        ]
        for files in chosen
    ]


def run_partition(plan: FetchPlan) -> FetchStats:
    """Fetch the chunks of a part into the files of the workspace, durably; name no file.

    For `mapPartitions`: the lake is where the plan says, for every process.  A part that is run
    again goes on from its journals.

    Raises:
        StorageError: This process does not see the workspace (definite).
        TxLogError: As `fetch_files`; what is in place is in the journals.
    """
    began = time.monotonic()
    workspace = CopyWorkspace(plan.lake, plan.copy_id)
    if not workspace.root.is_dir():
        raise StorageError(
            f"{workspace.root} is not there: this process does not see the lake of its driver",
            hint="Put the lake on storage that all executors share, or copy without them.",
            path=str(workspace.root),
        )
    threads = Streams(workspace, plan.grants, plan.streams, SILENCE_S)
    threads.keep_records()
    inspector = Inspector(workspace, plan.grants[0])
    works, here, total, resumed = [], [], 0, 0
    for part in plan.files:
        spans = list(chunk_spans(part.task.size_bytes, threads.chunk_bytes))
        found = inspector.chunks(part.task, set(part.chunks))
        work = FileWork.of(part.task, threads.chunk_bytes, found, part.donors)
        work.missing = [n for n in work.missing if n in set(part.chunks)]
        work.left = len(work.missing)
        works.append(work)
        total += sum(spans[number][1] for number in part.chunks)
        resumed += sum(spans[number][1] for number in found)
        here += [
            ChunkRecord(table=part.task.table, path=part.task.path, chunk=n, digest=d.hex())
            for n, d in sorted(found.items())
        ]
    schedule = Schedule(works, threads.node_ids)
    others: list[Callable[[], None]] = [PartProver(workspace, schedule).run]
    with LeaseKeeper(threads.grants, silence_s=SILENCE_S) as leases:
        threads.drive(schedule, leases, others, prefix=f"p{plan.part}-")
    stats = threads.stats(schedule, len(works), total, resumed, began)
    return replace(stats, records=(*here, *stats.records))
