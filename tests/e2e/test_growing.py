"""A cluster grows from one node to three by the commands that docs/sites.md gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show, operate, told
from tests.support.node_processes import (
    Cluster,
    NodeProcess,
    append,
    free_ports,
    running,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def added(cluster: Cluster, name: str) -> NodeProcess:
    """Start a node that has the others as its peers."""
    port = free_ports(1)[0]
    node = NodeProcess(cluster.directory, name, port, dict(cluster.ports), settings=QUICK)
    cluster.nodes[name] = node
    cluster.ports[name] = port
    return node


def test_from_one_node_to_three(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "A", settings=QUICK)) as cluster:
        a = cluster.nodes["A"]
        first = a.commit(append(1))["position"]
        b = added(cluster, "B")
        # The plain command is refused, and says what to do.
        code, text = told(a, "peer", "add", "B", b.url)
        assert code == 1 and "would have no majority" in text
        steps = " ".join(text.split())
        assert f"peer add B {b.url} --weight 0" in steps and "peer set B --weight 1" in steps
        # That is followed.
        operate(a, "peer", "add", "B", b.url, "--weight", "0")
        b.start()
        all_show(cluster, "AB")
        operate(a, "peer", "set", "B", "--weight", "1")
        assert b.commit(append(2))["position"] > first
        # The third one has a vote at once.
        c = added(cluster, "C")
        operate(b, "peer", "add", "C", c.url)
        c.start()
        all_show(cluster, "ABC")
        assert [seat["weight"] for seat in c.status()["roster"]] == [1, 1, 1]
        cluster.agree(c.commit(append(3))["position"])


def test_a_peer_that_is_only_in_the_file_stops_the_start_with_the_way_out(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "A", settings=QUICK)) as cluster:
        a = cluster.nodes["A"]
        before = a.commit(append(1))
        a.stop()
        port = cluster.ports["A"]
        a.write_config(port, {"B": free_ports(1)[0]})
        a.start()
        wait_until(lambda: "sparktxlog peer add" in a.log_text())
        a.kill()
        a.write_config(port, {})
        a.start()
        a.wait_ready()
        assert a.status()["log_id"] == before["log_id"]
        assert a.commit(append(2))["position"] > before["position"]
