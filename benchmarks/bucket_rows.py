"""Rows of a table in a bucket, against Spark's own Delta append of the same rows to that bucket.

The store is SeaweedFS on the same machine, whose processes take of the same cores.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.store_servers import BUCKET, packages, seaweedfs

from benchmarks.cluster import Cluster
from benchmarks.results import Figure, beside, informing
from benchmarks.sparks import COLUMNS, frame
from sparktxlog import connect
from sparktxlog.api.session import build_session
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.bucket_replica import open_replica
from sparktxlog.worker.replica.source import HttpLogSource


def run(short: bool) -> list[Figure]:
    """Measure in turns: a plain append; rows staged and ordered; the same signed and applied."""
    rows, repeat = (100_000, 2) if short else (1_000_000, 7)
    packages()
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as directory:
        root = Path(directory)
        with seaweedfs(root / "store") as server:
            os.environ |= server.environment()
            spark = build_session("local[2]", app_name="sparktxlog-benchmarks", stores=["s3"])
            settings: dict[str, Any] = {
                "lake-url": f"s3://{BUCKET}/rows",
                "store-endpoint": server.endpoint,
                "store-region": "us-east-1",
                "store-allow-http": True,
                "store-credentials-file": str(server.credentials_file),
            }
            with Cluster(root, "A", **settings) as cluster:
                url = cluster.urls["A"]
                log, data = connect(spark, url), frame(spark, rows)
                log.create_table("bulk", COLUMNS)
                with (
                    closing(HttpLogSource(url)) as source,
                    closing(open_replica(source.info().lake, source.info().lake_root)) as replica,
                ):
                    applier = Applier(spark, source, replica)
                    plain, ordered, applied = [], [], []
                    for turn in range(repeat + 1):
                        begin = time.perf_counter()
                        data.write.format("delta").mode("append").save(f"s3a://{BUCKET}/plain")
                        written = time.perf_counter()
                        position = log.append("bulk", data).position or 0
                        staged = time.perf_counter()
                        applier.run_once(position, timeout_s=60)
                        ended = time.perf_counter()
                        if turn:  # the first turn warms up
                            plain.append(written - begin)
                            ordered.append(staged - written)
                            applied.append(ended - written)
                count, wanted = log.table("bulk").count(), rows * (repeat + 1)
                spark.stop()
    if count != wanted:
        raise RuntimeError(f"{count:,} rows applied instead of {wanted:,}")
    peer, name = "plain Delta append by Spark to the same bucket", f"{rows:,} rows to a bucket"
    return [
        informing(f"{name}: staged, signed and ordered", median(ordered), "s"),
        beside(f"{name}: the same, and applied", median(applied), "s", peer, median(plain), 1.1),
    ]
