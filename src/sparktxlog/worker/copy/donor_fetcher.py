"""Files of a copy fetched from donors, by the driver's threads or by Spark's executors.

Both leave whole, verified, durable files in the workspace; executors only take chunks off the
driver's hands, and what they could not fetch it fetches itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.model.copying import CopyTicket, Grant, OfferedFile, OfferedTable
from sparktxlog.worker.copy.copy_terms import Fetched, Fetcher, FetcherOf
from sparktxlog.worker.copy.fetch.donor_link import LeaseKeeper, release_leases
from sparktxlog.worker.copy.fetch.fetch import fetch_files
from sparktxlog.worker.copy.fetch.parts import plan_parts, run_partition
from sparktxlog.worker.copy.fetch.selection import Wanted, require_space, select_files, wanted_files
from sparktxlog.worker.copy.fetch.tasks import ChunkRecord, FetchPlan, FetchStats, FileTask
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, disk_error, remove_others
from sparktxlog.worker.verify.watching import watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Chunks fetched at once by each task of an executor.
TASK_STREAMS = 2
#: Seconds between two lines about progress.
PROGRESS_S = 5.0


class DonorFetcher(Fetcher):
    """Fetches with threads of this process.

    Args:
        lake: Root of the replica's tables.
        copy_id: Names the workspace.
    """

    def __init__(self, lake: Path, copy_id: str) -> None:
        self._lake = lake
        self._space = CopyWorkspace(lake, copy_id)
        self._keeper: LeaseKeeper | None = None
        self._streams = 1
        self._shown = monotonic()

    def staged(self, table: str) -> Path:
        """As `Fetcher`."""
        return self._space.table_dir(table)

    def hold(self, ticket: CopyTicket) -> None:
        """As `Fetcher`; Spark may work for long between two chunks."""
        self._streams = ticket.streams
        self._keeper = LeaseKeeper(ticket.grants)
        self._keeper.__enter__()

    def select(
        self, grants: Sequence[Grant], offered: OfferedTable, files: Sequence[OfferedFile]
    ) -> Wanted:
        """As `Fetcher`; errors of `select_files`."""
        paths = [file.path for file in files]
        self._make_root()
        self._adopt(wanted_files(offered, paths))
        table = self._lake / offered.definition.name
        return select_files(self._space, grants[0], offered, paths, table)

    def require_space(self, wanted: Sequence[Wanted]) -> None:
        """As `Fetcher`."""
        self._make_root()
        require_space(self._space, [task for part in wanted for task in part.tasks])

    def fetch(self, grants: Sequence[Grant], wanted: Wanted) -> Fetched:
        """As `Fetcher`; errors of `fetch_files`."""
        began = monotonic()
        wire_bytes, resumed_bytes = self._bring(grants, wanted.tasks) if wanted.tasks else (0, 0)
        return Fetched(
            size_bytes=wanted.size_bytes,
            wire_bytes=wire_bytes,
            reused_bytes=wanted.reused_bytes + resumed_bytes,
            fetch_s=monotonic() - began,
        )

    def _make_root(self) -> None:
        try:
            self._space.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, self._space.root) from error

    def _adopt(self, tasks: Sequence[FileTask]) -> None:
        for older in CopyWorkspace.found(self._lake):
            if older.copy_id != self._space.copy_id:
                self._space.adopt(older, tasks)

    def _bring(self, grants: Sequence[Grant], tasks: Sequence[FileTask]) -> tuple[int, int]:
        """Fetch; return bytes over the network, and bytes that were in the workspace."""
        stats = self._fetch(grants, tasks, ())
        return stats.wire_bytes, stats.resumed_bytes

    def _fetch(
        self,
        grants: Sequence[Grant],
        tasks: Sequence[FileTask],
        known: Iterable[ChunkRecord],
    ) -> FetchStats:
        return fetch_files(
            self._space, grants, tasks, streams=self._streams, progress=self._show, known=known
        )

    def _show(self, done_bytes: int, total_bytes: int) -> None:
        if monotonic() - self._shown >= PROGRESS_S:
            self._shown = monotonic()
            _tell(done_bytes, total_bytes)

    def release(self, grants: Sequence[Grant]) -> None:
        """As `Fetcher`; one that cannot be given back expires by itself."""
        if self._keeper is None:
            return
        self._keeper.__exit__(None, None, None)
        self._keeper = None
        for node_id, reason in release_leases(grants).items():
            _logger.info("lease of %s is not given back: %s", node_id, reason)

    def remove(self) -> None:
        """As `Fetcher`, with what earlier copies left."""
        self._space.remove()
        remove_others(self._lake)


class ExecutorFetcher(DonorFetcher):
    """Spreads the chunks over Spark's tasks; the driver proves the files and names them.

    Args:
        spark: Its executors must see the lake under the same path.
        parts: Tasks at most, 0 = as many as Spark has cores.
    """

    def __init__(self, lake: Path, copy_id: str, spark: SparkSession, parts: int) -> None:
        super().__init__(lake, copy_id)
        self._spark = spark
        self._parts = parts or spark.sparkContext.defaultParallelism

    def _bring(self, grants: Sequence[Grant], tasks: Sequence[FileTask]) -> tuple[int, int]:
        parted = plan_parts(self._space, grants, tasks, parts=self._parts, streams=TASK_STREAMS)
        done: list[FetchStats] = []
        if parted.plans:
            try:
                with watched(lambda: self._look(tasks)):
                    done = (
                        self._spark.sparkContext.parallelize(parted.plans, len(parted.plans))
                        .mapPartitions(_run_plans)
                        .collect()
                    )
            except (PySparkException, Py4JError) as error:
                _logger.warning("executors failed, the driver fetches: %s", str(error)[:500])
        records = [*parted.records, *(record for part in done for record in part.records)]
        rest = self._fetch(grants, tasks, records)
        wire_bytes = rest.wire_bytes + sum(part.wire_bytes for part in done)
        by_parts = sum(part.fetched_bytes for part in done)
        return wire_bytes, max(0, rest.resumed_bytes - by_parts)

    def _look(self, tasks: Sequence[FileTask]) -> None:
        total_bytes = sum(task.size_bytes for task in tasks)
        _tell(total_bytes - self._space.missing_bytes(tasks), total_bytes)


def _tell(done_bytes: int, total_bytes: int) -> None:
    _logger.info(
        "%s of %s bytes are here", f"{done_bytes:,}", f"{total_bytes:,}",
        extra={"done": done_bytes, "total": total_bytes},
    )  # fmt: skip


def _run_plans(plans: Iterable[FetchPlan]) -> Iterator[FetchStats]:
    return (run_partition(plan) for plan in plans)


def executor_fetcher(spark: SparkSession, parts: int = 0) -> FetcherOf:
    """Return what opens fetchers that use Spark's executors."""
    return lambda lake, copy_id: ExecutorFetcher(lake, copy_id, spark, parts)
