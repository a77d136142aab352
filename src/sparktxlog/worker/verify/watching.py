"""Progress of work that reports only its end: a thread looks at it from time to time.

Progress is a log record with `done` and `total`; the code that shows it decides how often and in
what form.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Seconds between two looks.
LOOK_S = 1.0


@contextmanager
def watched(look: Callable[[], None], every_s: float = LOOK_S) -> Iterator[None]:
    """Call `look` in a thread every so many seconds while the context is open, and once at its end.

    If a look fails, there are no more looks; the work goes on.
    """
    ended = threading.Event()

    def run() -> None:
        over = False
        while not over:
            over = ended.wait(every_s)
            try:
                look()
            except Exception as error:  # noqa: BLE001
                _logger.info("progress is not known any more: %s", str(error)[:200])
                return

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tasks_shown(spark: SparkSession, logger: logging.Logger, what: str) -> Callable[[], None]:
    """Return a look at the tasks of Spark's running stages, logged as progress of `what`."""
    tracker = spark.sparkContext.statusTracker()

    def look() -> None:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        total = sum(stage.numTasks for stage in stages if stage is not None)
        if total:
            logger.info(
                "%s: %s of %s tasks",
                what,
                f"{done:,}",
                f"{total:,}",
                extra={"done": done, "total": total},
            )

    return look
