"""The lag as a stream: from time to time, of one node, without a row twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from sparktxlog.api.streams import lag_stream
from sparktxlog.api.streams.lag_stream import LagStreamReader
from sparktxlog.errors import ForeignLogError, InvalidRequestError
from sparktxlog.storage.log_tables.history_tables import HistoryTables

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = StructType(
    [StructField("sampled_at", TimestampType()), StructField("transactions", LongType())]
)


class StandIn:
    """A node with a name and a directory."""

    def __init__(self, log_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node_id, self._log_root = "A", log_root
        monkeypatch.setattr(lag_stream, "nodes_of", lambda _: self)

    def choose(self) -> tuple[None, dict[str, Any]]:
        return None, {"node_id": self.node_id, "log_root": str(self._log_root)}

    def measure(self, *seconds: int) -> None:
        """Have a row at each of these seconds."""
        row = {"node_id": "A", "worker_id": "w", "position": 1}
        HistoryTables(self._log_root, "i").append_rows(
            "lag",
            [
                row | {"sampled_at": BEGIN + timedelta(seconds=one), "transactions": one}
                for one in seconds
            ],
        )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(tmp_path, monkeypatch)


def batch(reader: LagStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return sorted(
        row["transactions"]
        for partition in reader.partitions(start, end)
        for found in reader.read(partition)
        for row in found.to_pylist()
    )


def test_each_row_is_in_one_batch(node: StandIn) -> None:
    reader = LagStreamReader({}, SCHEMA)
    start = reader.initialOffset()
    assert start == {"node": "A", "until": 0}
    assert reader.latestOffset(start, None) == start, "there is no table yet"  # type: ignore[arg-type]
    assert batch(reader, start, start) == []
    node.measure(1, 2)
    first = reader.latestOffset(start, None)  # type: ignore[arg-type]
    assert batch(reader, start, first) == [1, 2]
    node.measure(3)
    second = reader.latestOffset(first, None)  # type: ignore[arg-type]
    assert batch(reader, first, second) == [3]
    assert batch(reader, start, first) == [1, 2], "a batch that is repeated is the same"
    assert LagStreamReader({"startingposition": "latest"}, SCHEMA).initialOffset() == second


def test_a_query_that_ends_does_not_wait_for_what_comes(node: StandIn) -> None:
    node.measure(1)
    reader = LagStreamReader({}, SCHEMA)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    node.measure(2)
    assert batch(reader, start, reader.latestOffset(start, None)) == [1]  # type: ignore[arg-type]


def test_another_node_has_another_history(node: StandIn) -> None:
    node.measure(1)
    reader = LagStreamReader({}, SCHEMA)
    start = reader.initialOffset()
    node.node_id = "B"
    for ask in (
        lambda: reader.latestOffset(start, None),  # type: ignore[arg-type]
        lambda: reader.partitions(start, start),
    ):
        with pytest.raises(ForeignLogError, match="'lag' of node 'A', this is 'B'"):
            ask()


def test_it_has_no_positions_to_start_from() -> None:
    with pytest.raises(InvalidRequestError, match="'lag' has no positions"):
        LagStreamReader({"startingposition": "7"}, SCHEMA)
