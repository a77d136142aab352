"""A session of ours writes a Delta table in a bucket, and delta-rs reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.architecture.source_tree import ROOT
from tests.support.java_programs import compile_java
from tests.support.node_processes import MANUAL, NodeProcess, free_ports
from tests.support.store_servers import BUCKET, KEY, SECRET, StoreServer, seaweedfs

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


def environ_of(server: StoreServer) -> dict[str, str]:
    """Return what tells Spark and delta-rs where the bucket is."""
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def run_job(server: StoreServer, name: str, *arguments: str) -> dict[str, Any]:
    """Run a program of this folder; return what it prints."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), *arguments],
        env=os.environ | environ_of(server) | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SECRET not in done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_table_in_a_bucket_is_written_merged_and_read(tmp_path: Path) -> None:
    table = f"s3://{BUCKET}/site a/t"
    with seaweedfs(tmp_path / "bucket") as server:
        found = run_job(server, "bucket_job.py", table)
        options = environ_of(server) | {"AWS_ALLOW_HTTP": "true"}
        other = DeltaTable(table, storage_options=options)
        rows = other.to_pyarrow_table().sort_by("id").to_pylist()
    said = {n: "merged" if n >= 15 else "first" for n in range(25)}
    assert found["rows"] == [[n, said[n]] for n in range(1, 25, 2)]
    assert rows == [{"id": n, "part": n % 2, "said": said[n]} for n in range(25)]
    assert other.version() == 2
    assert found["settings"]["spark.hadoop.fs.s3a.endpoint"] == server.endpoint


def test_sql_at_two_sites_writes_one_table_in_two_buckets(tmp_path: Path) -> None:
    ports = dict(zip("AB", free_ports(2), strict=True))
    classes = compile_java("io/unitycatalog/spark", tmp_path / "plugin")
    with seaweedfs(tmp_path / "bucket") as server, ExitStack() as running:
        nodes = [
            NodeProcess(
                tmp_path,
                name,
                port,
                {other: ports[other] for other in ports if other != name},
                settings=(
                    MANUAL,
                    f'commit-table-url = "s3://{BUCKET}/{name}"',
                    f'store-endpoint = "{server.endpoint}"',
                    'store-region = "us-east-1"',
                    "store-allow-http = true",
                    f'store-credentials-file = "{server.credentials_file}"',
                ),
            )
            for name, port in ports.items()
        ]
        for node in nodes:
            running.callback(node.stop)
            node.start()
        for node in nodes:
            node.wait_ready()
        urls = [node.url for node in nodes]
        found = run_job(server, "two_buckets_job.py", str(classes), *urls)
    rows = [[number, f"by {site}!"] for number, site in enumerate("abab")]
    for name, site in zip("AB", (found["a"], found["b"]), strict=True):
        assert site["rows"] == rows
        assert site["file"].startswith((f"s3://{BUCKET}/{name}/", f"s3a://{BUCKET}/{name}/"))
