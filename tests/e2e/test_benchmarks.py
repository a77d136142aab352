"""The measurements run: their short form, without the ones that need a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.copy_table import copy_table

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_the_short_form_prints_its_figures() -> None:
    only = [
        word for name in ("ordering", "posts", "commits", "latency") for word in ("--only", name)
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--short", *only],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures, goals = done.stdout.partition("| figure")[2].split("\n\n", 1)
    rows = [line.split("|") for line in figures.splitlines() if line.startswith("| ")]
    values = {cells[1].strip(): float(cells[2].replace(",", "")) for cells in rows}
    assert values["ordering: transactions in the queue of 3 nodes"] > 0
    assert values["single POSTs to accepted, 64 clients"] > 0
    for case in ("spaced", "back to back", "one writer at each site"):
        delays = values[f"commit, three sites 20 ms apart, {case}: p50, in delays of one way"]
        assert delays >= 2, "it came before it could"
    for where in ("one site", "three sites"):
        name = f"commit tables, {where}: 100 tables"
        assert 0 < values[name] < values[f"{name}: rate that fills the processors"] + 1
    assert "| commits of one table from three sites, /s |" in goals


def test_copies_are_shown_as_the_sources_showed_theirs() -> None:
    measured = {
        "copy at 1,000 Mbit/s: 650 MB plain": 5.639,
        "copy at 1,000 Mbit/s: the same, compressed 2.52 x": 3.23,
        "copy at 1,000 Mbit/s: plain, of the line rate": 0.98,
        "copy at 100 Mbit/s: 109 MB plain": 9.373,
        "copy at 100 Mbit/s: the same, compressed 2.51 x": 4.303,
    }
    lines = copy_table(measured).splitlines()
    assert lines[2:] == [
        "| 1,000 Mbit/s, 650 MB | 5.6 s | 3.2 s | 1.75 | 2.05 | 8.7 | 9.5 |",
        "| 100 Mbit/s, 109 MB | 9.4 s | 4.3 s | 2.18 | 2.40 | 86.0 | 84.3 |",
        "",
        "On a good day the reference needed 20 s/GB at 1 Gbit/s.",
    ]
    assert copy_table({"copy at 100 Mbit/s: 109 MB plain": 9.4}) == ""
