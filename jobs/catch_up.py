"""Bring the site's replica to the end of the published log, by replay or copy as the node plans.

./spark-submit.sh jobs/catch_up.py --url http://127.0.0.1:7070 [--force copy|replay] [--json]
The same as `sparktxlog catch-up`.
"""

from __future__ import annotations

from sparktxlog.api.jobs import job

main = job.main_of("catch-up")

if __name__ == "__main__":
    job.main(main)
