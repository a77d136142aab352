"""A driver without a JVM: commits through Spark Connect, and prints what it got as JSON.

python -m tests.spark.api.without_jvm sc://127.0.0.1:15002 http://127.0.0.1:7070
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import sparktxlog
from sparktxlog.errors import TxLogError

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
        "jvm": SparkSession._instantiatedSession is not None,
    }
    print(json.dumps(told))


def _refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except TxLogError as error:
        return str(error)
    return "it was not refused"


if __name__ == "__main__":
    main(*sys.argv[1:])
