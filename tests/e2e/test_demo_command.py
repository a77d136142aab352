"""`sparktxlog demo` as a newcomer runs it, without Java: it ends equal, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.architecture.source_tree import ROOT

pytestmark = pytest.mark.e2e


@contextmanager
def _demo(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command with a temporary directory of its own, below `tmp_path`."""
    (tmp_path / "temporary").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TMPDIR": str(tmp_path / "temporary"),
        "JAVA_HOME": "/nowhere",
        "XDG_CONFIG_HOME": str(tmp_path / "notes"),
        # Of another node of this user.
        "SPARKTXLOG_CLIENT_TOKEN": "not-of-the-demo",
        "SPARKTXLOG_DATA_DIR": str(tmp_path / "other-data"),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "sparktxlog.cli", "demo", *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _nodes_below(directory: Path) -> list[int]:
    """Return the processes that run in a directory, or did before it was removed."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(f"{directory}/"):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_it_ends_equal_goes_on_without_java_and_leaves_nothing(tmp_path: Path) -> None:
    with _demo(tmp_path, "--json") as process:
        out, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    found = json.loads(out)
    assert found["equal"] and found["spark"] is None and found["exit_codes"] == {"A": 0, "B": 0}
    steps = {step["step"]: step for step in found["steps"]}
    assert set(steps) == {
        *("sites", "nodes", "table", "writes", "order", "kill", "alone", "back", "tables"),
    }
    assert all(step["seconds"] >= 0 for step in found["steps"])
    assert steps["alone"]["waits"]
    # Each comparison is a step; this is the last one.
    assert [run["origin"] for run in steps["order"]["order"]] == ["A", "A", "B", "A"]
    assert "Left out: Spark needs Java 17" in said and "• The node of B is killed" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary"]
    assert not list((tmp_path / "temporary").iterdir())
    assert not _nodes_below(tmp_path)


def test_ctrl_c_ends_its_nodes_and_removes_what_it_made(tmp_path: Path) -> None:
    with _demo(tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if "Site A makes the table" in line:
                break
        assert len(_nodes_below(tmp_path)) == 2
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 130, process.stderr.read()
    assert not list((tmp_path / "temporary").iterdir())
    assert not _nodes_below(tmp_path)


def test_its_nodes_end_with_it_where_it_is_killed(tmp_path: Path) -> None:
    with _demo(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Site A makes the table" in line:
                break
        nodes = [psutil.Process(number) for number in _nodes_below(tmp_path)]
        assert len(nodes) == 2
        process.kill()
        assert psutil.wait_procs(nodes, timeout=60)[1] == []
