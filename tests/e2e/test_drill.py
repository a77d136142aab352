"""A drill on real nodes: a site is killed, then cut off; a backup is restored; nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.architecture.source_tree import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]


@pytest.mark.timeout(420)
def test_a_drill_measures_and_leaves_a_report_and_a_row(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    data = tmp_path / "data"
    (data / "log").mkdir(parents=True)
    config.write_text(
        f'node-id = "paris"\nmaster-url = "http://127.0.0.1:1"\ndata-dir = "{data}"\n'
        'cluster-secret = "a secret of the test"\nsuspect-timeout = 2\n'
        '[peer.1]\nid = "oslo"\nurl = "http://127.0.0.1:2"\n'
        '[peer.2]\nid = "rome"\nurl = "http://127.0.0.1:3"\n'
    )
    config.chmod(0o600)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sparktxlog.cli", "drill", "--config", str(config)),
            *("--report", str(tmp_path / "reports"), "--json"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["passed"] and report["sites"] == ["paris", "oslo", "rome"]
    lost, cut, restored = report["rehearsals"]
    assert [one["name"] for one in (lost, cut, restored)] == ["site-lost", "link-cut", "restore"]
    for one in (lost, cut):
        assert one["lost"] == 0 and one["told"] > 20
        # The others waited for the site for as long as the configuration says, or a little less:
        # the silence begins with the last post before the fault.
        assert 1 < max(one["pause_s"].values()) < 60 and one["return_s"] > 0
    assert len(report["signatures"]) == 3 and len(set(report["signatures"].values())) == 1
    (page,) = (tmp_path / "reports").glob("*.md")
    assert "**Passed: no commit of" in page.read_text()
    assert "Passed" in page.with_suffix(".html").read_text()
    (row,) = DeltaTable(data / "log" / "drills").to_pyarrow_table().to_pylist()
    assert row["passed"] and row["rehearsals"] == ["site-lost", "link-cut", "restore"]
