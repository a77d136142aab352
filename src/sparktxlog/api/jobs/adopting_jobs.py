"""What the jobs `adopt` and `follow` do, for `jobs/*.py` and the commands `table adopt|follow`."""

from __future__ import annotations

import signal
import threading
from typing import Any

from sparktxlog.api.adopting.adoption import adopt as adopt_table
from sparktxlog.api.adopting.table_follower import TableFollower, describe
from sparktxlog.api.connect import connect
from sparktxlog.api.jobs.job import OK, JobContext
from sparktxlog.api.jobs.progress_lines import say
from sparktxlog.http.tokens import client_token


def adopt(context: JobContext) -> tuple[int, dict[str, Any]]:
    """Put a Delta table under the log, as a table of either kind, or say what would be done."""
    a = context.arguments
    with connect(context.spark, a.url, token=client_token()) as log:
        done = adopt_table(
            log.site,
            a.name,
            a.path,
            a.kind,
            keys=_keys(a.keys),
            way=a.files,
            dry_run=a.dry_run,
            timeout_s=a.timeout,
            tell=context.tell,
        )
    for line in done.lines():
        context.tell(line)
    return OK, done.to_document() | {"dry_run": a.dry_run}


def follow(context: JobContext) -> tuple[int, dict[str, Any]]:
    """Bring versions of a Delta table into the log: once, or following until a signal."""
    a = context.arguments
    with connect(context.spark, a.url) as log:
        follower = TableFollower(
            log,
            a.name,
            a.path,
            keys=_keys(a.keys),
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


def _keys(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
