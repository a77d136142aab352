"""Commits of sites far from each other, in virtual time: how many delays of one way they take.

No fault happens, and no machine is slow: what is left is what nodes wait for (P8).
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.verification.nodes.network import Weather
from tests.verification.nodes.world import Layout, World

from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.runtime.node import Node

_SITES = ("a", "b", "c")
_ROWS = pa.table({"id": pa.array([7], pa.int64())})
#: Nodes are linked, and the table of the simulation's clients is there; seconds.
_BEGIN_S = 10.0
#: Commits of a writer in each case, and how long they may take altogether, in seconds.
_COMMITS, _MOST_S = 40, 600.0


class FarSites:
    """Three sites, and a writer at each.

    Args:
        delay_s: Of one way.
        root: An empty directory for the disks.
    """

    def __init__(self, delay_s: float, root: Path) -> None:
        self._delay_s = delay_s
        self._world = World(1, Layout(name="far", masters=_SITES), root, load_until_s=0.0)
        self._world.network.weather = Weather(delay_min_s=delay_s, delay_max_s=delay_s, late=0.0)
        #: Case → delays that each commit took.
        self.found: dict[str, list[float]] = {}

    def run(self) -> dict[str, list[float]]:
        """Return for each case how many delays its commits took."""
        gc.disable()  # see `run_seed`
        world = self._world
        for node in world.nodes.values():
            world.after(0.0, node.start)
        world.run_until(_BEGIN_S)
        cases = {
            "spaced": [("a", 0.7 + 2 * self._delay_s)],
            "back to back": [("a", 0.0)],
            "one writer at each site": [(site, 0.0) for site in _SITES],
        }
        for case, writers in cases.items():
            took: list[float] = []
            self.found[case] = took
            for site, pause_s in writers:
                task = world.loop.create_task(
                    self._write(site, pause_s, took), context=world.context
                )
                task.add_done_callback(world.report)
            self._wait(took, _COMMITS * len(writers))
        if world.checks.violation:
            raise AssertionError(world.checks.violation)
        return self.found

    def _wait(self, took: list[float], commits: int) -> None:
        world = self._world
        world.run_until(world.loop.time() + _MOST_S, lambda: len(took) == commits)

    async def _write(self, site: str, pause_s: float, took: list[float]) -> None:
        world, node = self._world, self._world.nodes[site]
        for _ in range(_COMMITS):
            await asyncio.sleep(pause_s * world.random.uniform(0.5, 1.5))
            append = PreparedOperation(table="t", kind=OperationKind.APPEND, rows=_ROWS)
            identity = world.random.randbytes(16)
            transaction = PreparedTransaction(transaction_id=identity, operations=(append,))
            began = world.loop.time()
            await world.clients.ask(node, partial(_submit, transaction))
            took.append((world.loop.time() - began) / self._delay_s)


def _submit(transaction: PreparedTransaction, asked: Node) -> Coroutine[Any, Any, Receipt]:
    return asked.submit(transaction, level=Level.ORDERED, timeout=60)


def tell(delay_s: float, root: Path) -> None:
    """Print a line a case, and all as an object: case → median and most, in delays."""
    found = {
        case: (round(statistics.median(took), 3), round(max(took), 3))
        for case, took in FarSites(delay_s, root).run().items()
    }
    for case, (median, most) in found.items():
        print(f"{case}: {median} delays of one way, at most {most}")
    print(json.dumps(found))
