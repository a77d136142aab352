"""Copy a donor's replica to this site with Spark's executors; then replay the rest.

./spark-submit.sh jobs/replicate.py --url http://127.0.0.1:7070 [--parts 8] [--json]
All executors must see the lake under the driver's path.  The same as `sparktxlog replicate`.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("replicate")
