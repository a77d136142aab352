"""`python -m tests.verification.nodes --seeds 8`: many seeds of whole nodes, or one again."""

from __future__ import annotations

import os
import sys

from tests.verification.nodes.placing_mutants import PLACING, install
from tests.verification.nodes.virtual import CLOCKS


def main() -> int:
    """Fix the hashes of this process, replace its clocks, and run what is asked for."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        arguments = [sys.executable, "-m", "tests.verification.nodes", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    CLOCKS.install()
    for name in set(sys.argv[1:]).intersection(PLACING):
        install(name)
    from tests.verification.nodes.command import command

    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
