"""The command line `sparktxlog`: it turns arguments into calls.

Exit codes: 0 in sync, 1 error, 2 usage, 3 lagging, 4 diverged, 5 unreachable, 6 bad configuration.
"""

from __future__ import annotations

import sys


def main(*words: str) -> None:
    """Run the command line; if its libraries are missing, say how to install them.

    Args:
        words: Command and options before the arguments of the process; `jobs/*.py` give theirs.
    """
    sys.argv[1:1] = words
    try:
        from sparktxlog.cli.command_line import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "sparktxlog":
            raise
        sys.stderr.write(
            f"[missing-dependency] the command line needs {error.name!r}  "
            "Run: pip install 'sparktxlog[node]' for nodes, 'sparktxlog[spark]' for tables, "
            "'sparktxlog[node,spark]' for both\n"
        )
        sys.exit(1)
    run()
