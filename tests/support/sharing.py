"""Which process of a run gets which file: two of them start Spark, the others fill what is idle.

Tests with Spark keep a core busy, and each session takes seconds to start and gigabytes to keep.
Tests of nodes wait for half of their time: for patience to end, and for processes to start.

A run with `--minutes` begins no file after them: machines differ by three times in speed, and a
run that is ended from outside says nothing at all.  With `--shuffled` the commit gives the order,
so that another commit's run leaves out other ones.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: Where the tests are that share the session of their process.
SPARK = "tests/spark/"
_SESSIONS = 2

#: Files that take minutes, the longest first: what is begun last should not be waited for.
LONGEST = (
    "tests/spark/test_bucket_lakes.py",
    "tests/spark/test_buckets.py",
    "tests/spark/copying/test_hard_times.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_demo_buckets.py",
    "tests/spark/worker/test_changed_tables.py",
    "tests/spark/worker/test_apply.py",
    "tests/spark/worker/test_kills.py",
    "tests/spark/worker/test_changes.py",
    "tests/spark/adopting/test_following.py",
    "tests/e2e/test_rivals.py",
    "tests/spark/worker/test_direct_writes.py",
    "tests/spark/test_node_kills.py",
    "tests/spark/catalog/test_replaced_disks.py",
    "tests/spark/api/test_notebooks.py",
    "tests/spark/copying/test_copies.py",
    "tests/spark/copying/test_jobs.py",
    "tests/spark/adopting/test_row_adoption.py",
    "tests/e2e/test_demo_witness.py",
    "tests/spark/api/test_moved_streams.py",
    "tests/spark/random/test_random_tables.py",
    "tests/e2e/test_torture.py",
    "tests/property/test_directed_traces.py",
    "tests/property/test_whole_nodes.py",
    "tests/spark/worker/test_masters_gone.py",
    "tests/spark/api/test_commit.py",
    "tests/spark/api/test_readme.py",
)


class FewSessions(LoadFileScheduling):
    """Gives the first processes files with Spark, and the rest others, while there are any.

    Args:
        config: Of the run.
        log: What the scheduler writes for people that debug it.
        minutes: After so many from now on no file is begun; None = all are.
    """

    def __init__(
        self, config: pytest.Config, log: Producer | None = None, minutes: float | None = None
    ) -> None:
        super().__init__(config, log)
        self._until = None if minutes is None else time.monotonic() + minutes * 60
        #: The files that were not begun.
        self.left: list[str] = []

    def _reschedule(self, node: WorkerController) -> None:
        if self._until is not None and time.monotonic() >= self._until:
            self.left += self.workqueue
            self.workqueue.clear()
        super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test in which a process ended, which failed; the rest of its files is shared.

        xdist shares out again whole files too, and the test that ended the process: another one
        then waits for ever for results of no test, or ends as well.
        """
        workload = self.assigned_work.pop(node)
        undone = (test for tests in workload.values() for test in tests if not tests[test])
        running: str | None = next(undone, None)
        if running is None:
            return None
        for tests in workload.values():
            if running in tests:
                tests[running] = True
        left = {file: tests for file, tests in workload.items() if not all(tests.values())}
        self.workqueue.update(left)
        for other in self.assigned_work:
            self._reschedule(other)
        return running

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = file_for(int(node.gateway.id.removeprefix("gw")), list(self.workqueue))
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def file_for(process: int, files: list[str]) -> str:
    """Return the file that a process does next."""
    has_session = process < _SESSIONS
    return next((file for file in files if file.startswith(SPARK) == has_session), files[0])


def shuffled(files: list[str], by: str) -> list[str]:
    """Return files in an order that depends on `by` alone, and looks random."""
    return sorted(files, key=lambda file: hashlib.sha256(f"{by} {file}".encode()).digest())


def commit_of(tree: Path) -> str:
    """Return the id of the commit that is checked out; empty without git."""
    got = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return got.stdout.strip()
