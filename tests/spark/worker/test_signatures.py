"""Signatures: free of order and layout, aware of NULLs and nesting, and a group."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F
from tests.support.worker_log import rows_table, table

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.apply import observing
from sparktxlog.worker.apply.observing import CountedBeside
from sparktxlog.worker.apply.signatures import (
    AGGREGATES,
    HASH_COLUMN,
    hashed,
    observed,
    row_hash,
    second_lane,
    signature_from,
    signature_of,
    sums_of,
)

pytestmark = pytest.mark.spark

NESTED = table(
    "nested",
    "id bigint, a.b array<struct<x:int,`y z`:array<string>>>, m map<string,map<int,double>>, "
    "s struct<a:int,b:string>, t timestamp, n timestamp_ntz, d decimal(20,3), f float, "
    "y binary, k tinyint, day date, b boolean",
)


def test_columns_of_the_definition_are_as_meant() -> None:
    assert [c.name for c in NESTED.columns][:3] == ["id", "a.b", "m"]


def signed(spark: SparkSession, definition: TableDefinition, rows: list[Any], path: Path) -> Any:
    pq.write_table(rows_table(definition, rows), path / "rows.parquet")
    return signature_of(spark.read.parquet(str(path / "rows.parquet")), definition)


def random_row(chance: random.Random) -> tuple[Any, ...]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.3 else value

    text = chance.choice(["", "a", "b", "é"])
    number = chance.randint(0, 3)
    inner = {"x": maybe(number), "y z": maybe([maybe(text) for _ in range(number)])}
    at = dt.datetime(2024, 1, 1 + number, tzinfo=dt.UTC)
    entries = [(str(i), maybe([(i, maybe(0.5 * number))])) for i in range(number)]
    chance.shuffle(entries)
    return (
        maybe(number),
        maybe([maybe(inner) for _ in range(chance.randint(0, 2))]),
        maybe(entries),
        maybe({"a": maybe(number), "b": maybe(text)}),
        maybe(at),
        maybe(at.replace(tzinfo=None)),
        maybe(Decimal(number) / 8),
        maybe(chance.choice([0.0, -1.5, float("nan")])),
        maybe(text.encode()),
        maybe(number),
        maybe(at.date()),
        maybe(chance.random() < 0.5),
    )


def test_order_layout_and_map_order_are_free_and_deltas_add_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(5)
    rows = [random_row(chance) for _ in range(300)]
    whole = signed(spark, NESTED, rows, tmp_path)
    assert whole.rows == 300
    turned = [
        (*row[:2], list(reversed(row[2])) if row[2] else row[2], *row[3:])
        for row in chance.sample(rows, len(rows))
    ]
    assert signed(spark, NESTED, turned, tmp_path) == whole
    spread = spark.read.parquet(str(tmp_path / "rows.parquet")).repartition(7)
    assert signature_of(spread, NESTED) == whole
    first = signed(spark, NESTED, rows[:100], tmp_path)
    rest = signed(spark, NESTED, rows[100:], tmp_path)
    assert first + rest == whole and whole - rest == first
    assert signed(spark, NESTED, [], tmp_path) == EMPTY_SIGNATURE


DIFFERENT = {
    "m map<string,int>, s struct<a:int,b:int>, l array<array<string>>, x int, y int": [
        (None, None, None, None, None),
        ([], None, None, None, None),
        ([("a", None)], None, None, None, None),
        ([("a", 1)], None, None, None, None),
        ([("a", 1), ("b", 2)], None, None, None, None),
        ([("a", 2), ("b", 1)], None, None, None, None),
        (None, {"a": None, "b": None}, None, None, None),
        (None, {"a": 1, "b": None}, None, None, None),
        (None, {"a": None, "b": 1}, None, None, None),
        (None, {"a": 1, "b": 1}, None, None, None),
        (None, None, [], None, None),
        (None, None, [None], None, None),
        (None, None, [[]], None, None),
        (None, None, [[None]], None, None),
        (None, None, [["1", "2"]], None, None),
        (None, None, [["1"], ["2"]], None, None),
        (None, None, [["2", "1"]], None, None),
        (None, None, None, 5, None),
        (None, None, None, None, 5),
        (None, None, None, 5, 5),
        (None, None, None, 42, None),
    ],
    "s array<struct<x:int,y:array<int>>>, i array<int>, n map<int,map<string,int>>, "
    "d struct<x:struct<y:int,w:int>,z:int>, k map<struct<p:int,q:int>,int>": [
        (None, None, None, None, None),
        ([], None, None, None, None),
        ([None], None, None, None, None),
        ([None, None], None, None, None, None),
        ([{"x": None, "y": None}], None, None, None, None),
        ([{"x": 1, "y": None}], None, None, None, None),
        ([{"x": None, "y": []}], None, None, None, None),
        ([{"x": None, "y": [None]}], None, None, None, None),
        ([{"x": None, "y": [1]}], None, None, None, None),
        ([{"x": 1, "y": [1]}], None, None, None, None),
        ([{"x": 1, "y": None}, {"x": None, "y": [1]}], None, None, None, None),
        ([{"x": None, "y": [1]}, {"x": 1, "y": None}], None, None, None, None),
        ([{"x": 1, "y": [1]}, None], None, None, None, None),
        ([None, {"x": 1, "y": [1]}], None, None, None, None),
        (None, [], None, None, None),
        (None, [None], None, None, None),
        (None, [0], None, None, None),
        (None, [0, 0], None, None, None),
        (None, [0, None], None, None, None),
        (None, [None, 0], None, None, None),
        (None, [1], None, None, None),
        (None, [1, 0], None, None, None),
        (None, None, [], None, None),
        (None, None, [(1, None)], None, None),
        (None, None, [(1, [])], None, None),
        (None, None, [(1, [("a", None)])], None, None),
        (None, None, [(1, [("a", 1)])], None, None),
        (None, None, [(1, [("a", 1)]), (2, None)], None, None),
        (None, None, [(1, None), (2, [("a", 1)])], None, None),
        (None, None, None, {"x": None, "z": None}, None),
        (None, None, None, {"x": {"y": None, "w": None}, "z": None}, None),
        (None, None, None, {"x": {"y": 1, "w": None}, "z": None}, None),
        (None, None, None, {"x": None, "z": 1}, None),
        (None, None, None, {"x": {"y": None, "w": None}, "z": 1}, None),
        # The last field of a struct, and the one after the struct.
        (None, None, None, {"x": {"y": None, "w": 1}, "z": None}, None),
        (None, None, None, None, [({"p": 1, "q": None}, None)]),
        (None, None, None, None, [({"p": None, "q": 1}, None)]),
        (None, None, None, None, [({"p": None, "q": None}, 1)]),
        (None, None, None, None, [({"p": 1, "q": None}, 1)]),
    ],
}


@pytest.mark.parametrize("columns", DIFFERENT)
def test_rows_that_differ_have_different_hashes(
    spark: SparkSession, tmp_path: Path, columns: str
) -> None:
    rows = DIFFERENT[columns]
    definition = table("t", columns)
    pq.write_table(rows_table(definition, rows), tmp_path / "rows.parquet")
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    found = hashed(frame, row_hash(definition.columns), keep=())
    hashes = found.select("*", second_lane()).collect()
    assert len({first for first, _ in hashes}) == len(rows)
    assert len({second for _, second in hashes}) == len(rows)
    assert not {first for first, _ in hashes} & {second for _, second in hashes}
    # Equal rows do not cancel.
    once = signed(spark, definition, rows[:1], tmp_path)
    assert signed(spark, definition, rows[:1] * 2, tmp_path) == once + once != EMPTY_SIGNATURE


def small_values(kind: pa.DataType, most: int = 2) -> list[Any]:
    """Return all values of a type that have NULL, 0 and 1, and so many elements at most."""
    if pa.types.is_struct(kind):
        fields = [small_values(field.type, 1) for field in kind]
        return [None, *(dict(zip(kind.names, one, strict=True)) for one in product(*fields))]
    if pa.types.is_list(kind):
        one = small_values(kind.value_type, 1)
        return [
            None,
            *(list(some) for size in range(most + 1) for some in product(one, repeat=size)),
        ]
    if pa.types.is_map(kind):
        keys = [key for key in small_values(kind.key_type, 1) if key is not None]
        return [None, [], *([entry] for entry in product(keys, small_values(kind.item_type, 1)))]
    return [None, 0, 1]


@pytest.mark.parametrize(
    "columns",
    [
        "a struct<x:struct<y:int,w:int>,z:int>, b int",
        "a array<struct<p:int,q:array<int>>>, b int",
        "a array<array<int>>, b array<int>",
        "a map<struct<p:int,q:int>,int>, b int",
        "a map<int,struct<p:array<int>,q:int>>, b int",
        "a struct<l:array<int>,m:map<int,int>>, b array<int>",
    ],
)
def test_all_small_rows_have_different_hashes(
    spark: SparkSession, tmp_path: Path, columns: str
) -> None:
    definition = table("t", columns)
    kinds = [arrow_type(column.type) for column in definition.columns]
    rows = list(product(*map(small_values, kinds)))
    pq.write_table(rows_table(definition, rows), tmp_path / "rows.parquet")
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    found = hashed(frame, row_hash(definition.columns), keep=()).distinct().count()
    assert found == len(rows) > 50


def test_sums_have_room_for_the_rows_of_any_lake(spark: SparkSession) -> None:
    """Of whole hashes, or of their halves, they end in an overflow at two billion rows."""
    rows = spark.range(4).select(F.lit(-1).cast("bigint").alias(HASH_COLUMN))
    found = rows.agg(*sums_of()).first()
    assert found is not None
    assert max(found[name] for name in AGGREGATES[1:]) < 4 << 22
    assert signature_from(found).lane0 == -4 % (1 << 64)


def test_a_new_nullable_column_changes_no_row(spark: SparkSession, tmp_path: Path) -> None:
    old, new = table("t", "id bigint, a string"), table("t", "id bigint, a string, z int")
    rows = [(1, "x"), (None, None)]
    before = signed(spark, old, rows, tmp_path)
    assert signed(spark, new, [(*row, None) for row in rows], tmp_path) == before
    assert signed(spark, new, [(*row, 0) for row in rows], tmp_path) != before


def test_an_observation_beside_a_write_signs_in_the_same_pass(
    spark: SparkSession, tmp_path: Path
) -> None:
    definition = table("t", "id bigint, a array<int>")
    rows = [(1, [1, None]), (2, None)]
    direct = signed(spark, definition, rows, tmp_path)
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    observation = Observation("signature")
    counted = observed(frame, observation, row_hash(definition.columns))
    counted.write.parquet(str(tmp_path / "written"))
    assert signature_from(observation.get) == direct


def test_an_observation_holds_no_variable_of_a_lambda(spark: SparkSession, tmp_path: Path) -> None:
    # Tasks send it back with the variable's last value, whose memory is free by then.
    signed(spark, NESTED, [random_row(random.Random(1))], tmp_path)
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    counted = observed(frame, Observation(), row_hash(NESTED.columns))
    plan = counted._jdf.queryExecution().optimizedPlan().toString().splitlines()
    (line,) = (line for line in plan if "CollectMetrics" in line)
    assert "lambda" not in line and any("lambda" in other for other in plan)


@pytest.mark.parametrize(("told", "counted_again"), [(1, False), (2, True), (None, True)])
def test_some_rows_are_counted_beside_a_job_or_once_more(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    told: int | None,
    counted_again: bool,
) -> None:
    monkeypatch.setattr(observing, "_PATIENCE_S", 0.2 if told is None else 30.0)
    definition = table("t", "id bigint, a array<int>")
    one = signed(spark, definition, [(2, None)], tmp_path)
    signed(spark, definition, [(1, [1, None]), (2, None)], tmp_path)
    frame = spark.read.parquet(str(tmp_path / "rows.parquet"))
    counting = CountedBeside(frame, definition, F.col("id") == 2)
    if told is not None:  # else no job ever says what it counted
        counting.rows.write.parquet(str(tmp_path / "written"))
    # With 2, as if a stage had run twice.
    assert counting.found(told or 1) == one
    assert ("counted again" in caplog.text) is counted_again


def test_rows_that_adaptive_execution_left_out_are_counted_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's own setting; tests have another one.  Its plan ends where a join has no rows."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "true")
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    definition = table("t", "id bigint, a array<int>")
    direct = signed(spark, definition, [(1, [1, None]), (2, None)], tmp_path)
    frame = session.read.parquet(str(tmp_path / "rows.parquet"))
    counting = CountedBeside(frame, definition, F.lit(True))
    nothing = frame.where("id > 2").select("id")
    counting.rows.join(nothing, "id").write.parquet(str(tmp_path / "written"))
    assert counting.found(0) == EMPTY_SIGNATURE and "counted" not in caplog.text
    assert counting.found(2) == direct and "counted again" in caplog.text
