"""What Delta refuses in a MERGE into a commit table is a typed error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from sparktxlog.errors import InvalidRequestError, InvalidRowsError, TxLogError
from sparktxlog.worker.tables.commit_table_merge import CommitTableMerge

pytestmark = pytest.mark.spark

Begin = Callable[..., CommitTableMerge]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    name = f"delta.`{tmp_path}/t`"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT NOT NULL, n INT) USING delta "
        "TBLPROPERTIES ('delta.constraints.positive' = 'n > 0')"
    )
    spark.sql(f"INSERT INTO {name} VALUES (1, 10), (2, 20)")
    return name


@pytest.fixture
def begin(spark: SparkSession, table: str) -> Begin:
    """Begins a merge of rows (id, n)."""

    def made(*rows: Any, condition: Any = "t.id = s.id", kind: str = "bigint") -> CommitTableMerge:
        source = spark.createDataFrame(list(rows), f"id bigint, n {kind}").alias("s")
        target = DeltaTable.forPath(spark, table.split("`")[1]).alias("t")
        return CommitTableMerge("shop.t", lambda: target.merge(source, condition))

    return made


def _updated(merge: CommitTableMerge, value: Any = "s.n") -> Any:
    return merge.whenMatchedUpdate(set={"n": value}).execute()


#: What is done, the error, and words of it.
_REFUSED: list[tuple[Callable[[Begin], object], type[TxLogError], str]] = [
    (lambda b: _updated(b((1, 1), (1, 2))), InvalidRowsError, "several rows of the source"),
    (lambda b: _updated(b((1, -5))), InvalidRowsError, "positive"),
    (lambda b: _updated(b((1, 1 << 40))), InvalidRowsError, "overflow"),
    (lambda b: _updated(b((1, "many"), kind="string")), InvalidRowsError, "'many'"),
    (lambda b: b((None, 1)).whenNotMatchedInsertAll().execute(), InvalidRowsError, "NOT NULL"),
    (lambda b: _updated(b((1, 1), condition="t.id = s.x")), InvalidRequestError, "column"),
    (lambda b: _updated(b((1, 1), condition="t.id = = s.n")), InvalidRequestError, "(?i)syntax"),
    (lambda b: b((1, 1), condition=5), InvalidRequestError, "condition"),
    (lambda b: _updated(b((1, 1)), "s.x"), InvalidRequestError, "column|resolve"),
    (lambda b: _updated(b((1, 1)), 5), InvalidRequestError, "set"),
    (lambda b: b((1, 1)).whenMatchedUpdate(), InvalidRequestError, "set"),
    (lambda b: b((1, 1)).execute(), InvalidRequestError, "WHEN"),
]


def test_what_delta_refuses_is_typed(spark: SparkSession, table: str, begin: Begin) -> None:
    for refused, kind, words in _REFUSED:
        with pytest.raises(kind, match=words) as caught:
            refused(begin)
        error = caught.value
        assert error.definite and error.hint and error.fields["table"] == "shop.t"
        assert error.__cause__ is not None
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    with pytest.raises(InvalidRequestError, match=r"'shop\.t' is append-only"):
        _updated(begin((1, 1)))
    assert sorted(map(tuple, spark.table(table).collect())) == [(1, 10), (2, 20)]


def test_all_clauses_are_those_of_delta(spark: SparkSession, table: str, begin: Begin) -> None:
    counts = (
        begin((1, 3), (7, 4))
        .whenMatchedUpdate("s.n > 100", {"n": "1"})
        .whenMatchedDelete("s.n > 50")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsert("s.n > 100", {"id": "s.id", "n": "1"})
        .whenNotMatchedInsertAll()
        .whenNotMatchedBySourceUpdate("t.id = 2", {"n": "t.n + 1"})
        .whenNotMatchedBySourceDelete()
        .withSchemaEvolution()
        .execute()
    )
    assert counts.first()["num_affected_rows"] == 3
    assert sorted(map(tuple, spark.table(table).collect())) == [(1, 3), (2, 21), (7, 4)]
