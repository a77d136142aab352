"""Spark Declarative Pipelines make commit tables, by Spark's program: docs/catalog-clients.md."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable
from tests.spark.api.nodes import RunningNode, start_node
from tests.support.java_programs import connector_jar
from tests.support.node_processes import wait_until

from sparktxlog.api.session import SPARK_RELEASE
from sparktxlog.api.spark_jars import known_jars
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.http.link import Http

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(pyspark.__version__ < "4.2", reason="the page has it for Spark 4.2"),
]

HOME = Path(pyspark.__file__).parent
#: `spark-pipelines` looks for its server here only, wherever that listens.
PORT = 15002
SQL = """
CREATE MATERIALIZED VIEW numbers AS SELECT id, id * 2 AS twice FROM range(10);
CREATE MATERIALIZED VIEW totals AS SELECT sum(twice) AS total FROM numbers;
"""
PYTHON = """
from pyspark import pipelines as dp

@dp.table
def streamed():
    return spark.readStream.schema("id LONG").json({arrived!r})

@dp.materialized_view
def few():
    return spark.read.table("tx.shop.numbers").where("id < 3")
"""
#: Once Spark's pipelines and Delta take it a second time, the page is to be changed.
NAMED = "CREATE MATERIALIZED VIEW totals USING delta AS SELECT 1 AS total;"


def run(
    directory: Path, url: str, files: Mapping[str, str], **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a pipeline of the catalog `tx` by the settings of the page, and others."""
    project, conf = directory / "project", directory / "conf"
    for one in (project / "definitions", conf):
        one.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (project / "definitions" / name).write_text(text)
    spec = {
        "name": "numbers",
        "storage": f"file://{directory}/storage",
        "catalog": "tx",
        "database": "shop",
        "libraries": [{"glob": {"include": "definitions/**"}}],
        "configuration": {"spark.sql.sources.default": "delta"},
    }
    (project / "spark-pipeline.yml").write_text(json.dumps(spec))
    settings = {
        "spark.jars": f"{known_jars(SPARK_RELEASE)},{connector_jar(directory)}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.tx": "io.unitycatalog.spark.UCSingleCatalog",
        "spark.sql.catalog.tx.uri": url,
        "spark.sql.catalog.tx.token": "any",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        **more,
    }
    lines = (f"{key} {value}\n" for key, value in settings.items())
    (conf / "spark-defaults.conf").write_text("".join(lines))
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
        "SPARK_CONF_DIR": str(conf),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [str(HOME / "bin" / "spark-pipelines"), "run"]
    with _alone():
        return subprocess.run(
            command, env=environ, cwd=project, capture_output=True, text=True, check=False
        )


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other test of this machine runs a pipeline: all take one port."""
    with (Path(tempfile.gettempdir()) / f"sparktxlog-test-port-{PORT}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket() as there:
            taken = there.connect_ex(("127.0.0.1", PORT)) == 0
        assert not taken, f"another program has the port {PORT} of spark-pipelines"
        yield


def rows(node: RunningNode, table: str) -> list[tuple[object, ...]]:
    """Return the rows of a commit table, of its reader table, which the node makes later."""
    place = node.directory / "plain" / "shop" / table
    shown = {one["name"]: one["version"] for one in Http(node.url).get("/v1/commit-tables")}
    wanted = shown[f"shop.{table}"]
    wait_until(lambda: newest_commit(place) == wanted, what=f"version {wanted} of {place}")
    read = DeltaTable(place).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in read)


def test_a_pipeline_makes_commit_tables_and_runs_again(tmp_path: Path) -> None:
    node = start_node(tmp_path, f'reader-table-dir = "{tmp_path / "plain"}"')
    try:
        schema = json.dumps({"name": "shop", "catalog_name": "tx"}).encode()
        Http(node.url).request("POST", "/api/2.1/unity-catalog/schemas", body=schema)
        arrived = tmp_path / "arrived"
        arrived.mkdir()
        python = PYTHON.format(arrived=str(arrived))
        files = {"numbers.sql": SQL, "numbers.py": python}
        versions = list[dict[str, int]]()
        for number in range(2):
            (arrived / f"{number}.json").write_text(json.dumps({"id": number}))
            done = run(tmp_path, node.url, files)
            assert "Run is COMPLETED" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]
            assert rows(node, "numbers") == [(one, one * 2) for one in range(10)]
            assert rows(node, "streamed") == [(one,) for one in range(number + 1)]
            assert rows(node, "totals") == [(90,)]
            assert rows(node, "few") == [(0, 0), (1, 2), (2, 4)]
            shown = Http(node.url).get("/v1/commit-tables")
            versions.append({one["name"]: one["version"] for one in shown})
        assert set(versions[0]) == {
            f"shop.{name}" for name in ("few", "numbers", "totals", "streamed")
        }
        assert all(versions[1][name] > version for name, version in versions[0].items())
        named = run(tmp_path, node.url, {"numbers.sql": NAMED, "numbers.py": ""})
        assert "DELTA_CANNOT_CHANGE_PROVIDER" in named.stdout + named.stderr
        assert rows(node, "totals") == []  # Spark takes the rows out first
    finally:
        node.stop()


def test_a_master_in_the_defaults_is_refused_by_spark(tmp_path: Path) -> None:
    """The page says so; once Spark takes it, the page is to be changed."""
    done = run(tmp_path, "http://127.0.0.1:1", {"numbers.sql": SQL}, **{"spark.master": "local[1]"})
    assert done.returncode != 0
    assert "Remote cannot be specified with master" in done.stderr
