"""The source of a streaming query, and the same rows for a plain read.

Spark keeps one reader for the planning of a query, in a Python process next to the driver, and
pickles another one to the tasks, which call only its `read`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sparktxlog.api.schema import arrow_schema_of
from sparktxlog.api.streams.positions import EARLIEST, LATEST, LogOffset, ReadOptions
from sparktxlog.api.streams.published import StreamedLog, expired
from sparktxlog.api.streams.table_changes import QueueRows, RowsPart, TableChanges
from sparktxlog.errors import InvalidRequestError, PositionNotReachedError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:  # Spark 4.1: plain reads only, see `check_streams`
    ReadAllAvailable = ReadLimit = ReadMaxRows = None  # type: ignore[assignment,misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

__all__ = [
    "ChangesReader",
    "ReadLimit",
    "SupportsTriggerAvailableNow",
    "TxLogStreamReader",
    "check_streams",
]

#: Longest wait for something new, seconds: a query that is stopped waits for it.
_POLL_S = 0.5
_NO_LIMIT = 1 << 62


def check_streams() -> None:
    """Refuse a stream where Spark does not say where a batch begins when it asks for its end.

    Raises:
        InvalidRequestError: Spark is older than 4.2 (definite).
    """
    if SupportsTriggerAvailableNow is object:
        raise InvalidRequestError(
            f"streams are read of the log with Spark 4.2, this is {pyspark.__version__}",
            hint="Read what was published with spark.read, or use pyspark 4.2.",
        )


class TxLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the queue, or the changes of a table, from position to position.

    Args:
        options: Those of the data source.
        schema: Columns of the stream.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._read_options = ReadOptions.of(options)
        self._schema: pa.Schema = arrow_schema_of(schema)
        self._rows = (
            QueueRows()
            if self._read_options.table is None
            else TableChanges(self._read_options, schema)
        )
        #: Made by the planner; tasks have none.
        self._log: StreamedLog | None = None
        self._initial: LogOffset | None = None
        #: Where a query with Trigger.AvailableNow ends.
        self._target: int | None = None
        self._latest: LogOffset | None = None

    @property
    def _published(self) -> StreamedLog:
        if self._log is None:
            self._log = StreamedLog(self._options, self._read_options.timeout_s)
        return self._log

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name that Spark calls
        """Return where a query without a checkpoint begins.

        Raises:
            ExpiredError: The log begins after it (definite).
            PositionNotReachedError: The node has not published what comes before it (definite).
        """
        if self._initial is None:
            self._initial = self._published.offset(self._begin())
        return self._initial.to_json()

    def _begin(self) -> int:
        info = self._published.info()
        published, starting = int(info["published"]), self._read_options.starting
        if starting == LATEST:
            return published
        if starting == EARLIEST:
            return int(info["kept_after"])
        before = int(starting) - 1
        if before < int(info["kept_after"]):
            raise expired(before)
        wait_s = self._read_options.timeout_s
        if before > published and self._published.published(before, wait_s) < before:
            raise PositionNotReachedError(
                f"startingPosition is {starting}, and {info['node_id']} has published up to "
                f"{published}",
                hint="Use 'latest' to begin with the next transaction.",
                position=before,
            )
        return before

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name that Spark calls
        """Tell Spark whether batches are limited; the limits themselves are options."""
        if not self._read_options.is_limited:
            return ReadAllAvailable()
        return ReadMaxRows(self._read_options.max_rows or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name that Spark calls
        """Note where the log ends now."""
        self._target = int(self._published.info()["published"])

    def latestOffset(  # noqa: N802 - the name that Spark calls
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next batch, or `start` if there is none."""
        limited = not isinstance(limit, ReadAllAvailable)
        end = self._end(LogOffset.from_json(start), limited)
        return start if end is None else end.to_json()

    def _end(self, start: LogOffset, limited: bool) -> LogOffset | None:
        options, after = self._read_options, start.position
        self._published.check(start)
        wait_s = _POLL_S if self._target is None else 0.0
        upto = self._published.published(after + 1, wait_s)
        if self._latest is None or upto > self._latest.position:
            self._latest = LogOffset(start.log_id, upto, "")
        bounds = [upto, self._target, options.ending]
        if limited and options.max_transactions is not None:
            bounds.append(after + options.max_transactions)
        upto = min(bound for bound in bounds if bound is not None)
        if upto <= after:
            return None
        upto = self._rows.cut(self._published, after, upto, options.max_rows if limited else None)
        return self._published.offset(upto)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - the name that Spark calls
        """Return the end of the log, as the last batch saw it, for the query's progress."""
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks of a batch read, also of a batch that is run again elsewhere."""
        first, last = LogOffset.from_json(start), LogOffset.from_json(end)
        for offset in (first, last):
            self._published.check(offset)
        return self._rows.plan(self._published, first.position, last.position)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield rows; runs in a task."""
        assert isinstance(partition, RowsPart)
        return self._rows.read(partition, self._schema)

    def bounded(self) -> list[InputPartition]:
        """Return what the tasks of a plain read get: all from the start to what is there now.

        Raises:
            InvalidRequestError: A transaction removes rows by a predicate; see `TableChanges`.
        """
        start = self.initialOffset()
        after = LogOffset.from_json(start).position
        ending = self._read_options.ending
        upto = int(self._published.info()["published"])
        upto = upto if ending is None else min(upto, ending)
        return list(self._rows.plan(self._published, after, upto)) if upto > after else []


class ChangesReader(DataSourceReader):
    """The changes of a table in a plain read, fixed when the DataFrame is planned.

    Args:
        stream: Reads them.
    """

    def __init__(self, stream: TxLogStreamReader) -> None:
        self._parts = stream.bounded()
        self._rows, self._schema = stream._rows, stream._schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return what tasks read."""
        return self._parts or [RowsPart((), (), 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield rows; runs in a task."""
        assert isinstance(partition, RowsPart)
        if partition.pieces:
            yield from self._rows.read(partition, self._schema)
