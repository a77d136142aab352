"""A session of ours writes a Delta table in a bucket, and delta-rs reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.architecture.source_tree import ROOT
from tests.support.java_programs import connector_jar
from tests.support.node_processes import MANUAL, NodeProcess, free_ports
from tests.support.store_servers import BUCKET, SECRET, StoreServer, seaweedfs

_TABLE = f"s3://{BUCKET}/site a/t"

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


@contextmanager
def two_sites(directory: Path, server: StoreServer) -> Iterator[list[str]]:
    """Run the nodes of two sites with a prefix of the bucket each; give their URLs."""
    ports = dict(zip("AB", free_ports(2), strict=True))
    with ExitStack() as running:
        nodes = [
            NodeProcess(
                directory,
                name,
                port,
                {other: ports[other] for other in ports if other != name},
                settings=(
                    MANUAL,
                    f'commit-table-url = "s3://{BUCKET}/{name}"',
                    *server.node_settings(),
                ),
            )
            for name, port in ports.items()
        ]
        for node in nodes:
            running.callback(node.stop)
            node.start()
        for node in nodes:
            node.wait_ready()
        yield [node.url for node in nodes]


@dataclass(frozen=True)
class Sites:
    """A bucket, and the nodes A and B, each with a prefix of its name in it."""

    server: StoreServer
    urls: list[str]
    #: JAR of the connector that sessions need.
    connector: str

    def run(self, job: str, *arguments: str) -> dict[str, Any]:
        """Run a program of this folder; return what it prints."""
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name(job)), self.connector, *arguments],
            env=os.environ | self.server.environment() | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert SECRET not in done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    directory = tmp_path_factory.mktemp("buckets")
    with seaweedfs(directory / "bucket") as server, two_sites(directory, server) as urls:
        yield Sites(server, urls, str(connector_jar(directory)))


@pytest.fixture(scope="module")
def said(sites: Sites) -> dict[str, Any]:
    """Return what one job found that does both."""
    return sites.run("buckets_job.py", _TABLE, *sites.urls)


def test_a_table_in_a_bucket_is_written_merged_and_read(sites: Sites, said: dict[str, Any]) -> None:
    names = {n: "merged" if n >= 15 else "first" for n in range(25)}
    assert said["by_url"]["rows"] == [[n, names[n]] for n in range(1, 25, 2)]
    other = DeltaTable(_TABLE, storage_options=sites.server.environment())
    rows = other.to_pyarrow_table().sort_by("id").to_pylist()
    assert rows == [{"id": n, "part": n % 2, "said": names[n]} for n in range(25)]
    assert other.version() == 2
    assert said["settings"]["spark.hadoop.fs.s3a.endpoint"] == sites.server.endpoint


def test_sql_at_two_sites_writes_one_table_in_two_buckets(said: dict[str, Any]) -> None:
    rows = [[number, f"by {site}!"] for number, site in enumerate("abab")]
    for name, site in zip("AB", said["by_sites"].values(), strict=True):
        assert site["rows"] == rows
        assert site["file"].startswith((f"s3://{BUCKET}/{name}/", f"s3a://{BUCKET}/{name}/"))


@pytest.mark.thorough
def test_tables_in_buckets_are_maintained_and_change_together(sites: Sites) -> None:
    found = sites.run("bucket_upkeep_job.py", f"s3://{BUCKET}", *sites.urls)
    stores = [sites.server.store(name) for name in "AB"]
    left = [one.key for store in stores for one in store.list(".twins")]
    left += [one.key for store in stores for one in store.list(".transactions")]
    assert left == []
    rows = [[0, "x y"], [2, "x y"], [3, "x y"], [10, "z"], [12, "z"], [13, "z"], [20, "x y"]]
    assert found["rows"] == rows
    # A compaction is ordered, so both sites have it; a checkpoint and a vacuum are one site's own.
    assert (found["compacted"], found["again"]) == ([True, 1, 2], 0)
    assert found["checkpoint"] == 7
    assert found["vacuumed_at_once"] == 0
    assert found["vacuumed"] == {"a": [11, 2], "b": [11, 2]}
    assert found["staged"]["a"] >= 6 and found["staged"]["b"] >= 2
    assert found["after"] == found["after_vacuum"] == [rows, rows]
    was = [[0, "p 0"], [2, "p 0"], [3, "p 1"]]
    assert (found["adopted"]["there"], found["adopted"]["old"]) == (was, was)
    assert found["adopted"]["back"] == [*was[1:], [9, "p 9"]]
    assert found["adopted"]["versions"] == 3
    assert "catalogManaged" not in found["adopted"]["features"]
    assert found["transaction"] == {
        "inside": [[1, 11]],
        "outside": [[1, 10], [2, 20]],
        "lost": "version-conflict",
        "u": [*rows[1:], [30, "z"], [40, "new 'p'"]],
        "v": [[1, 11], [9, 90]],
    }
