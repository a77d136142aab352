"""The streams of a site, in a process to be killed with its JVM: `killed_streams.py URL PLACE`.

One query writes numbers from files into the table `moved`, the other one reads the changes of that
table into files.  PLACE has `source`, the checkpoints `writing` and `reading`, and `rows`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sparktxlog import connect
from sparktxlog.api.session import build_session

ROOT = Path(__file__).parents[3]
ROWS_OF_A_FILE = 3


def add_files(place: Path, numbers: Iterable[int]) -> None:
    """Add one file for each number to the source, with some rows of its own."""
    (place / "source").mkdir(exist_ok=True)
    for number in numbers:
        first = ROWS_OF_A_FILE * number
        lines = [json.dumps({"id": row}) for row in range(first, first + ROWS_OF_A_FILE)]
        part = place / f"{number}.part"
        part.write_text("\n".join(lines))
        part.replace(place / "source" / f"{number:06}.json")


def writing(spark: SparkSession, url: str, place: Path, files: int) -> DataStreamWriter:
    """Return the query that writes into the log, so many files a batch."""
    source = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", files)
    writer = source.json(str(place / "source")).writeStream.format("txlog").queryName("writing")
    writer = writer.option("table", "moved").option("url", url)
    return writer.option("checkpointLocation", str(place / "writing"))


def reading(spark: SparkSession, url: str, place: Path) -> DataStreamWriter:
    """Return the query that reads from the log."""
    source = spark.readStream.format("txlog").option("table", "moved").option("url", url)
    writer = source.load().writeStream.format("parquet").option("path", str(place / "rows"))
    return writer.queryName("reading").option("checkpointLocation", str(place / "reading"))


def batches(place: Path, query: str) -> int:
    """Return how many batches of a query are done, as its checkpoint says."""
    found = (place / query / "commits").glob("[0-9]*")
    return sum(1 for _ in found)


@contextmanager
def running_streams(url: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run both queries at a site; in the end the process and its JVM are killed with SIGKILL."""
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    with (place / "streams.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, url, str(place)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def main(url: str, place: Path) -> None:
    """Run both queries until one fails, or until somebody kills the process."""
    spark = build_session("local[2]", {"spark.sql.shuffle.partitions": "1"})
    connect(spark, url)
    queries: list[StreamingQuery] = [
        reading(spark, url, place).start(),
        writing(spark, url, place, files=1).start(),
    ]
    assert queries
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
