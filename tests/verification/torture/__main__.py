"""Kill, stop, cut and fill real nodes under load, and check every promise against their disks.

make torture                                       # ten minutes
python -m tests.verification.torture --minutes 1 --seed 7 --keep DIRECTORY
python -m tests.verification.torture --store s3 --faulty 0.05
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.node_processes import TABLE, NodeProcess, wait_until
from tests.verification.places import Places, places_in, store_options
from tests.verification.torture.clients import Clients
from tests.verification.torture.faults import Faults, TorturedCluster
from tests.verification.torture.history import Act
from tests.verification.torture.judgement import Evidence, judge
from tests.verification.torture.replicas import Replica, Tables
from tests.verification.torture.workloads import (
    BANKS,
    LISTS,
    BulkHistory,
    Workloads,
    founding,
)

_SETTINGS = ('eviction = "auto"', "suspect-timeout = 2", "start-timeout = 6")
_SETTLE_S = 180.0
#: What the clients did, and the replicas → whether that is enough.
Enough = Callable[[BulkHistory, Sequence[Replica]], bool]


@contextmanager
def tortured(
    directory: Path,
    minutes: float,
    seed: int,
    store: str = "disk",
    faulty: float = 0.0,
    enough: Enough = lambda bulk, replicas: True,
) -> Iterator[Evidence]:
    """Run clients and faults for so long; yield what they left, as long as the disks are there.

    Args:
        store: As in `places_in`; `faulty` too.
        enough: Whether there is enough after that time; a slow machine goes on.
    """
    with (
        places_in(directory, store, faulty, seed) as places,
        _tortured(directory, places, minutes, seed, enough) as evidence,
    ):
        yield evidence


@contextmanager
def _tortured(
    directory: Path, places: Places, minutes: float, seed: int, enough: Enough
) -> Iterator[Evidence]:
    cluster = TorturedCluster(directory, "ABC", settings=_SETTINGS)
    cluster.places = places
    cluster.small_disks = os.geteuid() == 0 and shutil.which("mount") is not None
    clients = Clients(cluster.masters(), seed)
    replicas = [
        Replica(node, places.of(node, "payloads"), Tables(LISTS, BANKS))
        for node in cluster.masters()
    ]
    workloads = Workloads(cluster.masters(), replicas, seed)
    faults = Faults(cluster, seed, lambda line: print(f"  {line}", flush=True))
    followers = (clients, workloads, *replicas)
    try:
        cluster.start()
        wait_until(lambda: cluster.masters()[0].commit(TABLE)["position"], what="a table")
        opened = _open(cluster.masters()[0])
        cluster.settle()
        for each in followers[::-1]:
            each.start()
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end or not enough(workloads.history, replicas):
            faults.next()
        for each in followers:
            each.stop()
        position = cluster.settle(_SETTLE_S)
        cluster.agree(position, _SETTLE_S)
        cluster.publish()
        cluster.stop()
        bulk = workloads.history
        several = [*bulk.runs, *bulk.prepared]
        yield Evidence(
            directory=directory,
            payloads={
                name: places.judged(node, "payloads") for name, node in cluster.nodes.items()
            },
            acts=[opened, *clients.acts, *(act for one in several for act in one.acts())],
            bulk=bulk,
            replicas=replicas,
            faults=faults.count,
            requests=places.faults(),
        )
    finally:
        for each in followers:
            each.stop()
        cluster.stop()
        cluster.unmount()


def _open(node: NodeProcess) -> Act:
    """Create the tables of the bulk clients."""
    began = time.monotonic()
    receipt = node.commit(founding())
    ended = time.monotonic()
    return Act(receipt["transaction_id"], began, ended, "ordered", receipt["position"])


def _count(evidence: Evidence) -> None:
    """Say what the clients did; an operation is a transaction, or a read of all tables."""
    print("faults:", ", ".join(f"{name} {n}" for name, n in sorted(evidence.faults.items())))
    if evidence.requests:
        print(f"requests to the bucket: {evidence.requests}")
    bulk = evidence.bulk
    elements = sum(len(add.elements) for add in bulk.adds)
    appends = Counter(
        (f"conditional {one.told}" if one.reads else f"blind {one.told}")
        for one in bulk.lists
        if one.appends
    )
    print(f"operations: {len(evidence.acts) + bulk.reads:,}, of them {bulk.reads:,} reads,")
    print(f"{elements:,} elements added, {appends.total():,} appends to lists: {dict(appends)},")
    print(f"{bulk.transfers.total():,} transfers: {dict(bulk.transfers)}")
    decided = Counter(
        next((code or outcome for outcome, _, code in one.answers), one.act.told)
        for one in bulk.prepared
    )
    print(f"{decided.total():,} prepared transfers: {dict(decided)}", flush=True)


def main() -> int:
    """Run it; 0 = no violation."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    store_options(parser)
    parser.add_argument("--keep", type=Path, help="work in this empty directory, and keep it")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    given = parser.parse_args()
    directory = given.keep or Path(tempfile.mkdtemp(prefix="torture-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"three nodes for {given.minutes:g} minutes, seed {given.seed}", flush=True)
    with tortured(directory, given.minutes, given.seed, given.store, given.faulty) as evidence:
        _count(evidence)
        acts, found = evidence.acts, list(judge(evidence))
    told = Counter(act.told for act in acts)
    for line in found[:20]:
        print(f"violation: {line}")
    print(", ".join(f"{level} {count:,}" for level, count in sorted(told.items())))
    print(f"acts {len(acts)}, violations {len(found)}")
    if given.json:
        print(json.dumps({"seed": given.seed, "acts": len(acts), "told": told, "found": found}))
    if given.keep is None and not found:
        shutil.rmtree(directory, ignore_errors=True)
    elif found:
        print(f"logs and disks: {directory}; again: --seed {given.seed}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
