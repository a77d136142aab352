"""The log of real nodes stops growing, also when they are killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.forked_nodes import fork_node, run_command
from tests.support.node_processes import (
    TABLE,
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    call,
    wait_until,
)

from sparktxlog.codec.containers.assembly import assemble_rows
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.image import Image

pytestmark = pytest.mark.e2e


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes with 2,500 transactions in many segments, some megabytes in all."""
    made = Cluster(tmp_path)
    try:
        made.start()
        made.nodes["A"].commit(TABLE)
        fill(list(made.nodes.values()), width=800)
        yield made
    finally:
        made.stop()


def payload(seed: int, width: int = 200) -> bytes:
    """Return a run of 100 appends of random text; the same seed names the same transactions."""
    texts = [os.urandom(width).hex() for _ in range(100)]
    rows = pa.table({"id": pa.array(range(100)), "v": texts})
    ids = b"".join((seed * 1_000 + i).to_bytes(16, "big") for i in range(1, 101))
    txs = np.arange(100, dtype=np.int32)
    return assemble_rows("t", OperationKind.APPEND, 1, rows, txs, ids, 1)[1]


def fill(nodes: list[NodeProcess], first: int = 0, width: int = 200, runs: int = 25) -> int:
    """Commit runs of 100 transactions, each published by itself; return the position."""
    position = 0
    for number in range(runs):
        receipt = nodes[number % len(nodes)].commit_run(payload(first + number, width))
        position = receipt["position"] + 99
        # At all of them: one that is late would publish several runs as one segment.
        for node in nodes:
            call(f"{node.url}/v1/published?at_least={position}&timeout=20")
    return position


def report(node: NodeProcess) -> dict[str, Any]:
    """Report for the node's site that all was applied."""
    info = call(f"{node.url}/v1/info")
    status = node.status()
    answer: dict[str, Any] = call(
        f"{node.url}/v1/worker/reports",
        {
            "worker_id": f"worker-{node.name}",
            "node_id": node.name,
            "log_id": info["log_id"],
            "epoch": info["epoch"],
            "position": status["position"],
            "chain_hash": status["chain_hash"],
        },
    )
    assert answer["verdict"] == "IN_SYNC"
    return answer


def all_reported(nodes: list[NodeProcess], position: int) -> None:
    """Report at all sites and wait until all nodes know of it."""
    for node in nodes:
        report(node)
    for node in nodes:
        wait_until(
            lambda node=node: (
                [r["position"] for r in node.status()["replicas"]] == [position] * len(nodes)
            ),
            what="all replicas are known",
        )


def maintain(node: NodeProcess) -> dict[str, Any]:
    """Shorten a node's log now."""
    result: dict[str, Any] = call(f"{node.url}/v1/maintenance", {})
    return result


def limit(node: NodeProcess, **settings: Any) -> None:
    """Change settings of a running node."""
    for name, value in settings.items():
        body = json.dumps({name.replace("_", "-"): value}).encode()
        request = urllib.request.Request(
            f"{node.url}/v1/settings",
            data=body,
            method="PATCH",
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()


def files_of(node: NodeProcess) -> set[str]:
    """Return the files of inline rows that a node holds."""
    root = node.directory / node.name / "payloads" / "inline"
    return {path.relative_to(root).parts[0] for path in root.rglob("*.parquet")}


def test_a_lowered_limit_shortens_the_log_once_all_applied(cluster: Cluster) -> None:
    nodes = list(cluster.nodes.values())
    node = nodes[0]
    position = cluster.settle()
    cluster.agree(position)
    for one in nodes:
        call(f"{one.url}/v1/published?at_least={position}&timeout=20")
    before = maintain(node)
    assert before["pruned_to"] == 0
    full = node.status()["log_bytes"] - payload_log_bytes(node)
    limit(node, tx_log_max_size=200)

    # A site whose worker never reported holds the log back.
    for one in nodes[:2]:
        report(one)
    held = maintain(node)
    assert held["pruned_to"] == 0
    assert "worker of C" in held["held_by"]

    all_reported(nodes, position)
    done = maintain(node)
    kept_after = done["pruned_to"]
    assert position - 400 <= kept_after <= position - 200
    assert done["limits"] == ["tx-log-max-size"]
    assert done["log_bytes"] < done["log_bytes_before"]
    # The newest run's file stays as a whole, with what is forgotten of it.
    assert node.status()["log_bytes"] - payload_log_bytes(node) < 0.6 * full
    assert node.status()["kept_after"] == call(f"{node.url}/v1/info")["kept_after"] == kept_after
    assert all(int(name.split("-")[1]) > kept_after for name in files_of(node))
    rows = DeltaTable(node.directory / "A" / "log" / "synchronized_queue").to_pyarrow_table()
    assert rows.num_rows < 600
    assert position in rows.column("position").to_pylist()

    for path in (f"queue?after={kept_after - 1}", "worker/segments?after=0&wait=1"):
        with pytest.raises(HttpProblem) as caught:
            call(f"{node.url}/v1/{path}")
        assert (caught.value.status, caught.value.document["title"]) == (410, "expired")
    told = run_command("queue", "--after", "0", "--url", node.url)
    assert (told.returncode, "expired" in told.stderr) == (1, True), told.stderr
    assert call(f"{node.url}/v1/queue?after={kept_after}")[0]["position"] == kept_after + 1

    images_go_that_the_log_has_outlived(node, kept_after, position)

    # The other sites keep theirs; this one starts again from what is left, and goes on.
    assert nodes[1].status()["kept_after"] == 0
    node.stop()
    node.start()
    node.wait_ready()
    assert node.status()["kept_after"] == kept_after
    # What is expired is still known as a repeat, and gets its first receipt.
    repeated = node.commit_run(payload(3))
    assert 0 < repeated["position"] <= kept_after
    assert fill(nodes, first=100, runs=3) == position + 300
    cluster.agree(position + 300)
    # The restart forgot no worker: they have not applied what came since.
    assert maintain(node)["pruned_to"] <= position


def payload_log_bytes(node: NodeProcess) -> int:
    """Return the bytes of the files that have the containers of runs."""
    files = (node.directory / node.name / "payload_log").iterdir()
    return sum(file.stat().st_size for file in files)


def images_go_that_the_log_has_outlived(node: NodeProcess, kept_after: int, end: int) -> None:
    """Have the command remove what no replay can begin from."""
    store = DiskImages(node.directory / "images")
    log_id = call(f"{node.url}/v1/info")["log_id"]
    with store.writing() as writer:
        for position in (1, kept_after - 1, kept_after, end):
            writer.add(
                Image(
                    name=f"at{position}",
                    created_at=position,
                    worker_id="w",
                    log_id=log_id,
                    epoch=1,
                    position=position,
                    chain_hash="00",
                    site=node.name,
                )
            )
    done = run_command(
        *("maintain", "--url", node.url, "--json", "--no-optimize", "--no-vacuum"),
        *("--images", str(store.root), "--keep-images", "1"),
        *("--empty-attic-older-than", "30"),
    )
    assert done.returncode == 0, done.stderr
    images, attic = json.loads(done.stdout)["removed"]
    assert images["removed"] == ["at1", f"at{kept_after - 1}"] and images["kept"] == 2
    assert (attic["kind"], attic["removed"]) == ("attic", [])
    assert sorted(store.names()) == sorted([f"at{kept_after}", f"at{end}"])


def test_beyond_the_hard_cap_a_laggard_needs_a_copy(cluster: Cluster) -> None:
    nodes = list(cluster.nodes.values())
    node = nodes[0]
    position = cluster.settle()
    cluster.agree(position)
    for one in nodes:
        call(f"{one.url}/v1/published?at_least={position}&timeout=20")
    # The worker of A never reports.
    for one in nodes[1:]:
        report(one)
    wait_until(lambda: [r["position"] for r in node.status()["replicas"]] == [position] * 2)
    assert maintain(node)["pruned_to"] == 0
    limit(node, tx_log_max_bytes=1 << 20)
    done = maintain(node)
    assert 0 < done["pruned_to"] <= position
    assert done["limits"] == ["tx-log-max-bytes"]
    assert done["overrun"] == ["A"]
    assert "worker needs a copy" in node.log_text()
    assert maintain(node)["overrun"] == []
    assert node.log_text().count("worker needs a copy") == 1
    needing = {r["node_id"]: (r["needs_copy"], r["position"]) for r in node.status()["replicas"]}
    assert needing == {"A": (True, 0), "B": (False, position), "C": (False, position)}
    # Of the absent worker nothing but the journal knows after a restart.
    node.stop()
    node.start()
    node.wait_ready()
    (absent,) = (r for r in node.status()["replicas"] if r["node_id"] == "A")
    assert (absent["needs_copy"], absent["alive"], absent["verdict"]) == (True, False, "")


@pytest.mark.faults
@pytest.mark.parametrize("point", ["expired", "files", "dropped", "commit", "vacuumed", "shrunk"])
def test_a_kill_while_shortening_is_repaired_by_the_next_start(tmp_path: Path, point: str) -> None:
    cluster = Cluster(tmp_path, "A")
    node = cluster.nodes["A"]
    try:
        node.start()
        node.wait_ready()
        node.commit(TABLE)
        position = fill([node])
        report(node)
        # Whatever it was told is durable with the next receipt.
        node.commit(append(1))
        node.stop()
        dying = (str(node.config), point, "tx-log-max-size=100")
        killed = fork_node(node.log, *dying, program="tests.e2e.killed_pruning")
        assert killed.wait(120) == -signal.SIGKILL, node.log_text()

        node.start("tx-log-max-size=100")
        node.wait_ready()
        done = maintain(node)
        kept_after = done["pruned_to"]
        assert position - 200 <= kept_after <= position - 98
        assert all(int(name.split("-")[1]) > kept_after for name in files_of(node))
        table = DeltaTable(tmp_path / "A" / "log" / "synchronized_queue")
        positions = table.to_pyarrow_table().column("position").to_pylist()
        assert sorted(positions) == list(range(kept_after + 1, position + 2))
        stored = list((tmp_path / "A" / "log" / "synchronized_queue").glob("*.parquet"))
        assert len(stored) == len(table.file_uris())
        assert call(f"{node.url}/v1/worker/segments?after={kept_after}&wait=1")["segments"]
        assert fill([node], first=300, runs=3) == position + 1 + 300
    finally:
        cluster.stop()
