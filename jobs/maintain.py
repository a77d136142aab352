"""Shorten the site's log to its limits, then compact and vacuum the tables of its replica.

./spark-submit.sh jobs/maintain.py --url http://127.0.0.1:7070 [--tables NAME]… [--json]
Only one at a time runs on a lake; for schedulers see docs/jobs.md.  Backup images, and
what copies put aside, are removed where an option says so, never by default.  The same as
`sparktxlog maintain`.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("maintain")
