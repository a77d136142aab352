"""Changes of a table: which files a batch has, where it ends, and the rows that tasks make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from tests.support.segments import effect, segment

from sparktxlog.api.streams.positions import ReadOptions
from sparktxlog.api.streams.table_changes import TableChanges, changes_schema, partition_value
from sparktxlog.errors import InvalidRequestError, PayloadStoreError, UnknownTableError
from sparktxlog.model.tables.alteration import DROPPED
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OP_COLUMN, POSITION_COLUMN, StagedFile
from sparktxlog.storage.interfaces import Segment, TableEffect

TABLE = TableDefinition(
    name="t",
    columns=(
        Column(name="id", type="bigint", nullable=False),
        Column(name="day", type="date"),
        Column(name="tags", type="array<string>"),
    ),
    keys=("id",),
)
DAY = date(2024, 2, 29)


class Log:
    """A published log of files in one directory."""

    def __init__(self, root: Path, segments: Sequence[Segment]) -> None:
        self.payload_root = root
        self._segments = segments

    def segments(self, after: int, upto: int) -> Iterator[Segment]:
        yield from (s for s in self._segments if s.last > after and s.first <= upto)

    def check_held(self, effects: Iterable[TableEffect]) -> None:
        pass

    def whole(self, after: int, upto: int) -> list[Segment]:
        return list(self.segments(after, upto))

    def queue_files(self, after: int, upto: int) -> list[str]:
        path = self.payload_root / "queue.parquet"
        last = self._segments[-1].last
        at = [datetime(2024, 1, 1, 0, position, tzinfo=UTC) for position in range(1, last + 1)]
        pq.write_table(
            pa.table(
                {
                    "position": pa.array(range(1, last + 1), pa.int64()),
                    "submitted_at": pa.array(at, pa.timestamp("us", "UTC")),
                }
            ),
            path,
        )
        return [str(path)]


def _file(root: Path, name: str, table: pa.Table, **fields: Any) -> StagedFile:
    pq.write_table(table, root / name)
    size = (root / name).stat().st_size
    return StagedFile(path=name, size_bytes=size, rows=table.num_rows, digest="", **fields)


def _rows(ids: Sequence[int], places: Sequence[tuple[int, int]] | None = None) -> pa.Table:
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "day": pa.array([DAY] * len(ids)),
        "tags": pa.array([["a", None]] * len(ids), pa.list_(pa.string())),
    }
    if places is not None:
        columns[POSITION_COLUMN] = pa.array([p for p, _ in places], pa.int64())
        columns[OP_COLUMN] = pa.array([o for _, o in places], pa.int32())
    return pa.table(columns)


def _log(root: Path) -> Log:
    """Return a log of two segments: inline appends 1-4, then one staged change a position."""
    inline = _rows([1, 2, 3, 4, 5], [(1, 0), (2, 0), (2, 1), (4, 0), (4, 0)])
    keys = pa.table({"id": pa.array([1], pa.int64())}).append_column(
        POSITION_COLUMN, pa.array([6], pa.int64())
    )
    keys = keys.append_column(OP_COLUMN, pa.array([0], pa.int32()))
    days = _rows([7, 8]).drop_columns(["day"])
    other = TableEffect(table="other", kind="delete_where", first=3, last=3, predicate="id = 1")
    return Log(
        root,
        [
            segment(
                1,
                4,
                effect("create_table", 1, definition=TABLE),
                effect("append", 1, 4, inline=True, files=(_file(root, "a.parquet", inline),)),
                other,
            ),
            segment(
                5,
                9,
                effect(
                    "upsert",
                    5,
                    op=2,
                    files=(_file(root, "u.parquet", days, partition={"day": "2024-02-29"}),),
                ),
                effect("delete_keys", 6, inline=True, files=(_file(root, "k.parquet", keys),)),
                effect("append", 9, files=(_file(root, "b.parquet", _rows(range(20, 26))),)),
            ),
        ],
    )


def _removing(root: Path) -> Log:
    """Return a log with an append, a delete by predicate, an inline overwrite and an append."""
    over = _rows([9, 10], [(3, 0), (3, 0)])
    return Log(
        root,
        [
            segment(
                1,
                4,
                effect("append", 1, files=(_file(root, "a.parquet", _rows([1])),)),
                effect("delete_where", 2, predicate="id < 5"),
                effect("overwrite", 3, inline=True, files=(_file(root, "o.parquet", over),)),
                effect("append", 4, files=(_file(root, "b.parquet", _rows([4])),)),
            )
        ],
    )


def _options(**options: str) -> ReadOptions:
    return ReadOptions.of({"table": "t"} | options)


def _read(log: Any, options: ReadOptions, after: int, upto: int) -> list[dict[str, Any]]:
    changes = TableChanges(options, changes_schema(TABLE, options))
    schema = to_arrow_schema(changes_schema(TABLE, options), timezone="UTC")
    rows = []
    for part in changes.plan(log, after, upto):
        for batch in changes.read(part, schema):
            assert batch.schema.equals(schema)
            rows += batch.to_pylist()
    return rows


def test_all_kinds_of_changes_with_their_places(tmp_path: Path) -> None:
    rows = _read(_log(tmp_path), _options(), 0, 9)
    places = [(r["_change_type"], r["_position"], r["_operation"], r["id"]) for r in rows]
    assert places[:8] == [
        ("append", 1, 0, 1),
        ("append", 2, 0, 2),
        ("append", 2, 1, 3),
        ("append", 4, 0, 4),
        ("append", 4, 0, 5),
        ("upsert", 5, 2, 7),
        ("upsert", 5, 2, 8),
        ("delete_keys", 6, 0, 1),
    ]
    assert len(places) == 14 and places[-1] == ("append", 9, 0, 25)
    assert rows[0]["tags"] == ["a", None]
    assert rows[5]["day"] == DAY  # of the partition
    assert (rows[7]["day"], rows[7]["tags"]) == (None, None)  # only its keys are known
    assert [r["_commit_timestamp"].minute for r in rows[:8]] == [1, 2, 2, 4, 4, 5, 5, 6]


def test_files_of_many_transactions_begin_at_their_run(tmp_path: Path) -> None:
    """P41: the rows of those that were rejected are in the file, and are not delivered."""
    many = _rows([1, 2, 3, 4], [(0, 0), (1, 0), (1, 1), (3, 0)])
    file = _file(tmp_path, "m.parquet", many)
    found = effect("append", 11, 13, run=10, left_out=(10,), files=(file,))
    log = Log(tmp_path, [segment(1, 13, found)])
    for options, after, upto in ((_options(), 0, 13), (_options(), 11, 13), (_options(), 0, 12)):
        rows = _read(log, options, after, upto)
        places = [(row["_position"], row["_operation"], row["id"]) for row in rows]
        wanted = [(11, 0, 2), (11, 1, 3), (13, 0, 4)]
        assert places == [place for place in wanted if after < place[0] <= upto]


def test_bounds_inside_a_segment_neither_repeat_nor_leave_out(tmp_path: Path) -> None:
    log = _log(tmp_path)
    whole = _read(log, _options(), 0, 9)
    for cut in range(10):
        parts = _read(log, _options(), 0, cut) + _read(log, _options(), cut, 9)
        assert parts == whole, cut


@pytest.mark.parametrize(
    ("after", "limit", "end"),
    [
        (0, 1, 1),
        (0, 2, 1),  # the transaction at 2 has two rows, and is not cut
        (0, 3, 3),  # 3 does nothing here
        (0, 5, 4),
        (0, 6, 4),  # the segment's rest has nine rows
        (0, 7, 5),
        (0, 8, 8),
        (0, 13, 8),
        (0, 14, 9),
        (1, 1, 2),  # one transaction has more rows than a batch: it is taken alone
        (8, 2, 9),
        (2, 100, 9),
    ],
)
def test_a_batch_ends_before_the_transaction_with_too_many_rows(
    tmp_path: Path, after: int, limit: int, end: int
) -> None:
    changes = TableChanges(_options(maxrowspertrigger=str(limit)), T.StructType())
    log: Any = _log(tmp_path)
    assert changes.cut(log, after, 9, limit) == end
    assert changes.cut(log, after, 9, None) == 9


def test_rows_that_are_removed_unnamed_stop_the_stream_after_what_came_before(
    tmp_path: Path,
) -> None:
    log: Any = _removing(tmp_path)
    changes = TableChanges(_options(), T.StructType())
    assert changes.cut(log, 0, 4, None) == 1
    for after, position in ((1, 2), (2, 3)):
        with pytest.raises(InvalidRequestError, match=f"position {position} .*deleteMarkers"):
            changes.cut(log, after, 4, None)
        with pytest.raises(InvalidRequestError, match=f"position {position} "):
            changes.plan(log, after, 4)
    assert changes.cut(log, 3, 4, None) == 4


def _dropping(root: Path) -> Log:
    """One row, a drop, and a table that is created again with one row."""
    old, new = (_file(root, f"{name}.parquet", _rows([1])) for name in ("a", "b"))
    return Log(
        root,
        [
            segment(
                1,
                4,
                effect("append", 1, files=(old,)),
                effect("drop_table", 2, change=DROPPED),
                effect("append", 4, files=(new,), schema_version=3),
            )
        ],
    )


def test_a_drop_ends_a_stream_after_what_came_before(tmp_path: Path) -> None:
    """Whatever the options say about rows that are removed."""
    log: Any = _dropping(tmp_path)
    for options in (_options(), _options(deletemarkers="true"), _options(skipchangecommits="true")):
        changes = TableChanges(options, changes_schema(TABLE, options))
        assert changes.cut(log, 0, 4, None) == 1
        with pytest.raises(UnknownTableError, match="dropped at position 2") as caught:
            changes.cut(log, 1, 4, None)
        assert caught.value.fields["position"] == 2 and caught.value.definite
        with pytest.raises(UnknownTableError, match="dropped at position 2"):
            changes.plan(log, 0, 4)


def test_a_stream_of_a_table_created_again_has_nothing_of_the_dropped_one(tmp_path: Path) -> None:
    """Its schema says which one it is of; the drop lies before it."""
    log: Any = _dropping(tmp_path)
    again = replace(TABLE, schema_version=3, first_version=3)
    changes = TableChanges(_options(), changes_schema(again, _options()))
    assert changes.cut(log, 0, 4, None) == 4
    (part,) = changes.plan(log, 0, 4)
    assert [piece.place for piece in part.pieces] == [(4, 0)]


def test_markers_show_the_predicate_before_the_rows_of_an_overwrite(tmp_path: Path) -> None:
    options = _options(deletemarkers="true")
    rows = _read(_removing(tmp_path), options, 0, 4)
    assert [(r["_position"], r["_change_type"], r["_predicate"], r["id"]) for r in rows] == [
        (1, "append", None, 1),
        (2, "delete_where", "id < 5", None),
        (3, "delete_where", "TRUE", None),
        (3, "overwrite", None, 9),
        (3, "overwrite", None, 10),
        (4, "append", None, 4),
    ]
    assert rows[1]["_commit_timestamp"].minute == 2


def test_only_appended_rows_on_request(tmp_path: Path) -> None:
    options = _options(skipchangecommits="true")
    assert [r["id"] for r in _read(_removing(tmp_path), options, 0, 4)] == [1, 4]
    kinds = {r["_change_type"] for r in _read(_log(tmp_path), options, 0, 9)}
    assert kinds == {"append"}


def test_a_file_that_is_gone_is_an_error_and_no_gap(tmp_path: Path) -> None:
    log = _log(tmp_path)
    (tmp_path / "u.parquet").unlink()
    with pytest.raises(PayloadStoreError, match=r"u\.parquet"):
        _read(log, _options(), 0, 9)


def test_a_table_with_a_column_of_the_log_is_refused() -> None:
    table = TableDefinition(name="t", columns=(Column(name="_Position", type="bigint"),))
    with pytest.raises(InvalidRequestError, match="_position"):
        changes_schema(table, _options())


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (None, pa.int64(), None),
        ("-5", pa.int64(), -5),
        ("true", pa.bool_(), True),
        ("a=b", pa.string(), "a=b"),
        ("2024-02-29", pa.date32(), DAY),
        ("", pa.int32(), None),
        ("", pa.string(), None),
        ("1.50", pa.decimal128(10, 2), Decimal("1.50")),
        ("1.5", pa.decimal128(10, 2), Decimal("1.50")),
        ("-Infinity", pa.float64(), float("-inf")),
        ("2024-01-31 10:00:00.25", pa.timestamp("us"), datetime(2024, 1, 31, 10, 0, 0, 250_000)),
        (
            "2024-01-31T10:00:00.000001Z",
            pa.timestamp("us", "UTC"),
            datetime(2024, 1, 31, 10, 0, 0, 1, tzinfo=UTC),
        ),
        (
            "2024-01-31 10:00:00",
            pa.timestamp("us", "UTC"),
            datetime(2024, 1, 31, 10, tzinfo=UTC),
        ),
    ],
)
def test_partition_values_are_read_as_they_are_written(
    text: str | None, kind: pa.DataType, value: Any
) -> None:
    assert partition_value(text, kind).as_py() == value
