"""A node that was away fetches what it missed and nothing else, also if it is killed meanwhile.

Protocol P21.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import Cluster, NodeProcess, append, queue_of, running, wait_until

from sparktxlog.codec.containers.assembly import assemble_rows
from sparktxlog.model.transactions.operation import OperationKind

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

_PER_RUN = 100
#: Beside the runs: their headers, posts and votes.
_SLACK_BYTES = 100_000


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three masters that go on without one of them."""
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        yield cluster


def random_run(seed: int) -> bytes:
    """Return a run of 100 appends, about 44 KB that cannot be compressed."""
    text = [os.urandom(200).hex() for _ in range(_PER_RUN)]
    rows = pa.table({"id": pa.array(range(_PER_RUN), pa.int64()), "v": text})
    ids = b"".join((seed * 1_000 + i).to_bytes(16, "big") for i in range(1, _PER_RUN + 1))
    txs = np.arange(_PER_RUN, dtype=np.int32)
    return assemble_rows("t", OperationKind.APPEND, 1, rows, txs, ids, 1)[1]


def fill(nodes: list[NodeProcess], seeds: Iterable[int]) -> None:
    """Commit a run for each seed, at the nodes in turn, some at a time."""
    with ThreadPoolExecutor(4) as pool:
        for receipt in pool.map(lambda s: nodes[s % len(nodes)].commit_run(random_run(s)), seeds):
            assert (receipt["level"], receipt["rejections"]) == ("ordered", [])


def size(entries: Iterable[dict[str, Any]]) -> int:
    """Return the bytes of runs."""
    return sum(run["size_bytes"] for run in entries)


def fetched(node: NodeProcess) -> int:
    """Return the bytes of runs and summaries that a node fetched since its start."""
    return sum(peer["fetched_bytes"] for peer in node.status()["peers"])


def told(nodes: Iterable[NodeProcess], to: str) -> int:
    """Return the bytes that nodes have sent to another one: tails, pushes, posts and votes."""
    lines = (peer for node in nodes for peer in node.status()["peers"])
    return sum(peer["sent_bytes"] for peer in lines if peer["id"] == to)


def test_only_what_a_node_missed_is_moved_to_it(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    fill([a, b, c], range(150))
    base = three.publish()
    c.kill()
    assert a.commit(append(1), timeout=60)["position"] == base + 1
    fill([a, b], range(1_000, 1_010))
    position = base + 1 + 10 * _PER_RUN
    before = told((a, b), "C")

    c.start()
    all_show(three, "ABC")
    three.agree(position)
    missed, history = size(queue_of(a, base)), size(queue_of(a))
    assert history > 10 * missed > 10 * _SLACK_BYTES
    assert missed <= fetched(c) <= missed + _SLACK_BYTES
    assert told((a, b), "C") - before < _SLACK_BYTES
    assert "summary taken over" not in c.log_text()


def test_a_joiner_that_is_killed_three_times_goes_on_where_it_was(three: Cluster) -> None:
    a, b, c = three.nodes.values()
    fill([a, b, c], range(5))
    base = three.settle()
    c.kill()
    a.commit(append(1), timeout=60)
    fill([a, b], range(1_000, 2_000))
    position = base + 1 + 1_000 * _PER_RUN
    reached = [base]

    def moves_on() -> dict[str, Any]:
        """Return its status while it catches up, further than before."""
        status = c.status()
        assert status["epoch"] <= 2, f"it was admitted before, at {status['position']}"
        further = status["position"] > reached[-1]
        return status if status["phase"] == "JOINING" and further else {}

    # A fast machine fetches hundreds of runs between two looks, so more are missing each time.
    for first in (2_000, 3_000, 4_000):
        c.start()
        status = wait_until(moves_on, what="C catches up")
        c.kill()
        reached.append(status["position"])
        fill([a, b], range(first, first + 500))
        position += 500 * _PER_RUN
    assert reached[-1] < position, reached

    c.start()
    all_show(three, "ABC")
    three.agree(position)
    # What it had told of was durable, and was not fetched again.
    starts = [int(found) for found in re.findall(r"started .* position=(\d+)", c.log_text())]
    assert len(starts) == 5
    assert all(start >= told for start, told in zip(starts[1:], reached, strict=True))
    assert fetched(c) <= size(queue_of(a, reached[-1])) + _SLACK_BYTES
    assert "summary taken over" not in c.log_text()
    queues = [[run["digest"] for run in queue_of(node)] for node in (a, b, c)]
    assert queues[0] == queues[1] == queues[2]
    assert len(set(queues[0])) == len(queues[0]) == len({*map(name_of, queue_of(c))})
    assert c.commit(append(2))["position"] == position + 1
    three.agree(position + 1)


def name_of(run: dict[str, Any]) -> tuple[str, int, int]:
    """Return origin, incarnation and number of a run."""
    return run["origin"], run["incarnation"], run["seq"]
