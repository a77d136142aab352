"""Put into a bucket whose way fails, and commit through nodes whose ways fail; then compare.

make puts                                           # 95,000 puts and 5,000 commits
python -m tests.verification.puts --puts 2000 --commits 0 --faulty 0.05 --seed 7
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.verification.places import BucketPlaces, Places, places_in
from tests.verification.puts.judgement import judge
from tests.verification.puts.record import Kind, Record, Violation
from tests.verification.puts.workload import PREFIX, Share, registers, work
from tests.verification.rivals.__main__ import Rivalry, run_in
from tests.verification.rivals.__main__ import summary as summary_of_commits

PROCESSES, THREADS = 2, 16


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the puts left."""

    record: Record
    violations: list[Violation]
    seconds: float

    @property
    def puts(self) -> int:
        """How many there were, whatever came of them."""
        return sum(n for (what, _), n in self.record.count.items() if what not in _NO_PUTS)

    def text(self) -> str:
        """Return the figures, as text."""
        kinds = Counter(one.kind for one in self.violations)
        said = ", ".join(f"{kinds[kind]} {kind.value}" for kind in Kind)
        told: dict[str, dict[str, int]] = {}
        for (operation, answer), count in sorted(self.record.count.items()):
            told.setdefault(operation, {})[answer] = count
        lines = [f"  {operation}: {answers}" for operation, answers in told.items()]
        speed = self.puts / self.seconds
        return "\n".join(
            (
                f"{self.puts:,} puts in {self.seconds:.0f} s, {speed:.0f} a second",
                *lines,
                f"requests to the bucket: {dict(self.record.faults)}",
                *(f"violation: {one.kind.value}: {one.text}" for one in self.violations[:20]),
                f"puts {self.puts}: {said}",
            )
        )


_NO_PUTS = ("read", "list", "look", "remove", "race, asked again")


def put(
    places: Places,
    *,
    puts: int,
    faulty: float,
    seed: int,
    processes: int = PROCESSES,
    threads: int = THREADS,
    quiet: bool = False,
) -> Found:
    """Put into the bucket of some places, then compare.

    Args:
        processes: Each has a way of its own.
        threads: Of each process.
    """
    assert isinstance(places, BucketPlaces)
    registers(places.server)
    shares = [
        Share(places.server, n, puts // processes, threads, faulty, seed + 100 * n, quiet)
        for n in range(processes)
    ]
    record, begin = Record(), time.monotonic()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(work, shares):
            record.add(part)
    seconds = time.monotonic() - begin
    violations = list(judge(record, places.server.store(PREFIX)))
    return Found(record=record, violations=violations, seconds=seconds)


def main() -> int:
    """Run it; 0 = no violation."""
    parser = argparse.ArgumentParser(prog="make puts", description=__doc__.split("\n")[0])
    parser.add_argument("--puts", type=int, default=95_000)
    parser.add_argument("--commits", type=int, default=5_000, help="through three nodes")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two node faults")
    parser.add_argument("--faulty", type=float, default=0.05, help="share of requests")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="that put")
    parser.add_argument("--threads", type=int, default=THREADS, help="of each process")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, help="work in this empty directory, and keep it")
    given = parser.parse_args()
    print(f"{given.puts:,} puts, {given.commits:,} commits, seed {given.seed}", flush=True)
    directory = given.keep or Path(tempfile.mkdtemp(prefix="puts-"))
    violations = 0
    with places_in(directory, "s3", given.faulty, given.seed) as places:
        if given.puts:
            found = put(
                places,
                puts=given.puts,
                faulty=given.faulty,
                seed=given.seed,
                processes=given.processes,
                threads=given.threads,
            )
            print(found.text(), flush=True)
            violations += len(found.violations)
        if given.commits:
            made: Rivalry = run_in(
                directory,
                places,
                commits=given.commits,
                tables=3,
                writers=2,
                seed=given.seed,
                pause=given.pause,
            )
            print(summary_of_commits(made), flush=True)
            violations += len(made.violations)
    if given.keep is None and not violations:
        shutil.rmtree(directory, ignore_errors=True)
    elif violations:
        print(f"logs and disks: {directory}; again: --seed {given.seed}")
    return 1 if violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
