"""SIGKILL of a process that fetches, wherever it stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import msgspec
from tests.support.stand_in_donor import StandInDonor
from tests.unit.files.conftest import assert_staged

from sparktxlog.files.workspace import CopyWorkspace

ROOT = Path(__file__).parents[3]
STREAMS = 3


def _start(donor: StandInDonor, workspace: CopyWorkspace) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.unit.files.fetching_child",
            str(workspace.lake),
            workspace.copy_id,
            str(STREAMS),
        ],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(donor.lease()))
    child.stdin.close()
    return child


def test_killed_thrice(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """Every kill costs at most one chunk per stream, and the files are whole in the end."""
    for served in (4, 11, 19):
        reached = threading.Event()

        def fault(path: str, offset: int, n: int = served, now: threading.Event = reached) -> str:
            if len(donor.chunks) < n:
                return ""
            now.set()
            # Nothing moves while the child is killed.
            return "hang"

        donor.fault = fault
        child = _start(donor, workspace)
        assert reached.wait(60)
        child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
        donor.hanging.set()
    donor.fault = lambda path, offset: ""
    before = Counter(donor.chunks)
    assert _start(donor, workspace).wait(60) == 0
    assert_staged(workspace, donor.lake)
    repeated = sum(count - 1 for count in Counter(donor.chunks).values())
    assert repeated <= 3 * STREAMS
    assert sum(before.values()) >= 19


def test_files_torn_by_a_power_cut(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """The disk kept less than was written."""
    donor.fault = lambda path, offset: "500 x" if len(donor.chunks) >= 15 else ""
    assert _start(donor, workspace).wait(60) != 0
    part = workspace.part("t", "big.parquet")
    size = part.stat().st_size
    with open(part, "r+b") as file:
        file.write(bytes(70_000))
        file.truncate(size - 70_000)
    donor.fault = lambda path, offset: ""
    assert _start(donor, workspace).wait(60) == 0
    assert_staged(workspace, donor.lake)
