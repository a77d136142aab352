"""The replica's lock as Spark's driver JVM holds it.

A worker's Python process may be killed while its JVM still ends a commit.  The next worker must
not begin before that JVM is gone, so the JVM holds a lock of its own on the replica.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from sparktxlog.errors import LockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds to wait for the JVM of a killed worker to end.
WAIT_S = 60.0


def lock_by_driver(
    spark: SparkSession, path: Path, *, wait_s: float = WAIT_S
) -> Callable[[], None]:
    """Lock a file in the name of Spark's driver; return what releases it.

    Raises:
        LockedError: The JVM of another worker still lives (definite).
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    deadline = monotonic() + wait_s
    never = threading.Event()
    while channel.tryLock() is None:
        if monotonic() > deadline:
            channel.close()
            raise LockedError(
                f"the Spark driver of another worker still holds {path}",
                hint="Find the java process that a killed worker left, and end it.",
                path=str(path),
            )
        never.wait(0.2)
    release: Callable[[], None] = channel.close
    return release
