"""Undo foreign writes to a table, from the site's own files and the log.

./spark-submit.sh jobs/repair.py orders --url http://127.0.0.1:7070 [--dry-run] [--local] [--json]
The same as `sparktxlog repair`.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("repair")
