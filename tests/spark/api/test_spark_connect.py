"""Committing from a driver without a JVM, through a server of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService"
_ROOT = Path(__file__).parents[3]


@pytest.fixture
def remote(spark: SparkSession) -> Iterator[str]:
    """Return the URL of a server in the JVM of the tests' session."""
    jvm = spark.sparkContext._jvm
    service = getattr(jvm, _SERVICE)
    service.start(spark.sparkContext._jsc.sc())
    try:
        port = getattr(getattr(jvm, f"{_SERVICE}$"), "MODULE$").localPort()
        yield f"sc://127.0.0.1:{port}"
    finally:
        service.stop(*(getattr(service, f"stop$default${n}")() for n in (1, 2)))


def test_a_driver_without_a_jvm_commits(remote: str, node: RunningNode) -> None:
    program = subprocess.run(
        [sys.executable, "-m", "tests.spark.api.without_jvm", remote, node.url],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert not program.returncode, program.stderr[-4_000:]
    told = json.loads(program.stdout.splitlines()[-1])
    assert told["rows"] == [2, 50_000, 5, 50_000]
    assert told["queue"] == ["committed"] * 5
    assert all("more than one row has the key" in refused for refused in told["twice"])
    assert "apply='inline' needs a driver with a JVM" in told["inline"]
    assert "adopt_table needs a driver with a JVM" in told["adopted"]
    assert "foreachBatch needs a driver with a JVM" in told["batches"]
    assert told["several"] == {
        "rows": [[[1, 10], [2, 21]]] * 2,
        "raised": "the user's own",
        "left": [],
    }
    assert not told["jvm"]
