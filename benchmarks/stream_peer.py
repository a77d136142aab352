"""The peer of `visibility`: a Structured Streaming query from one Delta table to another."""

from __future__ import annotations

import sys

from benchmarks.sparks import session


def main(source: str, target: str) -> None:
    """Start the query, print a line once the first rows are there, follow until ended."""
    spark = session()
    query = (
        spark.readStream.format("delta")
        .load(source)
        .writeStream.format("delta")
        .option("checkpointLocation", f"{target}-checkpoint")
        .trigger(processingTime="0 seconds")
        .start(target)
    )
    query.processAllAvailable()
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
