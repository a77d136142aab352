"""SIGKILL at named points of publishing and acquiring, and at random: the same final tables."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.forked_nodes import fork_node
from tests.support.node_processes import Cluster, HttpProblem, NodeProcess, call, wait_until

from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900)]

PUBLISHING = ("files", "rows", "mark", "rows")
ACQUIRING = ("verified", "received", "before", "after")
#: Kills at random moments, in the long and in the short form.
RANDOM_KILLS, FEW_KILLS = 10, 3
COLUMNS = [
    {"name": "id", "type": "bigint", "nullable": False},
    {"name": "value", "type": "string"},
]
CREATE = {
    "operations": [
        {"kind": "create_table", "table": "kept", "columns": COLUMNS, "keys": ["id"]},
        {"kind": "create_table", "table": "added", "columns": COLUMNS},
    ]
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    cluster.start()
    yield cluster
    cluster.stop()


class Workload:
    """Commits that are repeated under the same id until the outcome is known."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        #: Transaction id → rows it upserts into `kept` and appends to `added`.
        self.committed: dict[str, list[dict[str, Any]]] = {}
        self._numbers = iter(range(1, 1_000_000))
        self._lock = threading.Lock()

    def commit(self, name: str, *, staged: bool = False) -> None:
        """Commit at a node, however often it dies meanwhile."""
        with self._lock:
            number = next(self._numbers)
        key = str(uuid.UUID(int=number))
        rows = [{"id": (number + i) % 50, "value": f"{number}-{i}"} for i in range(3)]
        body = {
            "transaction_id": key,
            "operations": [
                {"kind": "upsert", "table": "kept", "rows": rows},
                {"kind": "append", "table": "added", "rows": rows},
            ],
        }
        node = self.cluster.nodes[name]
        if staged:
            body["operations"][1] = self._staged(node, key, rows)

        def done() -> bool:
            try:
                return node.commit(body, timeout=20)["outcome"] == "committed"
            except HttpProblem as problem:
                if problem.document["definite"] and problem.status != 503:
                    raise AssertionError(f"refused: {problem}") from problem
                raise

        wait_until(done, 60, f"commit {number} at {name}")
        self.committed[key] = rows

    def _staged(self, node: NodeProcess, key: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        path = f"{key}/added/part-0.parquet"
        file = node.directory / node.name / "payloads" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string())])
        pq.write_table(pa.Table.from_pylist(rows, schema), file)
        content = file.read_bytes()
        described = {
            "path": path,
            "size_bytes": len(content),
            "rows": len(rows),
            "digest": hashlib.sha256(content).hexdigest(),
        }
        return {"kind": "append", "table": "added", "files": [described]}

    def expected(self) -> tuple[dict[int, str], list[tuple[int, str]]]:
        """Return what the tables must hold, from the order that node A tells."""
        url = self.cluster.nodes["A"].url
        kept: dict[int, str] = {}
        positions = {
            key: call(f"{url}/v1/transactions/{key}")["position"] for key in self.committed
        }
        assert len(set(positions.values())) == len(positions)
        for key in sorted(self.committed, key=positions.__getitem__):
            for row in self.committed[key]:
                kept[row["id"]] = row["value"]
        added = [(row["id"], row["value"]) for rows in self.committed.values() for row in rows]
        return kept, sorted(added)


@pytest.mark.long
@pytest.mark.slow
def test_kills_change_nothing_in_the_final_tables(
    spark: Any, cluster: Cluster, long_form: bool
) -> None:
    work = Workload(cluster)
    cluster.nodes["A"].commit(CREATE)
    points = (*PUBLISHING, *ACQUIRING)
    for point in points if long_form else dict.fromkeys(points):
        die_at(cluster, work, point)
    kill_at_random(cluster, work, RANDOM_KILLS if long_form else FEW_KILLS)
    position = max(node.status()["position"] for node in cluster.nodes.values())
    cluster.agree(position)
    kept, added = work.expected()
    signatures = [applied(spark, node, position, kept, added) for node in cluster.nodes.values()]
    assert signatures[0] == signatures[1] == signatures[2]


def die_at(cluster: Cluster, work: Workload, point: str) -> None:
    """Let B run until it dies at a point, then restart it as it is."""
    node = cluster.nodes["B"]
    node.stop()
    node.process = fork_node(node.log, str(node.config), point, program="tests.spark.killed_node")
    commits = threading.Thread(target=lambda: [work.commit("A", staged=s) for s in (True, False)])
    commits.start()
    assert node.process.wait(60) == -signal.SIGKILL, point
    node.start()
    commits.join()
    work.commit("B", staged=True)


def kill_at_random(cluster: Cluster, work: Workload, kills: int) -> None:
    """Kill and restart random nodes while all three take commits."""
    chance = random.Random(7)
    over = threading.Event()
    failures: list[BaseException] = []

    def commit_on(name: str) -> None:
        try:
            while not over.is_set():
                work.commit(name, staged=chance.random() < 0.2)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=commit_on, args=(name,)) for name in cluster.nodes]
    for thread in threads:
        thread.start()
    before = len(work.committed)
    for _ in range(kills):
        node = cluster.nodes[chance.choice("ABC")]
        time.sleep(chance.uniform(0.1, 1.0))  # the moment of the kill is what is random
        node.kill()
        node.start()
        node.wait_ready()
    # On a slow machine there was none between two kills.
    wait_until(lambda: failures or len(work.committed) > before + kills, what="commits go on")
    over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures


def applied(
    spark: Any,
    node: NodeProcess,
    position: int,
    kept: dict[int, str],
    added: list[tuple[int, str]],
) -> dict[str, str]:
    """Apply the log to a site's replica, compare its rows, and return its signatures."""
    with (
        closing(HttpLogSource(node.url)) as source,
        closing(ReplicaDirectory(source.info().lake_root)) as directory,
    ):
        applier = Applier(spark, source, directory)
        outcome = applier.run_once(at_least=position, timeout_s=60)
        assert outcome.position == position and outcome.verdict == "IN_SYNC"
        lake = source.info().lake_root
        tables = applier.state.tables
    for name, rows in (("kept", sorted(kept.items())), ("added", added)):
        frame = spark.read.format("delta").load(f"{lake}/{name}")
        assert sorted(map(tuple, frame.collect())) == rows
    return {name: table.signature.to_text() for name, table in tables.items()}
