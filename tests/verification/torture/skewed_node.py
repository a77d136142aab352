"""A node whose wall clock is off by what a file says: `skewed_node.py FILE PYTHON -m MODULE …`.

Run as a script before the command of a node.  The file holds microseconds, and is read at each look
at the clock, so a clock can jump while its node runs.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    offset, (_, _, module, *arguments) = Path(sys.argv[1]), sys.argv[2:]
    real_ns = time.time_ns

    def skewed_ns() -> int:
        """Return the time of a clock that is off."""
        return real_ns() + 1_000 * int(offset.read_text() or 0)

    time.time_ns = skewed_ns
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
