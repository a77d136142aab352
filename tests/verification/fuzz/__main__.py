"""Sends mutated requests of all routes to a node process: it must not end, and no answer be a 500.

Each segment has a node of its own and its own generator, so a finding is replayed by its numbers:

    python -m tests.verification.fuzz --seed 7 --segment 12 --requests 20000

Half of the segments play a peer of the node, whose requests are signed and then mutated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.verification.fuzz.segment import PER_SEGMENT, Finding, answers_of


def main() -> int:
    """Run the segments named on the command line; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.verification.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--requests", type=int, default=1_000_000, help="of all segments")
    parser.add_argument("--segment", type=int, help="replay this one")
    parser.add_argument("--jobs", type=int, default=4, help="segments at a time")
    arguments = parser.parse_args()
    each = min(PER_SEGMENT, max(1, arguments.requests // 2))  # a short form has both kinds
    segments = range(arguments.requests // each)
    if arguments.segment is not None:
        each = min(arguments.requests, PER_SEGMENT)
        segments = range(arguments.segment, arguments.segment + 1)
    seen: Counter[int] = Counter()
    began = time.monotonic()
    anew = multiprocessing.get_context("spawn")  # a forked process would take the same ports
    with ProcessPoolExecutor(arguments.jobs, anew) as pool:
        running = {
            pool.submit(answers_of, arguments.seed, segment, each): segment for segment in segments
        }
        for future in as_completed(running):
            segment = running[future]
            try:
                seen += future.result()
            except Finding:
                pool.shutdown(cancel_futures=True)
                print(f"replay: --seed {arguments.seed} --segment {segment} --requests {each}")
                return 1
            print(
                f"{sum(seen.values()):,} requests, segment {segment} is done, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    kinds = ", ".join(f"{status or 'closed'}: {n:,}" for status, n in sorted(seen.items()))
    total = f"{sum(seen.values()):,} requests, 0 crashes, 0 status 500"
    print(f"seed {arguments.seed}: {total} ({kinds})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
