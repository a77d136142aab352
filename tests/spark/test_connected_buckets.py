"""A driver without a JVM writes a table in a bucket through a server of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.architecture.source_tree import ROOT
from tests.support.store_servers import BUCKET, SECRET, seaweedfs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]


def test_a_client_needs_neither_connector_nor_credentials(tmp_path: Path) -> None:
    table = f"s3://{BUCKET}/connected/t"
    with seaweedfs(tmp_path / "bucket") as server:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("connected_job.py")), table],
            env=os.environ | server.environment() | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert SECRET not in done.stdout + done.stderr
        rows = [[0, "first"], [1, "changed"], [2, "first"]]
        assert json.loads(done.stdout) == rows
        read = DeltaTable(table, storage_options=server.environment()).to_pyarrow_table()
        assert [[*row.values()] for row in read.sort_by("id").to_pylist()] == rows
