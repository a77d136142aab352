"""Changed files are copied by Arrow: rows, signatures and files are those that Spark would make."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.worker.test_apply import apply, check
from tests.support.worker_log import LogBuilder, Row, table

from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import InvariantViolation
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.worker.apply import merging
from sparktxlog.worker.apply.rewriting import Copied, rewrite
from sparktxlog.worker.apply.row_copying import RowPlaces
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.replica.state import read_state

pytestmark = pytest.mark.spark

ITEMS = table(
    "items",
    "id bigint, item string, place string, amount decimal(20,3), f float, tags array<struct<x:int,"
    "y:string>>, m map<string,int>, at timestamp, local timestamp_ntz, day date, raw binary, "
    "n int",
    keys=["id"],
)


def item(number: int, text: str = "x") -> Row:
    some = number % 3 > 0
    at = dt.datetime(2024, 1, 1 + number % 20, 12, 0, 0, number)
    return (
        number,
        text,
        [None, "a b/%é", "c"][number % 3],
        Decimal(number) / 8 if some else None,
        number / 4,
        [{"x": number, "y": None}, None] if some else [],
        [("k", number), ("l", None)] if some else None,
        at.replace(tzinfo=dt.UTC),
        at,
        at.date(),
        b"\x00\xff" * number if some else None,
        number if some else None,
    )


def copies(monkeypatch: pytest.MonkeyPatch, least: int = 0) -> list[int]:
    """Let small files be copied, too; return how many were copied by each commit."""
    found: list[int] = []

    def noted(session: Any, place: Path, definition: Any, files: list[Copied]) -> Any:
        found.append(sum(one.gone is not None for one in files))
        return rewrite(session, place, definition, files)

    monkeypatch.setattr(merging, "_LEAST_COPIED", least)
    monkeypatch.setattr(merging, "rewrite", noted)
    return found


@pytest.mark.parametrize("partition_by", [(), ("place",)])
def test_copied_files_have_the_rows_and_the_signature_of_the_log(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partition_by: tuple[str, ...],
) -> None:
    found = copies(monkeypatch)
    log, lake = LogBuilder(tmp_path), tmp_path / "l ké"
    log.transaction().create(replace(ITEMS, partition_by=partition_by))
    log.transaction().staged("append", "items", [item(i) for i in range(40)], files=2)
    log.transaction().inline("append", "items", [item(7, "twin"), item(50, "alone")])
    log.publish()
    apply(spark, log, lake)
    log.transaction().staged("upsert", "items", [item(i, "up") for i in (3, 7, 8, 60)])
    log.inline("delete_keys", "items", [(5,), (1234,)])
    log.delete_where("items", "item = 'x' AND n >= 31", lambda r: r[1] == "x" and (r[-1] or 0) > 30)
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    before = live_files(lake / "items")
    log.transaction().staged("delete_keys", "items", [(50,), (60,), (1,)])
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    assert len(found) == 2 and all(found)
    # New rows are in the copied files: each batch would leave one more file else.
    places = 3 if partition_by else 1
    assert len(before.sizes) <= 1 + 2 * (places - 1)
    assert len(live_files(lake / "items").sizes) <= len(before.sizes)
    adds = LogState.read(lake / "items", 3).adds.values()
    stats = [json.loads(add["stats"]) for add in adds]
    assert (
        sum(one["numRecords"] for one in stats)
        == spark.read.format("delta").load(str(lake / "items")).count()
    )
    # A file that was staged, and had no row to lose, is as it was.
    bounds = [one["minValues"] for one in stats if "minValues" in one]
    assert len(bounds) >= places
    assert all({"id", "day"} <= one.keys() and "tags" not in one for one in bounds)
    # Spark alone makes the same.
    other = tmp_path / "other"
    monkeypatch.setattr(merging, "reaches_python", lambda _: False)
    apply(spark, log, other)
    check(spark, log, other)
    assert len(found) == 2
    states = [read_state(place) for place in (lake, other)]
    assert states[0] is not None and states[1] is not None
    assert states[0].tables["items"].signature == states[1].tables["items"].signature


def test_files_that_arrow_must_not_copy_are_written_by_spark_in_the_same_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files from before a column became wider hold another type."""
    found, log, lake = copies(monkeypatch), LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(table("t", "id bigint, n int", keys=["id"]))
    log.transaction().staged("append", "t", [(i, i) for i in range(10)])
    log.publish()
    apply(spark, log, lake)
    log.transaction().alter("t", TableChange(widen=(("n", "bigint"),)))
    log.transaction().staged("append", "t", [(i, i) for i in range(10, 20)])
    log.publish()
    apply(spark, log, lake)
    log.transaction().staged("upsert", "t", [(3, 2**40), (13, -(2**40)), (99, 1)])
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    assert found == [1]


def test_little_is_written_by_spark_in_one_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, log, lake = copies(monkeypatch, 1 << 20), LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(table("t", "id bigint", keys=["id"]))
    log.transaction().staged("append", "t", [(i,) for i in range(10)])
    log.publish()
    apply(spark, log, lake)
    log.transaction().staged("upsert", "t", [(3,)])
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    assert not found


def test_other_rows_than_those_that_were_found_are_never_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(table("t", "id bigint", keys=["id"]))
    log.transaction().staged("append", "t", [(i,) for i in range(10)])
    log.publish()
    apply(spark, log, lake)
    (add,) = LogState.read(lake / "t", 1).adds.values()
    gone = RowPlaces()
    gone.add(0, 2, bytes([1]) + bytes(4095))
    with pytest.raises(InvariantViolation, match="1 rows were left out, 2 were found"):
        rewrite(applier_session(spark), lake / "t", log.tables["t"], [Copied(add, "f", gone)])
