"""Recount the signatures of the site's replica by full scan, and compare it with other sites.

./spark-submit.sh jobs/verify.py --url http://127.0.0.1:7070 [--table NAME]… [--compare] [--json]

--compare also says since which position sites differ, from what they reported.  Only one full scan
at a time runs on a lake; the same as `sparktxlog verify`, with --recount where it compares.
"""

from __future__ import annotations

import sys

from sparktxlog.cli import main

if __name__ == "__main__":
    main("verify", *(["--recount"] if "--compare" in sys.argv else []))
