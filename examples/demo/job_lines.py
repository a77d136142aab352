"""Spark jobs of the demo take lines of JSON on stdin, and answer with lines on stdout.

A line `{"do": "commit", "part": 0, "parts": 3, "level": "ordered"}` calls the method `commit` with
the other values; the answer is what it returns, and the seconds it took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from pyspark.sql import SparkSession


class ListeningJob(Protocol):
    """A job whose public methods are its commands."""

    spark: SparkSession


#: Up to this part of the year a run is too short for the JVM's optimising compiler.
_SHORT_SCALE = 0.2


def session_settings(scale: float) -> dict[str, str]:
    """Return settings for one of three Spark sessions on one machine."""
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    if scale <= _SHORT_SCALE:
        # Three JVMs that live for two minutes would spend most of them on optimising code.
        conf["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return conf


def obey(job: ListeningJob) -> None:
    """Execute commands until stdin ends; then Spark stops."""
    try:
        for line in sys.stdin:
            command, started = json.loads(line), monotonic()
            step: Callable[..., dict[str, Any]] = getattr(job, command.pop("do"))
            try:
                found = step(**command)
            except Exception as error:
                # The story decides what a failure means; the trace is in the site's log.
                _say({"error": f"{type(error).__name__}: {error}"[:2000]})
                raise
            _say({"seconds": monotonic() - started, **found})
    finally:
        job.spark.stop()


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()
