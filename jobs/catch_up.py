"""Bring the site's replica to the end of the published log, by replay or copy as the node plans.

./spark-submit.sh jobs/catch_up.py --url http://127.0.0.1:7070 [--force copy|replay] [--json]
The same as `sparktxlog catch-up`.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("catch-up")
