"""`sparktxlog demo`, whole and small: real nodes, real Spark jobs, a real cut, a real kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.architecture.source_tree import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]


@pytest.mark.timeout(800)
def test_the_demo_passes_and_ends_with_one_line_of_json(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "sparktxlog.cli",
            "demo",
            "--scale",
            "0.012",
            "--json",
            "--kill",
            "B",
            "--dir",
            str(directory),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=780,
    )
    assert answer.returncode == 0, f"{answer.stderr[-4000:]}\n{answer.stdout[-2000:]}"
    assert answer.stdout.count("\n") == 1
    found = json.loads(answer.stdout)
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
    # Given a directory the demo leaves its sites there, and nothing runs any more.
    assert (directory / "site-a" / "lake" / "flights" / "_delta_log").is_dir()
    alive = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [line for line in alive if str(directory) in " ".join(line)] == []
