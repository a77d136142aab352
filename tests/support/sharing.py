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


class FewSessions(LoadFileScheduling):
    """Gives the first files to the first processes, and others to the rest while there are any."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        file = file_for(int(node.gateway.id.removeprefix("gw")), list(self.workqueue))
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def file_for(process: int, files: list[str]) -> str:
    """Return the file that a process does next."""
    others = (file for file in files if not file.startswith(SPARK))
    return files[0] if process < _SESSIONS else next(others, files[0])
