"""Precedence, votes and addresses, changed by an operator: they take effect, and they last.

Protocol P13, P17.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.support.epoch_views import QUICK, all_show, operate, told, waits_for
from tests.support.node_processes import (
    Cluster,
    NodeProcess,
    append,
    call,
    free_ports,
    running,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def seats(node: NodeProcess) -> list[tuple[str, int, str]]:
    """Return id, votes and address of each place, in precedence order."""
    return [(seat["id"], seat["weight"], seat["url"]) for seat in node.status()["roster"]]


def restart(cluster: Cluster) -> None:
    """Stop all nodes, then start them all: their configurations are as in the beginning."""
    for node in cluster.nodes.values():
        node.stop()
    # One that was never heard since is missed by nobody who has nothing to say.
    cluster.start()


def test_precedence_votes_and_addresses_outlast_a_restart_of_all(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        a, b, c = cluster.nodes.values()
        all_show(cluster, "ABC")
        call(f"{b.url}/v1/peers/C/promote?timeout=20", {})
        all_show(cluster, "ACB")
        operate(b, "peer", "promote", "C")
        all_show(cluster, "CAB")
        assert "yes" in operate(a, "peer", "demote", "A")
        all_show(cluster, "CBA")
        # The first one goes no higher, and a name that has no place is refused.
        code, text = told(b, "peer", "promote", "C")
        assert code == 1 and "the roster is so already" in text
        code, text = told(a, "peer", "demote", "X")
        assert code == 1 and "'X' is not a node of the cluster" in text and "C, B, A" in text

        operate(c, "peer", "set", "A", "--weight", "3")
        # B moves to another port: its place is told before, its configuration is its own matter.
        b.stop()
        port = free_ports(1)[0]
        b.url = f"http://127.0.0.1:{port}"
        patched = patch(f"{a.url}/v1/peers/B?timeout=20", {"url": b.url})
        assert [seat["id"] for seat in patched["roster"]] == ["C", "B", "A"]
        b.write_config(port, b.peers)
        b.start()
        all_show(cluster, "CBA")
        expected = [("C", 1, c.url), ("B", 1, b.url), ("A", 3, a.url)]
        assert [seats(node) for node in (a, b, c)] == [expected] * 3
        position = b.commit(append(1))["position"]
        cluster.agree(position)

        restart(cluster)
        all_show(cluster, "CBA")
        assert [seats(node) for node in (a, b, c)] == [expected] * 3
        assert b.commit(append(2))["position"] == position + 1
        cluster.agree(position + 1)


def patch(url: str, body: dict[str, Any]) -> Any:
    """Change a resource of a node and return its answer."""
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        method="PATCH",
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_duty_follows_the_precedence_that_was_changed(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        a, _b, c = cluster.nodes.values()
        operate(a, "peer", "demote", "A")
        operate(a, "peer", "promote", "C")
        all_show(cluster, "BCA")
        cluster.nodes["B"].kill()
        all_show(cluster, "CA")
        position = a.commit(append(1))["position"]
        cluster.nodes["B"].start()
        all_show(cluster, "BCA")
        # The one on duty is taken off it while it is away.
        cluster.nodes["B"].kill()
        all_show(cluster, "CA")
        operate(c, "peer", "demote", "B")
        operate(c, "peer", "demote", "B")
        assert [seat[0] for seat in seats(c)] == ["C", "A", "B"]
        cluster.nodes["B"].start()
        all_show(cluster, "CAB")
        c.kill()
        all_show(cluster, "AB")
        assert a.commit(append(2))["position"] == position + 1
        c.start()
        all_show(cluster, "CAB")
        cluster.agree(position + 1)


def test_votes_that_were_changed_decide_who_goes_on(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "AB", settings=QUICK)) as cluster:
        a, b = cluster.nodes.values()
        operate(a, "peer", "set", "B", "--weight", "2")
        all_show(cluster, "AB")
        # With one vote of three A waits, as both did with one of two.
        b.kill()
        wait_until(lambda: a.status()["suspects"] == ["B"])
        waiting = a.commit(append(1), "accepted")["transaction_id"]
        wait_until(lambda: waits_for(a) == ["B"])
        assert call(f"{a.url}/v1/transactions/{waiting}")["position"] is None
        b.start()
        all_show(cluster, "AB")
        cluster.agree(wait_until(lambda: call(f"{a.url}/v1/transactions/{waiting}")["position"]))
        a.kill()
        all_show(cluster, "B")
        position = b.commit(append(2))["position"]
        # B alone would not have a majority of the new votes, so A has to be there.
        code, text = told(b, "peer", "set", "A", "--weight", "2")
        assert code == 1 and "would have no majority" in text
        a.start()
        all_show(cluster, "AB")
        operate(b, "peer", "set", "A", "--weight", "2")
        # B was asked, and no member changes: A learns of it in a moment.
        wait_until(lambda: [seat[:2] for seat in seats(a)] == [("A", 2), ("B", 2)])
        restart(cluster)
        all_show(cluster, "AB")
        a.kill()
        wait_until(lambda: b.status()["suspects"] == ["A"])
        b.commit(append(3), "accepted")
        wait_until(lambda: waits_for(b) == ["A"])
        assert b.status()["position"] == position
        a.start()
        cluster.agree(position + 1)
