"""A server of Spark Connect that reaches a bucket, and a client: `connected_job.py TABLE`.

The client is a process without a JVM and without the store's settings: `… TABLE sc://host:port`.
It writes the table, reads it, and prints what it found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pyspark.sql import SparkSession

SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService"


def serve(table: str) -> None:
    """Start the server in a session with the connector, and run the client."""
    from sparktxlog.api.session import build_session

    settings = {"spark.sql.shuffle.partitions": "1", "spark.connect.grpc.binding.port": "0"}
    spark = build_session("local[2]", settings, stores=[table])
    jvm = spark.sparkContext._jvm
    service = getattr(jvm, SERVICE)
    service.start(spark.sparkContext._jsc.sc())
    port = getattr(getattr(jvm, f"{SERVICE}$"), "MODULE$").localPort()
    client = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    command = [sys.executable, __file__, table, f"sc://127.0.0.1:{port}"]
    done = subprocess.run(command, env=client, timeout=300, check=False)
    service.stop(*(getattr(service, f"stop$default${n}")() for n in (1, 2)))
    spark.stop()
    sys.exit(done.returncode)


def use(table: str, remote: str) -> None:
    """Write and change the table by SQL and frames, as a driver without a JVM does."""
    builder = SparkSession.builder
    assert not isinstance(builder, property)
    spark: SparkSession = builder.remote(remote).getOrCreate()
    spark.range(3).selectExpr("id", "'first' AS said").write.format("delta").save(table)
    spark.sql(f"UPDATE delta.`{table}` SET said = 'changed' WHERE id = 1")
    rows = spark.read.format("delta").load(table).orderBy("id").collect()
    print(json.dumps([[row.id, row.said] for row in rows]))


if __name__ == "__main__":
    (use if len(sys.argv) > 2 else serve)(*sys.argv[1:])
