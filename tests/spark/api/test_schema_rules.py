"""The rules of docs/tables.md for rows and the columns of their table, at a real node."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode

from sparktxlog import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.errors import InvalidRequestError, SchemaMismatchError

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def _rows(log: TxLog, table: str) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in log.table(table, at_least="own").collect()), key=repr)


def test_merge_schema_is_an_ordered_change_before_the_rows(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    log.create_table("merged", "Id int, p int, name string", partition_by=["p"])
    log.append("merged", spark.createDataFrame([(1, 1, "a")], "id int, p int, NAME string"))
    extra = spark.createDataFrame([(2**40, 2, "red")], "id bigint, p int, colour string")
    with pytest.raises(SchemaMismatchError) as caught:
        log.append("merged", extra)
    assert "the DataFrame has column 'colour', table 'merged' has not" in caught.value.message
    position = log.position()
    log.append("merged", extra, merge_schema=True)
    definition = log.site.definition("merged")
    assert log.position() == position + 2 and definition.schema_version == 2
    assert [(c.name, c.type) for c in definition.columns] == [
        ("Id", "bigint"),
        ("p", "int"),
        ("name", "string"),
        ("colour", "string"),
    ]
    assert _rows(log, "merged") == [(1, 1, "a", None), (2**40, 2, None, "red")]
    # What fits changes nothing; a type that does not become wider is refused as ever.
    log.append("merged", extra, merge_schema=True)
    assert log.position() == position + 3
    dated = extra.selectExpr("id", "p", "DATE '2024-01-01' AS colour")
    with pytest.raises(SchemaMismatchError, match="has date in column 'colour'"):
        log.append("merged", dated, merge_schema=True)
    with Client(node.url) as client:
        arrow = pa.table({"Id": pa.array([3], pa.int64()), "p": [3], "size": [1.5]})
        client.append("merged", arrow, merge_schema=True)
        with pytest.raises(InvalidRequestError, match="which types"):
            client.append("merged", [{"id": 1}], merge_schema=True)
    more = spark.sql("SELECT 4L AS id, 4 AS p, 'n' AS name, 'c' AS colour, 2D AS size, true AS new")
    writer = more.write.format("txlog").option("table", "merged").mode("append")
    with pytest.raises(Exception, match="'new'"):
        writer.save()
    writer.option("mergeSchema", "true").save()
    log.apply()
    assert [row for row in _rows(log, "merged") if row[0] in (3, 4)] == [
        (3, 3, None, None, 1.5, None),
        (4, 4, "n", "c", 2.0, True),
    ]


def test_an_upsert_that_merges_names_every_column(spark: SparkSession, log: TxLog) -> None:
    log.create_table("kept", "id bigint, v string", keys=["id"])
    log.append("kept", spark.createDataFrame([(1, "a")], "id bigint, v string"))
    with pytest.raises(SchemaMismatchError, match="table 'kept' has column 'v', the DataFrame has"):
        log.upsert("kept", spark.sql("SELECT 1L AS id, 2 AS n"), merge_schema=True)
    log.upsert("kept", spark.sql("SELECT 1L AS id, 'b' AS v, 2 AS n"), merge_schema=True)
    assert _rows(log, "kept") == [(1, "b", 2)]
