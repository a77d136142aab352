"""Apply the published log to the site's replica: once, following, or up to a position.

./spark-submit.sh jobs/apply.py --url http://127.0.0.1:7070 [--follow | --at-most N] [--json]
The same as `sparktxlog apply`.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("apply")
