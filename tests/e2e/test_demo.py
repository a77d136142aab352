"""`make demo`, whole and small: real nodes, real Spark jobs, a real cut, a real kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from examples.demo.bucket_server import PROGRAM_VARIABLE
from tests.architecture.source_tree import ROOT
from tests.support.java_programs import connector_jar
from tests.support.store_servers import packages

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]


def run_demo(
    directory: Path, *arguments: str, timeout_s: float = 780, **environment: str
) -> dict[str, Any]:
    """Run a small demo; return its line of JSON."""
    command = [sys.executable, "-m", "examples.demo", "--json", "--dir", str(directory)]
    if "--store" in arguments:
        environment[PROGRAM_VARIABLE] = str(packages() / "bin" / "weed")
    answer = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert answer.returncode == 0, f"{answer.stderr[-4000:]}\n{answer.stdout[-2000:]}"
    assert answer.stdout.count("\n") == 1
    alive = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [line for line in alive if str(directory) in " ".join(line)] == []
    found: dict[str, Any] = json.loads(answer.stdout)
    check_drill(found["drill"])
    return found


def check_drill(drilled: dict[str, Any]) -> None:
    """At the end the running nodes were asked what the loss of a site would mean."""
    assert drilled["passed"], drilled["verdict"]
    text = Path(drilled["report"]).read_text()
    assert drilled["verdict"] in text
    assert text.count("| loss of ") == text.count("| none |") >= 2


@pytest.mark.timeout(800)
def test_the_demo_passes_and_ends_with_one_line_of_json(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    found = run_demo(directory, "--scale", "0.012", "--kill", "B")
    assert found["equal"] is True
    assert found["source_differences"] == 0
    # What is submitted again while a node is away has a second position, without effect.
    assert 400 <= found["transactions"] <= found["positions"]["A"]
    assert len(set(found["positions"].values())) == 1
    assert found["signatures"]["A"] == found["signatures"]["B"] == found["signatures"]["C"]
    assert set(found["signatures"]["A"]) == {"aircraft_position", "flights", "planes", "weather"}
    assert found["awaited"]["A"] == ["C"]
    assert found["cut_site"] == "C"
    assert found["killed"] == "B"
    assert len(set(found["epochs"].values())) == 1
    assert found["epochs"]["A"] >= 3
    assert found["evicted_s"] > 0
    assert found["rejoined_s"] > 0
    assert found["keys_written_by_several_sites"] >= 100
    assert found["files_shared_between_sites"] == 0
    assert min(found["received_bytes"].values()) > 100_000
    assert found["seconds"] > 0
    # Given a directory the demo leaves its sites there.
    assert (directory / "site-a" / "lake" / "flights" / "_delta_log").is_dir()


@pytest.mark.timeout(800)
@pytest.mark.parametrize("store", [(), pytest.param(("--store", "s3"), marks=pytest.mark.repeated)])
def test_the_demo_of_the_catalog_passes(store: tuple[str, ...], tmp_path: Path) -> None:
    """Spark's own statements at three sites, with the catalog of the tests, or the connector."""
    connector = str(connector_jar(tmp_path))
    found = run_demo(
        tmp_path / "demo", "--catalog", "--scale", "0.004", *store, SPARKTXLOG_CONNECTOR=connector
    )
    assert {site for site, kinds in found["bucket_requests"].items() if kinds} == set(
        "ABC" if store else ""
    )
    assert found["equal"] is True
    assert found["source_differences"] == 0
    assert found["connector"] == connector
    # A table, and INSERT and MERGE twice at each of three sites.
    assert found["versions"] == dict.fromkeys("ABC", 13)
    made = ["CREATE TABLE", *(["WRITE"] * 3 + ["MERGE"] * 3) * 2]
    assert found["operations"] == made
    assert sorted(found["committed_at"].values()) == ["A"] * 4 + ["B"] * 4 + ["C"] * 4
    # At least who wrote while a site was cut off wanted the same version.
    assert found["made_again"] >= 2
    assert found["rows"] == dict.fromkeys("ABC", found["expected_rows"])
    assert found["expected_rows"] >= 500
