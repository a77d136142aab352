"""Let a follower take the place of a site, as one job with a plan and a report; needs no Spark.

./spark-submit.sh jobs/switch_site.py A F --url http://127.0.0.1:7070 [--dry-run] [--report DIR]

The same as `sparktxlog site switch`; a plain `python jobs/switch_site.py` runs it, too.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("site", "switch")
