"""What the job `follow` does, for `jobs/follow.py` and the command `table follow`."""

from __future__ import annotations

import signal
import threading
from typing import Any

from sparktxlog.api.adopting.table_follower import TableFollower, describe
from sparktxlog.api.connect import connect
from sparktxlog.api.jobs.job import OK, JobContext
from sparktxlog.api.jobs.progress_lines import say


def follow(context: JobContext) -> tuple[int, dict[str, Any]]:
    """Bring versions of a Delta table into the log: once, or following until a signal."""
    a = context.arguments
    with connect(context.spark, a.url) as log:
        follower = TableFollower(
            log,
            a.name,
            a.path,
            keys=[name.strip() for name in a.keys.split(",") if name.strip()],
            state=a.state,
            overwrite=a.overwrite,
            tell=say,
        )
        if a.dry_run:
            planned = follower.planned()
            for line in planned or [f"table {a.name} has the newest version of {a.path}"]:
                say(line)
            say("Nothing was changed.")
            return OK, {"table": a.name, "dry_run": True, "planned": planned}
        brought = []
        if a.once:
            brought = follower.step()
            for one in brought:
                say(describe(one))
        else:
            stop = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
            follower.follow(stop)
        say(f"table {a.name} has version {follower.version} of {a.path}")
        return OK, {
            "table": a.name,
            "version": follower.version,
            "brought": [one.to_document() for one in brought],
        }
