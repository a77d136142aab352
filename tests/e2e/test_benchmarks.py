"""The measurements run: their short form, without the ones that need a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def test_the_short_form_prints_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--short", "--only", "ordering", "--only", "posts"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")]
    values = {cells[1].strip(): float(cells[2].replace(",", "")) for cells in rows[1:]}
    assert values["ordering: transactions in the queue of 3 nodes"] > 0
    assert values["single POSTs to accepted, 64 clients"] > 0
