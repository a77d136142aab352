"""Fetches the files of a copy from a donor, by the driver's threads or by Spark's executors.

Both leave complete, verified, durable files in the workspace.  The driver fetches what executors
could not fetch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.files.donor_link import LeaseKeeper
from sparktxlog.files.fetch import (
    FetchPart,
    fetch_files,
    fetch_part,
    split,
    unstaged,
)
from sparktxlog.files.selection import (
    Wanted,
    missing_bytes,
    require_space,
    select_files,
)
from sparktxlog.files.tasks import Fetched, FileTask
from sparktxlog.files.workspace import CopyWorkspace, remove_workspaces
from sparktxlog.model.copying import CopyTicket, Lease, OfferedFile
from sparktxlog.worker.verify.watching import watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Chunks fetched at once by each task of an executor.
TASK_STREAMS = 2
#: Seconds between two lines about progress.
PROGRESS_S = 5.0


class DonorFetcher:
    """Fetches a donor's files into the workspace of one copy; present files are not repeated.

    Threads of this process fetch.

        hold → select (all tables) → require_space (all of it at once) → fetch (table by table)
             → release → remove

    Args:
        lake: Root of the replica's tables.
        copy_id: Names the workspace.
    """

    def __init__(self, lake: Path, copy_id: str) -> None:
        self._space = CopyWorkspace(lake, copy_id)
        self._keeper: LeaseKeeper | None = None
        self._lease: Lease | None = None
        self._streams = 1
        self._shown = monotonic()

    def hold(self, ticket: CopyTicket) -> None:
        """Fetch with a ticket from now on; keep its lease alive until `release`."""
        self._lease, self._streams = ticket.lease, ticket.streams
        self._keeper = LeaseKeeper(ticket.lease)

    def staged(self, table: str) -> Path:
        """Return the directory that a table's files are fetched to."""
        return self._space.table_dir(table)

    def select(self, table: str, files: Sequence[OfferedFile]) -> Wanted:
        """Stage the offered files of a table that are here; return those that must be fetched.

        Raises:
            TxLogError: As `select_files`.
        """
        self._space.adopt_older()
        return select_files(self._space, self.lease, [FileTask.of(table, file) for file in files])

    @property
    def lease(self) -> Lease:
        """The lease in use."""
        assert self._lease is not None
        return self._lease

    def require_space(self, wanted: Sequence[Wanted]) -> None:
        """Check that all files to fetch fit together on the disk of the lake.

        Raises:
            DiskFullError: It does not (definite); nothing was fetched.
        """
        require_space(self._space, [work for part in wanted for work in part.works])

    def fetch(self, wanted: Wanted) -> Fetched:
        """Fetch the selected files, verified and durable; errors of `fetch_files`."""
        return fetch_files(
            self._space, self.lease, wanted, streams=self._streams, progress=self._show
        )

    def _show(self, done_bytes: int, total_bytes: int) -> None:
        if monotonic() - self._shown >= PROGRESS_S:
            self._shown = monotonic()
            _tell(done_bytes, total_bytes)

    def release(self) -> None:
        """Release the lease; one that no longer exists is no error."""
        if self._keeper is not None:
            self._keeper.release()
            self._keeper = None

    def remove(self) -> None:
        """Remove the workspace, and those of earlier copies."""
        remove_workspaces(self._space.lake)


#: Opens the fetcher of a copy: lake, copy id.
FetcherOf = Callable[[Path, str], DonorFetcher]


class ExecutorFetcher(DonorFetcher):
    """Distributes the files over Spark tasks.

    Args:
        spark: Its executors must see the lake under the same path.
        parts: Tasks at most, 0 = as many as Spark has cores.
    """

    def __init__(self, lake: Path, copy_id: str, spark: SparkSession, parts: int) -> None:
        super().__init__(lake, copy_id)
        self._spark = spark
        self._parts = parts or spark.sparkContext.defaultParallelism

    def fetch(self, wanted: Wanted) -> Fetched:
        """As `DonorFetcher`; what executors cannot fetch, the driver fetches."""
        began, done = monotonic(), list[Fetched]()
        parts = split(self._space, self.lease, wanted, parts=self._parts, streams=TASK_STREAMS)
        if parts:
            try:
                with watched(lambda: self._look(wanted)):
                    done = (
                        self._spark.sparkContext.parallelize(parts, len(parts))
                        .mapPartitions(_fetch_parts)
                        .collect()
                    )
            except (PySparkException, Py4JError) as error:
                _logger.warning("executors failed, the driver fetches: %s", str(error)[:500])
                wanted = select_files(self._space, self.lease, wanted.tasks)
        reused_bytes = wanted.size_bytes - wanted.missing_bytes
        left = replace(wanted, works=unstaged(self._space, wanted.works))
        fetched = sum(done, super().fetch(left))
        return replace(
            fetched,
            size_bytes=wanted.size_bytes,
            reused_bytes=reused_bytes,
            fetch_s=monotonic() - began,
        )

    def _look(self, wanted: Wanted) -> None:
        missing = missing_bytes(self._space, wanted.works)
        _tell(wanted.size_bytes - missing, wanted.size_bytes)


def _tell(done_bytes: int, total_bytes: int) -> None:
    _logger.info(
        "%s of %s bytes are here",
        f"{done_bytes:,}",
        f"{total_bytes:,}",
        extra={"done": done_bytes, "total": total_bytes},
    )


def _fetch_parts(parts: Iterable[FetchPart]) -> Iterator[Fetched]:
    return (fetch_part(part) for part in parts)


def executor_fetcher(spark: SparkSession, parts: int = 0) -> FetcherOf:
    """Return a function that opens fetchers with Spark's executors."""
    return lambda lake, copy_id: ExecutorFetcher(lake, copy_id, spark, parts)
