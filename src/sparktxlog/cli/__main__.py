"""`python -m sparktxlog.cli`: the command line where no console script is installed."""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main()
