"""Which process of a run gets which file: two of them start Spark, the others fill what is idle.

Tests with Spark keep a core busy, and each session takes seconds to start and gigabytes to keep.
Tests of nodes wait for half of their time: for patience to end, and for processes to start.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: Where the tests are that share the session of their process.
SPARK = "tests/spark/"
_SESSIONS = 2

#: Files that take minutes, the longest first: what is begun last should not be waited for.
LONGEST = (
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
    """Gives the first processes files with Spark, and the rest others, while there are any."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = file_for(int(node.gateway.id.removeprefix("gw")), list(self.workqueue))
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def file_for(process: int, files: list[str]) -> str:
    """Return the file that a process does next."""
    has_session = process < _SESSIONS
    return next((file for file in files if file.startswith(SPARK) == has_session), files[0])
