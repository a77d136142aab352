"""`sparktxlog verify --compare` over three real nodes; the test plays their workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.test_catch_up_routes import report_of, tell
from tests.support.forked_nodes import run_command
from tests.support.node_processes import TABLE, Cluster, NodeProcess, append, wait_until

from sparktxlog.model.report import TableState
from sparktxlog.model.signature import TableSignature


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[dict[str, NodeProcess]]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        yield cluster.nodes
    finally:
        cluster.stop()


def verify(node: NodeProcess, *, code: int) -> Any:
    """Compare from a node and return what the command prints; it must end with this code."""
    done = run_command("verify", "--compare", "--url", node.url, "--json")
    assert done.returncode == code, f"code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def step(sites: dict[str, NodeProcess], body: Any, wrong: str = "") -> int:
    """Commit at A; all workers report the new end, `wrong` with another content."""
    sites["A"].commit(body)
    end = sites["A"].status()["chain_position"]
    for node in sites.values():
        wait_until(lambda node=node: node.status()["published"] >= end)
    for name, node in sites.items():
        lane = 99 if name == wrong else 0
        state = TableState(version=end, signature=TableSignature(rows=end, lane0=lane), schema="s")
        tell(node, report_of(node, worker_id=f"w{name}", tables={"t": state}))
    return int(end)


@pytest.mark.e2e
def test_the_first_difference_is_found_also_with_the_site_down(
    sites: dict[str, NodeProcess],
) -> None:
    step(sites, TABLE)
    equal_to = step(sites, append(1))
    found = verify(sites["A"], code=0)
    assert found["equal"] and found["absent"] == {}
    assert [pair["compared"] for pair in found["pairs"]] == [equal_to] * 3

    differs = step(sites, append(2), wrong="B")
    found = verify(sites["C"], code=4)
    assert found["site"] == "C"
    pairs = {pair["left"] + pair["right"]: pair for pair in found["pairs"]}
    assert pairs["AC"]["differences"] == []
    for pair in (pairs["AB"], pairs["BC"]):
        (difference,) = pair["differences"]
        assert (difference["last_equal"], difference["first_differing"]) == (equal_to, differs)
        assert difference["disagreeing"] == ["B"] and difference["table"] == "t"
        (suspect,) = difference["suspects"]
        assert (suspect["first"], suspect["kind"], suspect["origin"]) == (differs, "append", "A")
        assert len(suspect["transaction_id"]) == 36

    # What B reported came with its posts: A still knows it when B is gone.
    wait_until(
        lambda: any(
            r["node_id"] == "B" and r["position"] == differs
            for r in sites["A"].status()["replicas"]
        )
    )
    sites["B"].stop()
    found = verify(sites["A"], code=4)
    assert list(found["absent"]) == ["B"]
    pairs = {pair["left"] + pair["right"]: pair for pair in found["pairs"]}
    (difference,) = pairs["AB"]["differences"]
    assert difference["first_differing"] == differs
