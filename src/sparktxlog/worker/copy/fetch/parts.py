"""A fetch in parts, for Spark executors: the plans, and their execution.

driver      plan_parts ──► plans
executors   run_partition(plan): chunks into `.part` files of the lake, durably; journals
driver      keep_parts, then fetch_files: the rest, proofs, names
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from sparktxlog.errors import StorageError
from sparktxlog.model.copying import Lease
from sparktxlog.storage.durability import storing, sync_file
from sparktxlog.worker.copy.fetch.chunk_schedule import FileWork, Schedule
from sparktxlog.worker.copy.fetch.fetch import FetchThreads, usable_leases
from sparktxlog.worker.copy.fetch.selection import Inspector, Wanted
from sparktxlog.worker.copy.fetch.tasks import Fetched
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """A part of a fetch for another process: picklable, with everything that it needs."""

    workspace: CopyWorkspace
    #: Number of the part.
    part: int
    #: Without their file lists.
    leases: tuple[Lease, ...]
    #: Only the chunks of this part are missing in them.
    works: tuple[FileWork, ...]
    #: Chunks fetched at once by this part.
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPart:
    """Result of a part."""

    fetched: Fetched
    #: With the chunks that are in place.
    works: tuple[FileWork, ...]


def plan_parts(
    workspace: CopyWorkspace,
    leases: Sequence[Lease],
    wanted: Wanted,
    *,
    parts: int,
    streams: int = 2,
) -> list[FetchPlan]:
    """Distribute the missing chunks over parts of about equal size, for `run_partition`.

    **After calling**: run the parts where the lake is in reach, then `keep_parts` and
    `fetch_files`, which fetches the rest, verifies the files and names them.

    Args:
        workspace, leases, wanted: As of `fetch_files`.
        parts: At most so many plans are made.
        streams: Chunks that each part fetches at once.

    Raises:
        TransportError: There is no lease.
        DiskFullError, StorageError: The workspace cannot be made.
    """
    leases = usable_leases(leases)
    schedule = Schedule(wanted.works, [g.node_id for g in leases], matching=len(leases) - 1)
    threads = FetchThreads(workspace, leases, schedule)
    with ThreadPoolExecutor(len(leases), thread_name_prefix="matching") as pool:
        for future in [pool.submit(match) for match in threads.matchers(wanted.works)]:
            future.result()
    with storing(workspace.root):
        # An executor sees by this file that it has the lake of its driver.
        workspace.root.mkdir(parents=True, exist_ok=True)
    bare = tuple(replace(lease, tables=()) for lease in leases)
    return [
        FetchPlan(
            workspace=workspace,
            part=part,
            leases=bare,
            works=tuple(works),
            streams=streams,
        )
        for part, works in enumerate(_spread(wanted, parts))
        if works
    ]


def _spread(wanted: Wanted, parts: int) -> list[list[FileWork]]:
    """Return the missing chunks in parts of about equal bytes; neighbours stay together."""
    share = max(1, -(-wanted.missing_bytes // parts))
    chosen: list[dict[FileWork, list[int]]] = [{} for _ in range(parts)]
    at = 0
    for work in wanted.works:
        for number in reversed(work.missing):
            chosen[at // share].setdefault(work, []).append(number)
            at += work.length(number)
    return [
        [replace(work, missing=numbers[::-1], digests={}) for work, numbers in files.items()]
        for files in chosen
    ]


def run_partition(plan: FetchPlan) -> FetchedPart:
    """Fetch the chunks of a part into the files of the workspace, durably; name no file.

    For `mapPartitions`: every process sees the lake under the plan's path.  A repeated part
    continues from its journals.

    Raises:
        StorageError: This process does not see the workspace (definite).
        TxLogError: As `fetch_files`; what is in place is in the journals.
    """
    began = time.monotonic()
    workspace = plan.workspace
    if not workspace.root.is_dir():
        raise StorageError(
            f"{workspace.root} is not there: this process does not see the lake of its driver",
            hint="Put the lake on storage that all executors share, or copy without them.",
            path=str(workspace.root),
        )
    inspector = Inspector(workspace, plan.leases[0].chunk_bytes)
    for work in plan.works:
        work.keep(inspector.chunks(work))
    schedule = Schedule(plan.works, [lease.node_id for lease in plan.leases], proving=False)
    threads = FetchThreads(workspace, plan.leases, schedule)
    threads.drive([], streams=plan.streams, prefix=f"p{plan.part}-")
    for work in plan.works:
        part = workspace.part(*work.task.key)
        with storing(part):
            sync_file(part)
    fetched = Fetched(
        fetched_bytes=schedule.fetched_bytes,
        wire_bytes=schedule.wire_bytes,
        fetch_s=time.monotonic() - began,
    )
    return FetchedPart(fetched=fetched, works=plan.works)


def keep_parts(workspace: CopyWorkspace, wanted: Wanted, done: Iterable[FetchedPart]) -> None:
    """Note the chunks that parts put in place, so that they are not hashed again."""
    works = {work.task.key: work for work in wanted.works}
    for part in done:
        for work in part.works:
            # An executor may have another directory with this name.
            if workspace.part(*work.task.key).exists():
                works[work.task.key].keep(work.digests)
