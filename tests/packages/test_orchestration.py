"""Airflow, Dagster and OpenLineage, each real, with a real node and a worker that applies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.source_tree import ROOT
from tests.support.node_processes import TABLE, NodeProcess, free_ports, wait_until
from tests.support.package_tools import orchestration_python

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]

#: Stands in for spark-submit.sh: jobs end in the three ways.
JOBS = """#!/bin/sh
echo noise
case "$1" in
  jobs/apply.py)
    printf '{"position": 2, "given": "%s", "token": "%s"}\\n' "$*" "$SPARKTXLOG_CLIENT_TOKEN" ;;
  jobs/verify.py) echo '{"exit_code": 3}'; exit 3 ;;
  *) echo '{"exit_code": 1, "error": "no"}'; exit 1 ;;
esac
"""


class Programs:
    """The environment that has Airflow and Dagster, and programs of this folder that run there."""

    def __init__(self, path: Path) -> None:
        self.python = orchestration_python()
        self.log = path / "programs.log"
        self.log_id = path / "log_id.jsonl"
        self.home, self.dags = path / "home", path / "dags"
        for folder in (self.home, self.dags):
            folder.mkdir()
        (self.home / "spark-submit.sh").write_text(JOBS)
        (self.home / "spark-submit.sh").chmod(0o755)
        shutil.copy(Path(__file__).with_name("orders_dag.py"), self.dags)
        self.environ = os.environ | {
            "AIRFLOW_HOME": str(path),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "OPENLINEAGE__TRANSPORT__TYPE": "file",
            "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(self.log_id),
            "OPENLINEAGE__TRANSPORT__APPEND": "true",
            "SPARKTXLOG_JOB_HOOK": "sparktxlog_openlineage:watch_job",
            "SPARKTXLOG_TEST_HOME": str(self.home),
        }

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program; its log is kept, and what it prints is for the caller."""
        command = [self.python, str(Path(__file__).with_name(name)), *arguments]
        with self.log.open("a") as log:
            return subprocess.Popen(
                command, env=self.environ, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def ended(self, program: subprocess.Popen[str]) -> str:
        """Return what a program printed; what it found is in the last line."""
        try:
            printed, _ = program.communicate(timeout=300)
        finally:
            program.kill()
        assert program.returncode == 0, self.log.read_text()[-4000:]
        return printed


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run Airflow's DAG, while a real worker applies what it commits; then the other programs."""
    path = tmp_path_factory.mktemp("orchestration")
    programs = Programs(path)
    migrate = [programs.python, "-m", "airflow", "db", "migrate"]
    subprocess.run(migrate, env=programs.environ, check=True, capture_output=True)
    (port,) = free_ports(1)
    node = NodeProcess(path, "A", port, {})
    node.start()
    apply = [ROOT / "spark-submit.sh", "jobs/apply.py", "--url", node.url, "--json"]
    spark = os.environ | {"SPARKTXLOG_PYTHON": sys.executable}
    places = (str(programs.dags), str(ROOT / "conf"))
    try:
        node.wait_ready()
        node.commit(TABLE)
        airflow = programs.start("airflow_run.py", node.url, "a token of 16 or more", *places)
        wait_until(
            lambda: node.status()["published"] >= 2 or airflow.poll() is not None,
            120,
            "the first task has committed",
        )
        subprocess.run(apply, env=spark, check=True, capture_output=True, cwd=ROOT)
        printed = programs.ended(airflow)
        result: dict[str, Any] = json.loads(printed.splitlines()[-1]) | {"log": printed}
        printed = programs.ended(programs.start("dagster_run.py", node.url))
        result["dagster"] = json.loads(printed.splitlines()[-1])
        programs.ended(programs.start("openlineage_run.py", node.url))
        result["lake"] = str(node.lake)
    finally:
        node.stop()
    result["log_id"] = [json.loads(line) for line in programs.log_id.read_text().splitlines()]
    return result


def test_airflow_takes_the_provider(found: dict[str, Any]) -> None:
    """It was valid by the schema, and the form and the test of a connection are there."""
    assert found["provider"] == {
        "version": "0.1.0",
        "form": {"password": "Client token", "schema": "http or https"},
    }
    good, text = found["test"]
    assert good and text.startswith("node A of sparktxlog-")


def test_a_dag_commits_waits_and_runs_jobs(found: dict[str, Any]) -> None:
    run = found["run"]
    assert run["states"] == {
        **dict.fromkeys(["commit", "seen", "polled", "equal", "job"], "success"),
        "lagging": "skipped",
        "broken": "failed",
    }, found["log"][-4000:]
    assert run["results"]["commit"]["position"] == 2
    assert run["results"]["seen"] == {"applied": 2, "position": 2}
    # It was not applied yet when the sensor asked first, so the triggerer went on asking.
    assert "2 is wanted" in found["log"]
    assert "token" in run["results"]["job"]["token"]
    assert "jobs/apply.py --url http://127.0.0.1:" in run["results"]["job"]["given"]


def test_assets_of_tables_get_events_with_positions(found: dict[str, Any]) -> None:
    run = found["run"]
    events = {task: (uri, extra) for uri, task, extra in run["events"]}
    assert set(events) == {"commit", "job"}
    assert {uri for uri, _ in events.values()} == {"sparktxlog://sparktxlog/default/t"}
    assert events["commit"][1]["position"] == events["job"][1]["position"] == 2
    assert events["commit"][1]["transaction_id"] == run["results"]["commit"]["transaction_id"]


def test_airflow_reads_the_example(found: dict[str, Any]) -> None:
    assert found["example"]["errors"] == {}
    assert "sparktxlog" in found["example"]["dags"]


def test_dagster_checks_that_replicas_are_equal(found: dict[str, Any]) -> None:
    checked, behind = found["dagster"]["check"], found["dagster"]["all"]
    assert (checked["passed"], checked["text"]) == (True, "all replicas are equal")
    # The asset has committed, and no worker has applied it.
    assert (behind["passed"], behind["severity"]) == (False, "WARN")
    # Whether its worker runs is said by how long ago it ended.
    assert behind["text"].startswith("Site A is at position 2 of 3, and its worker ")
    assert behind["made"] == [[["sparktxlog", "default", "t"], 3]]


def test_openlineage_hears_of_jobs_and_commits(found: dict[str, Any]) -> None:
    """Events have names and positions of tables; those of one run have one id."""
    events = found["log_id"]
    said = [(event["job"]["name"], event["eventType"]) for event in events]
    assert said == [
        ("apply", "START"),
        ("apply", "COMPLETE"),
        ("commit", "START"),
        ("commit", "FAIL"),
        ("nightly", "COMPLETE"),
    ]
    assert {event["job"]["namespace"] for event in events} == {"sparktxlog://sparktxlog/A"}
    runs = [event["run"]["runId"] for event in events]
    assert runs[0] == runs[1] != runs[2] == runs[3] != runs[4]

    def tables(event: dict[str, Any], side: str) -> list[tuple[str, str, str | None]]:
        return [
            (one["namespace"], one["name"], one["facets"].get("version", {}).get("datasetVersion"))
            for one in event[side]
        ]

    _, applied, _, failed, committed = events
    assert tables(applied, "inputs") == [("sparktxlog://sparktxlog", "default.t", "2")]
    assert tables(applied, "outputs") == [("file", f"{found['lake']}/t", "2")]
    assert tables(failed, "inputs") == [("file", "/data/new.csv", None)]
    assert tables(failed, "outputs") == [("sparktxlog://sparktxlog", "default.t", None)]
    assert "cannot be read" in failed["run"]["facets"]["errorMessage"]["message"]
    assert tables(committed, "outputs") == [("sparktxlog://sparktxlog", "default.t", "4")]
