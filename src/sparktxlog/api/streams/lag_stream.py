"""The history `lag` as a stream: rows in the order of their times.

Each node keeps its own history, so a query stays with the node that it began with.  An offset is
the time of the last row that was delivered; rows of one time are written together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sparktxlog.api.schema import arrow_schema_of
from sparktxlog.api.staging.staged_append import nodes_of
from sparktxlog.api.streams.positions import EARLIEST, LATEST, ReadOptions
from sparktxlog.api.streams.reader import ReadLimit, SupportsTriggerAvailableNow
from sparktxlog.codec.state_views import KEPT
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import ForeignLogError, InvalidRequestError

_LAG = KEPT["lag"]


@dataclass(frozen=True)
class _Piece(InputPartition):
    """Files of the table, and the times between which their rows are wanted, microseconds."""

    paths: tuple[str, ...]
    after: int
    until: int


class LagStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the history from time to time.

    Args:
        options: Those of the data source.
        schema: Columns of the stream.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._starting = ReadOptions.of(options).starting
        if self._starting not in (EARLIEST, LATEST, 1):
            raise InvalidRequestError(
                f"startingPosition is {self._starting}, and 'lag' has no positions",
                hint="Use 'earliest' or 'latest'.",
                field="startingPosition",
            )
        self._schema: pa.Schema = arrow_schema_of(schema)
        #: Where a query with Trigger.AvailableNow ends.
        self._target: int | None = None

    def _info(self) -> dict[str, Any]:
        return nodes_of(self._options).choose()[1]

    def _files(self, log_root: str) -> tuple[str, ...]:
        table = Path(log_root) / _LAG.directory
        if newest_commit(table) < 0:  # nothing was measured yet
            return ()
        return tuple(sorted(str(table / path) for path in LogState.read(table).adds))

    def _latest(self) -> tuple[str, int]:
        """Return the node, and the time of its last row, 0 = it has none."""
        info = self._info()
        files = self._files(info["log_root"])
        if not files:
            return info["node_id"], 0
        last = pc.max(dataset(files).to_table(columns=[_LAG.order])[_LAG.order]).as_py()
        return info["node_id"], 0 if last is None else _micros(last)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the name that Spark calls
        """Return where a query without a checkpoint begins."""
        node, last = self._latest()
        return {"node": node, "until": last if self._starting == LATEST else 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the name that Spark calls
        """Note where the history ends now."""
        self._target = self._latest()[1]

    def latestOffset(  # noqa: N802 - the name that Spark calls
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next batch, or `start` if there is none."""
        node, last = self._latest()
        self._check(start, node)
        last = last if self._target is None else min(last, self._target)
        return {"node": node, "until": max(last, int(start["until"]))}

    def _check(self, offset: Mapping[str, Any], node: str) -> None:
        if offset.get("node") != node:
            raise ForeignLogError(
                f"the query has read 'lag' of node {offset.get('node')!r}, this is "
                f"{node!r}, which keeps a history of its own",
                hint="Give the URL of that node, or a new checkpoint.",
            )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks of a batch read; what has expired since is not delivered again."""
        info = self._info()
        self._check(end, info["node_id"])
        return [_Piece(self._files(info["log_root"]), int(start["until"]), int(end["until"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield rows; runs in a task."""
        assert isinstance(partition, _Piece)
        if not partition.paths:
            return
        column, kind = pc.field(_LAG.order), pa.timestamp("us", "UTC")
        after, until = (pa.scalar(at, kind) for at in (partition.after, partition.until))
        found = dataset(partition.paths).to_table(filter=(column > after) & (column <= until))
        yield from found.select(self._schema.names).cast(self._schema).to_batches()


def _micros(at: datetime) -> int:
    """Return microseconds since 1970 UTC, exactly."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
