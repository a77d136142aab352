"""Put an existing Delta table under the log, as a new table.

./spark-submit.sh jobs/adopt.py NAME PATH --as row-table --keys id --url http://127.0.0.1:7070
The same as `sparktxlog table adopt`; docs/adopting.md.
"""

from __future__ import annotations

from sparktxlog.cli import main

if __name__ == "__main__":
    main("table", "adopt")
