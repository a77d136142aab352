"""Bring each new version of a Delta table that this site's jobs write into the log.

./spark-submit.sh jobs/follow.py NAME PATH --url http://127.0.0.1:7070 [--keys id] [--once]
The same as `sparktxlog table follow`; docs/adopting.md.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("table", "follow")
