"""Kill and cut off three nodes while writers at all sites write to a few commit tables.

make rivals                                         # 10,000 commits
python -m tests.verification.rivals --commits 500 --tables 2 --seed 7
python -m tests.verification.rivals --commits 500 --store s3 --faulty 0.05
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.node_processes import NodeProcess
from tests.verification.places import Places, places_in, store_options
from tests.verification.rivals.placed_tables import added, read, versions
from tests.verification.rivals.writers import Rivals, Told
from tests.verification.torture.faults import Faults, TorturedCluster

SETTINGS = ('eviction = "auto"', "suspect-timeout = 5", "start-timeout = 10")
#: The last two happen to tables in a bucket only.
KINDS = (
    *("kill", "kill_two", "cut", "one_way", "pause", "restart"),
    *("store_away", "store_away_at_start"),
)
SETTLE_S = 180.0
#: Writers go on until there were so many, however fast they are.
LEAST_FAULTS = 2


@dataclass(frozen=True, kw_only=True)
class Rivalry:
    """What a run left."""

    told: Told
    violations: list[str]
    faults: Counter[str]
    seconds: float
    #: How many requests to the bucket met which fault.
    requests: dict[str, int]


def run(
    directory: Path,
    *,
    commits: int,
    tables: int,
    writers: int,
    seed: int,
    pause: float = 0.0,
    quiet: bool = False,
    store: str = "disk",
    faulty: float = 0.0,
) -> Rivalry:
    """Let writers write under faults, then compare rows and histories.

    Args:
        store: As in `places_in`; `faulty` too.
    """
    with places_in(directory, store, faulty, seed) as places:
        return run_in(
            directory,
            places,
            commits=commits,
            tables=tables,
            writers=writers,
            seed=seed,
            pause=pause,
            quiet=quiet,
        )


def run_in(
    directory: Path,
    places: Places,
    *,
    commits: int,
    tables: int,
    writers: int,
    seed: int,
    pause: float = 5.0,
    quiet: bool = False,
) -> Rivalry:
    """Let writers write to tables in some places, as `run`."""
    cluster = TorturedCluster(directory, "ABC", settings=SETTINGS)
    cluster.places = places
    say = (lambda line: None) if quiet else (lambda line: print(f"  {line}", flush=True))
    faults = Faults(cluster, seed, say, kinds=KINDS)
    try:
        cluster.start()
        rivals = Rivals(cluster.masters(), tables, writers, commits, seed, places)
        asyncio.run(rivals.create())
        begin = time.monotonic()
        rivals.goes_on = True
        writing = threading.Thread(target=asyncio.run, args=(rivals.run(),), daemon=True)
        writing.start()
        while writing.is_alive() and rivals.left > 0:
            faults.next()
            rivals.goes_on = faults.count.total() < LEAST_FAULTS
            writing.join(pause)
            if not quiet:
                print(f"  {rivals.left:,} commits are left", flush=True)
        writing.join(SETTLE_S)
        seconds = time.monotonic() - begin
        found = [] if not writing.is_alive() else ["writers still wait after the last fault"]
        cluster.settle(SETTLE_S)
        found += _until_equal(cluster.masters(), rivals)
        found += rivals.told.violations
    finally:
        cluster.stop()
    return Rivalry(
        told=rivals.told,
        violations=found,
        faults=faults.count,
        seconds=seconds,
        requests=places.faults(),
    )


def _until_equal(nodes: list[NodeProcess], rivals: Rivals) -> list[str]:
    """Wait until all sites have placed what is ordered; return what is wrong then."""
    try:
        rivals.wait_until_equal(SETTLE_S)
    except AssertionError as error:
        return [str(error)]
    return [line for name in rivals.tables for line in _differences(nodes, rivals, name)]


def _differences(nodes: list[NodeProcess], rivals: Rivals, name: str) -> Iterator[str]:
    """Yield what is wrong with a table at any site."""
    told, uuid = rivals.told, rivals.tables[name]
    wanted = {row for row, (_, table) in told.committed.items() if table == name}
    histories = set()
    for node in nodes:
        place, rows = rivals.places.judged(node), Counter[str]()
        there = versions(place, uuid)
        if there != list(range(len(there))):
            yield f"{node.name} has a gap in {name}"
        history = [read(place, f"{uuid}/_delta_log/{version:020}.json") for version in there]
        digests = [hashlib.sha256(content).hexdigest() for content in history]
        histories.add(tuple(digests))
        for version, digest in enumerate(digests):
            if told.versions.get((name, version), digest) != digest:
                yield f"version {version} of {name} was told 200, {node.name} has another one"
        for content in history:
            for add in added(content):
                rows[read(place, f"{uuid}/{add['path']}").decode()] += 1
        yield from (f"{node.name} has row {row} {n} times" for row, n in rows.items() if n > 1)
        yield from (f"{node.name} lacks row {row}" for row in wanted - rows.keys())
        yield from (f"{node.name} has row {row} of nobody" for row in rows.keys() - wanted)
    if len(histories) > 1:
        yield f"histories of {name} differ"


def summary(found: Rivalry) -> str:
    """Return the figures of a run, as text."""
    told, total = found.told, len(found.told.committed)
    sites = Counter(site for site, _ in told.committed.values())
    shares = ", ".join(f"{site} {n:,} ({n / total:.0%})" for site, n in sorted(sites.items()))
    requests = sum(count * rows for count, rows in told.attempts.items())
    lines = [
        f"{total:,} commits in {found.seconds:.0f} s; sites: {shares}",
        f"transactions that wrote to two tables: {told.pairs:,}",
        f"requests for a commit: {requests / total:.2f}, at most {max(told.attempts)}",
        "faults: " + ", ".join(f"{name} {n}" for name, n in sorted(found.faults.items())),
        "answers beside 200: " + ", ".join(f"{k} {n:,}" for k, n in told.problems.most_common()),
        *([f"requests to the bucket: {found.requests}"] if found.requests else []),
        *(f"violation: {line}" for line in found.violations[:20]),
        f"commits {total}, violations {len(found.violations)}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run it; 0 = no violation."""
    parser = argparse.ArgumentParser(prog="make rivals", description=__doc__.split("\n")[0])
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--writers", type=int, default=1, help="of each table at each site")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    store_options(parser)
    parser.add_argument("--keep", type=Path, help="work in this empty directory, and keep it")
    given = parser.parse_args()
    print(f"{given.commits:,} commits, {given.tables} tables, seed {given.seed}", flush=True)
    directory = given.keep or Path(tempfile.mkdtemp(prefix="rivals-"))
    found = run(
        directory,
        commits=given.commits,
        tables=given.tables,
        writers=given.writers,
        seed=given.seed,
        pause=given.pause,
        store=given.store,
        faulty=given.faulty,
    )
    print(summary(found))
    if given.keep is None and not found.violations:
        shutil.rmtree(directory, ignore_errors=True)
    elif found.violations:
        print(f"logs and disks: {directory}; again: --seed {given.seed}")
    return 1 if found.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
