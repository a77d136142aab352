"""A session of ours writes a Delta table in a bucket, and delta-rs reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.architecture.source_tree import ROOT
from tests.support.store_servers import BUCKET, KEY, SECRET, seaweedfs

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


def test_a_table_in_a_bucket_is_written_merged_and_read(tmp_path: Path) -> None:
    table = f"s3://{BUCKET}/site a/t"
    with seaweedfs(tmp_path / "bucket") as server:
        environ = {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("bucket_job.py")), table],
            env=os.environ | environ | {"PYTHONPATH": f"{ROOT / 'src'}"},
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        other = DeltaTable(table, storage_options=environ | {"AWS_ALLOW_HTTP": "true"})
        rows = other.to_pyarrow_table().sort_by("id").to_pylist()
    found = json.loads(done.stdout)
    said = {n: "merged" if n >= 15 else "first" for n in range(25)}
    assert found["rows"] == [[n, said[n]] for n in range(1, 25, 2)]
    assert rows == [{"id": n, "part": n % 2, "said": said[n]} for n in range(25)]
    assert other.version() == 2
    assert found["settings"]["spark.hadoop.fs.s3a.endpoint"] == server.endpoint
    assert SECRET not in done.stdout + done.stderr
