"""Runs in the environment that has OpenLineage's client: `python openlineage_run.py URL`.

Jobs are watched by the hook; their work is a stand-in, since there is no Spark.  Events go where
the environment says.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sparktxlog_openlineage import LineageEvents

from sparktxlog.api.client import Client
from sparktxlog.api.jobs.job import JobContext, perform
from sparktxlog.errors import ApplyError


def apply(context: JobContext) -> tuple[int, dict[str, Any]]:
    """Do as if the replica were at position 2."""
    return 0, {"position": 2}


def commit(context: JobContext) -> tuple[int, dict[str, Any]]:
    """Fail."""
    raise ApplyError("the input cannot be read")


def _main(url: str) -> None:
    perform(argparse.Namespace(url=url), apply)
    perform(argparse.Namespace(url=url, table="t", input="/data/new.csv"), commit)
    with Client(url) as client:
        receipt = client.append("t", [{"id": 4, "v": "lineage"}])
        LineageEvents(client).committed("nightly", ["t"], receipt)


if __name__ == "__main__":
    _main(*sys.argv[1:])
