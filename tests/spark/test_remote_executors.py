"""A Spark cluster whose executors do not share a disk with the node commits all the same.

Its worker lives in a mount namespace of its own, where another file system lies over the node's
directory.  So nothing tells it from a worker on another machine, but that it runs at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.api.nodes import start_node
from tests.support.spark_programs import spark_program

import sparktxlog
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.apply.signatures import signature_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.privileged,
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parents[2]
TOKEN = "a token that no log may have"
ROWS = 50_000
_OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
_MOUNT_TMPFS = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
_JOB = f"""
import sys
from sparktxlog.api.session import build_session
import sparktxlog

url, master, token = sys.argv[1:]
spark = build_session(master, {{"spark.executor.memory": "512m"}})
log = sparktxlog.connect(spark, url, token)
log.create_table("t", "id bigint, n bigint, p string", keys=["id"], partition_by=["p"])
rows = spark.range({ROWS}).selectExpr("id", "id AS n", "cast(id % 3 AS string) AS p")
log.append("t", rows)
log.upsert("t", rows.where("id % 2 = 0").selectExpr("id", "-n AS n", "p"))
spark.range(10).selectExpr("-id AS id", "id AS n", "'x' AS p").write.format("txlog").mode(
    "append").save("t")
print("uploads to", log.site.store.uploads)
"""


@contextmanager
def daemon(kind: str, *arguments: str, told: str, prefix: Sequence[str] = ()) -> Iterator[str]:
    """Run a master or a worker of Spark; give what its log tells."""
    program = f"org.apache.spark.deploy.{kind}"
    with spark_program("spark-class", program, *arguments, told=told, prefix=prefix) as found:
        yield found


def test_executors_with_another_disk_upload_by_themselves(
    spark: SparkSession, tmp_path: Path
) -> None:
    tried = subprocess.run([*_OWN_MOUNTS, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace of our own: {tried.stderr.strip()}")
    site, work = tmp_path / "site", tmp_path / "work"
    site.mkdir()
    hidden = (*_OWN_MOUNTS, "sh", "-c", _MOUNT_TMPFS, str(site))
    options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    node = start_node(site, f'client-token = "{TOKEN}"', "inline-limit = 1000")
    try:
        with (
            daemon("master.Master", *options, told=r"master at (spark://\S+)") as master,
            daemon(
                "worker.Worker",
                *options,
                *("--cores", "2", "--memory", "1g", "--work-dir", str(work), master),
                told="(registered) with master",
                prefix=hidden,
            ),
        ):
            done = subprocess.run(
                [sys.executable, "-c", _JOB, node.url, master, TOKEN],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT / 'src'}",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
        assert done.returncode == 0, done.stderr[-3000:]
        assert f"uploads to UploadTarget(url='{node.url}'" in done.stdout
        assert "executors upload staged files over HTTP: an executor wrote to" in done.stderr
        told = [path for path in work.rglob("*") if path.is_file() and path.suffix != ".jar"]
        logs = [done.stdout, done.stderr, (site / "node.log").read_text()]
        logs += [path.read_text(errors="replace") for path in told]
        assert len(told) >= 2 and [log for log in logs if TOKEN in log] == []
        with sparktxlog.connect(spark, node.url, TOKEN, apply="inline") as log:
            log.apply()
            found = log.table("t", at_least=None)
            assert found.where("p = 'x'").count() == 10
            assert found.where("p != 'x' and n = if(id % 2 = 0, -id, id)").count() == ROWS
            own = log.snapshot().signatures["t"]
            definition: TableDefinition = log.site.definition("t")
            assert own == signature_of(found, definition).to_text()
    finally:
        node.stop()
