"""A writer at the donor's site, for `copying`: prints one JSON line of what it got ordered."""

from __future__ import annotations

import json
import sys
import time
from statistics import median

from benchmarks.copy_target import TOKEN
from benchmarks.ordering import rows_of
from sparktxlog import Client

#: Rows, each a transaction, of a batch.
FULL, LIGHT = 1_000, 100
#: Seconds from batch to batch of a writer that does not fill the link.
LIGHT_EVERY_S = 0.1
#: Seconds before the measurement: the state is to be a steady one.
LEAD_S = 2.0


def main(url: str, kind: str, seconds: str) -> None:
    """Write for some seconds: `full` one batch after the other, `light` one now and then."""
    client = Client(url, TOKEN)
    size = FULL if kind == "full" else LIGHT
    rows, taken = rows_of(size), list[float]()
    began = time.perf_counter() + LEAD_S
    ends = began + float(seconds)
    while (now := time.perf_counter()) < ends:
        client.submit_many("readings", rows, run_transactions=size, level="ordered")
        done = time.perf_counter()
        if now >= began:
            taken.append(done - now)
        if kind == "light":
            time.sleep(max(0.0, now + LIGHT_EVERY_S - done))
    rate = size * len(taken) / float(seconds)
    print(json.dumps({"per_s": rate, "p50_s": median(taken)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
