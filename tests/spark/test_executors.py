"""Staging, MERGE and recount of a real commit run on separate executors, says the event log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.node_processes import Cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parents[2]
STAGING = "staging"


def executors_by_work(events: Path, payloads: Path) -> dict[str, set[str]]:
    """Return kind of work → ids of the executors that ran its tasks.

    Work is named by the worker's job tags; staging is a write of files below the payload store.
    """
    staging: set[str] = set()
    works_of_stage: dict[int, set[str]] = defaultdict(set)
    found: dict[str, set[str]] = defaultdict(set)
    for line in events.read_text().splitlines():
        event = json.loads(line)
        name = event["Event"].rsplit(".", 1)[-1]
        if name == "SparkListenerSQLExecutionStart":
            plan = event["physicalPlanDescription"]
            if "InsertIntoHadoopFsRelationCommand" in plan and str(payloads) in plan:
                staging.add(str(event["executionId"]))
        elif name == "SparkListenerJobStart":
            properties = event["Properties"]
            works = {
                tag.rsplit("sparktxlog:", 1)[-1]
                for tag in (properties.get("spark.job.tags") or "").split(",")
            }
            if properties.get("spark.sql.execution.id") in staging:
                works.add(STAGING)
            for stage in event["Stage IDs"]:
                works_of_stage[stage] |= works
        elif name == "SparkListenerTaskEnd":
            for work in works_of_stage[event["Stage ID"]]:
                found[work].add(event["Task Info"]["Executor ID"])
    return found


def test_staging_merge_and_recount_run_on_executors(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "A")
    cluster.start()
    events = tmp_path / "events"
    events.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "SPARK_LOCAL_IP": "127.0.0.1"}
    script = Path(__file__).with_name("executors_job.py")
    try:
        done = subprocess.run(
            [sys.executable, str(script), cluster.nodes["A"].url, str(events)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=540,
        )
    finally:
        cluster.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    (log,) = events.iterdir()
    found = executors_by_work(log, tmp_path / "A" / "payloads")
    for work in (STAGING, "merge:t", "recount:t"):
        assert found[work], f"no task of {work} in {sorted(found)}"
        assert "driver" not in found[work], work
