"""MERGE of a transaction leaves what Delta's own MERGE leaves, and loses no update."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode

from sparktxlog import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.errors import (
    ConflictError,
    InvalidRequestError,
    InvalidRowsError,
    KeyConditionError,
    LocalProtocolError,
    SchemaMismatchError,
)

_STOCK = "id bigint not null, n bigint, note string"
_FIRST = [(1, 10, "a"), (2, 20, "b"), (3, 30, None), (4, 40, "d"), (5, 50, "e")]
_SOURCE = [(1, 1, "x"), (2, 0, "y"), (3, None, "z"), (8, 8, "w"), (9, 0, None)]


def _all_kinds(merge: Any) -> None:
    (
        merge.whenMatchedDelete("source.n = 0")
        .whenMatchedUpdate("source.n is not null", {"n": "target.n - source.n"})
        .whenMatchedUpdate(set={"note": F.concat(F.col("source.note"), F.lit("!"))})
        .whenNotMatchedInsert("source.n > 0", {"id": "source.id", "n": "source.n * 2"})
        .whenNotMatchedBySourceUpdate("target.id = 4", {"n": F.lit(None).cast("bigint")})
        .whenNotMatchedBySourceDelete()
        .execute()
    )


def _whole_rows(merge: Any) -> None:
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll("source.n > 0").execute()


def _other_keys(merge: Any) -> None:
    """Rows change places: 1 becomes 2, and 2 becomes 1."""
    merge.whenMatchedUpdate("target.id < 3", {"ID": "3 - target.id"}).execute()


def _only_deletes(merge: Any) -> None:
    merge.whenMatchedDelete().execute()


def _rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.select("id", "n", "note").collect())


@pytest.mark.thorough
def test_a_merge_leaves_what_delta_leaves(spark: SparkSession, log: TxLog, tmp_path: Path) -> None:
    log.create_table("stock", _STOCK, keys=["id"])
    source = spark.createDataFrame(_SOURCE, "id bigint, n bigint, note string")
    twice = source.union(source).where("id < 3")
    cases: list[tuple[Callable[[Any], None], DataFrame]] = [
        (_all_kinds, source),
        (_whole_rows, source),
        (_other_keys, source),
        (_only_deletes, twice),
    ]
    for number, (clauses, rows) in enumerate(cases):
        first = spark.createDataFrame(_FIRST, _STOCK)
        log.overwrite("stock", first)
        with log.transaction() as t:
            clauses(t.merge("stock", rows, "target.id = source.id"))
        path = str(tmp_path / str(number))
        first.write.format("delta").save(path)
        delta = DeltaTable.forPath(spark, path).alias("target")
        clauses(delta.merge(rows.alias("source"), "target.id = source.id"))
        expected = _rows(spark.read.format("delta").load(path))
        assert _rows(log.table("stock")) == expected, clauses.__name__
        assert expected != _rows(first)


#: What to do with a merge of three rows, two of them for key 1; the error, and what it says.
_REFUSED: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda m: m.whenMatchedUpdateAll().execute(), InvalidRowsError, "2 rows of the source"),
    (
        lambda m: m.whenMatchedUpdate("source.n = 7", {"id": "cast(1 as bigint)"}).execute(),
        InvalidRowsError,
        "would get another one",
    ),
    (lambda m: m.execute(), InvalidRequestError, "no clause"),
    (lambda m: m.whenMatchedDelete("nobody = 1").execute(), InvalidRequestError, "nobody"),
    (lambda m: m.whenMatchedUpdate(set={"m": "1"}), SchemaMismatchError, "no column 'm'"),
    (
        lambda m: m.whenMatchedUpdate(set={"n": "'x'"}).execute(),
        SchemaMismatchError,
        "has string",
    ),
    (lambda m: m.whenMatchedDelete().whenMatchedDelete(), InvalidRequestError, "never count"),
]


def _books(spark: SparkSession, log: TxLog, table: str) -> DataFrame:
    """Create a table with the keys 1 and 2; return rows of a source."""
    log.create_table(table, "id bigint not null, n bigint", keys=["id"])
    log.append(table, spark.createDataFrame([(1, 1), (2, 2)], "id bigint, n bigint"))
    return spark.createDataFrame([(1, 5), (1, 6), (2, 7)], "id bigint, n bigint")


def test_what_a_merge_refuses(spark: SparkSession, log: TxLog) -> None:
    source, on = _books(spark, log, "kept"), "target.id = source.id"
    t = log.transaction()
    for refused, error, story in _REFUSED:
        with pytest.raises(error, match=story):
            refused(t.merge("kept", source, on))
    with pytest.raises(InvalidRowsError, match="would get another one"):
        merge = t.merge("kept", source.where("n = 7"), "target.n = source.n")
        merge.whenNotMatchedInsertAll().execute()
    with pytest.raises(InvalidRowsError, match=r"(?i)division by zero") as caught:
        merge = t.merge("kept", source.where("n = 7"), on)
        merge.whenMatchedUpdate(set={"n": "CAST(10 / (source.n - 7) AS bigint)"}).execute()
    assert caught.value.fields["table"] == "kept" and caught.value.hint
    with pytest.raises(LocalProtocolError, match="not executed"):
        t.commit()


def test_rows_with_one_key_are_changed_together_or_not_at_all(
    spark: SparkSession, log: TxLog
) -> None:
    """A delete or upsert removes all rows of its key, and an append may leave several."""
    _books(spark, log, "doubles")
    log.append("doubles", spark.createDataFrame([(1, 3), (2, 2)], "id bigint, n bigint"))
    source = spark.createDataFrame([(1, 1), (1, 1), (2, 2)], "id bigint, n bigint")
    once, on = source.distinct(), "target.id = source.id and target.n = source.n"
    for refused in (
        lambda t: t.merge("doubles", once, on).whenMatchedUpdate("source.id = 1", {"n": "7L"}),
        lambda t: t.merge("doubles", source, on).whenMatchedDelete(),
        lambda t: t.merge("doubles", once, "false").whenNotMatchedBySourceDelete("target.n = 3"),
    ):
        with pytest.raises(InvalidRowsError, match=r"2 rows with key .*: 1.* change 1 of them"):
            refused(log.transaction()).execute()
    with log.transaction() as t:
        t.merge("doubles", once.where("id = 2"), on).whenMatchedDelete().execute()
    assert _numbers(log) == [(1, 1), (1, 3)]
    with log.transaction() as t:
        t.merge("doubles", source, "target.id = source.id").whenMatchedDelete().execute()
    assert _numbers(log) == []


def _numbers(log: TxLog) -> list[tuple[object, ...]]:
    return sorted(map(tuple, log.table("doubles").collect()))


def test_who_loses_merges_again_and_loses_no_update(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    source = _books(spark, log, "books")
    # Somebody else is first: a conflict; repeated, the merge sees what it lost to.
    attempts = []

    def add_all() -> None:
        with log.transaction() as t:
            merge = t.merge(
                "books",
                source.where("n > 5"),
                F.col("b.id") == F.col("s.id"),
                target_name="b",
                source_name="s",
            )
            attempts.append(1)
            if len(attempts) == 1:
                with Client(node.url) as other:
                    other.upsert("books", [{"id": 2, "n": 100}])
            merge.whenMatchedUpdate(set={"b.n": "b.n + s.n"}).execute()
            with pytest.raises(LocalProtocolError, match="would not see"):
                t.merge("books", source, "true")

    with pytest.raises(ConflictError, match="books"):
        add_all()
    attempts.clear()
    log.retry(add_all)()
    assert len(attempts) == 2
    assert sorted(map(tuple, log.table("books").collect())) == [(1, 7), (2, 107)]


def test_a_key_is_there_or_not_where_it_takes_effect(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    source = _books(spark, log, "users")
    t = log.transaction()
    with pytest.raises(SchemaMismatchError, match="users"):
        t.if_absent("users", "seven")
    with pytest.raises(KeyConditionError, match="has a row"):
        t.if_absent("users", 2)
    with pytest.raises(KeyConditionError, match="has no row"):
        t.if_present("users", {"id": 3})
    t = log.transaction()
    t.if_absent("users", 3)
    t.append("users", spark.createDataFrame([(3, 3)], "id bigint, n bigint"))
    with Client(node.url) as other:
        other.upsert("users", [{"id": 3, "n": 0}])
    with pytest.raises(ConflictError):
        t.commit()
    log.apply()
    # Of a repeat by its id, if the first one wins, nothing is looked up or computed again.
    once = uuid.uuid4()
    for first_wins in (False, True):
        with log.transaction(transaction_id=once, first_wins=first_wins) as t:
            t.if_present("users", 3)
            t.merge(
                "users", source.where("n = 7"), "target.id = source.id"
            ).whenMatchedDelete().execute()
            t.delete_keys("users", spark.createDataFrame([(3,)], "id bigint"))
        assert log.table("users").count() == 1
