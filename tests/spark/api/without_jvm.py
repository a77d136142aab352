"""A driver without a JVM: commits through Spark Connect, and prints what it got as JSON.

python -m tests.spark.api.without_jvm sc://127.0.0.1:15002 http://127.0.0.1:7070
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import sparktxlog
from sparktxlog.api.connect import TxLog
from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable, creation_of
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import TxLogError
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.storage.commit_tables.directory_tables import directory_of
from sparktxlog.storage.commit_tables.table_places import TRANSACTION_TWINS

_SCHEMA = "id bigint, customer string, amount double"


def main(remote: str, url: str) -> None:
    """Commit small and large DataFrames, read the log's state, and be refused what cannot be."""
    builder = SparkSession.builder
    assert not isinstance(builder, property)
    spark: SparkSession = builder.remote(remote).getOrCreate()
    log = sparktxlog.connect(spark, url)
    log.create_table("orders", _SCHEMA, keys=["id"])
    small = log.append(
        "orders", spark.createDataFrame([(1, "ada", 10.0), (2, "bob", 20.0)], _SCHEMA)
    )
    large = spark.range(50_000).selectExpr("id", "cast(id as string) customer", "id * 1.0d amount")
    with log.transaction() as t:
        t.delete_where("orders", "id < 10")
        t.upsert("orders", large)
    deleted = log.delete_keys("orders", spark.range(5))
    uploading = sparktxlog.connect(spark, url, staging="http")
    uploaded = uploading.upsert("orders", large)
    streamed = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("value as id", "'rate' as customer", "0d as amount")
    )
    told = {
        "rows": [small.rows, t.receipt.rows, deleted.rows, uploaded.rows],
        "queue": [row.outcome for row in log.queue().collect()],
        "twice": [
            _refused(lambda: log.upsert("orders", large.union(large))),
            _refused(lambda: uploading.upsert("orders", large.union(large))),
        ],
        "inline": _refused(lambda: sparktxlog.connect(spark, url, apply="inline")),
        "adopted": _refused(lambda: log.adopt_table("old", "/nowhere")),
        "batches": _refused(
            lambda: streamed.writeStream.foreachBatch(sparktxlog.stream_into(log, "orders"))
        ),
        "several": _several_tables(spark, log, url),
        "jvm": SparkSession._instantiatedSession is not None,
    }
    print(json.dumps(told))


def _several_tables(spark: SparkSession, log: TxLog, url: str) -> dict[str, Any]:
    """Write a commit table and a row table in one transaction; let another one raise."""
    more = {"nullable": True, "metadata": {}}
    fields = [{"name": "id", "type": "long", **more}, {"name": "n", "type": "long", **more}]
    schema = json.dumps({"type": "struct", "fields": fields})
    log_of_it = LogState(
        version=0,
        protocol={"minReaderVersion": 1, "minWriterVersion": 2},
        metadata={
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [],
        },
    )
    empty = PlainTable(path="", log=log_of_it)
    with closing(CatalogLink(url)) as link:
        place = link.stage("default.stock")
        directory = directory_of(place.location)
        first = empty.first_commit(place.table_id, int(time.time() * 1000))
        (directory / "_delta_log").mkdir()
        (directory / commit_file_name(0)).write_bytes(first)
        request = creation_of(read_commit_file(first), "stock", place.location)
        link.create("default.stock", request, timeout_s=60)
    with log.transaction() as t:
        t.append("stock", spark.createDataFrame([(1, 10), (2, 20), (3, 30)], "id bigint, n bigint"))
        spark.sql(f"UPDATE {t.in_sql('stock')} SET n = n + 1 WHERE id = 2")
        t.delete_where("stock", "id = 3 OR n > 90")
        t.append("orders", spark.createDataFrame([(-1, "stock", 1.0)], _SCHEMA))
        rows = sorted(tuple(row) for row in t.read("stock").collect())
    raised, payloads = "", Path(sparktxlog.Client(url).info()["payload_root"])
    try:
        with log.transaction() as t:
            raising = t.id
            t.append("stock", spark.range(1).selectExpr("id", "id AS n"))
            t.append("orders", spark.range(9).selectExpr("id", "'x' AS customer", "0d AS amount"))
            assert [*payloads.rglob(f"*{raising}*")], "rows are staged"
            raise RuntimeError("the user's own")
    except RuntimeError as error:
        raised = " ".join([str(error), *getattr(error, "__notes__", [])])
    with log.transaction() as t:
        after = sorted(tuple(row) for row in t.read("stock").collect())
    left = [*(directory.parent / TRANSACTION_TWINS).iterdir(), *payloads.rglob(f"*{raising}*")]
    return {"rows": [rows, after], "raised": raised, "left": [str(path) for path in left]}


def _refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except TxLogError as error:
        return str(error)
    return "it was not refused"


if __name__ == "__main__":
    main(*sys.argv[1:])
