"""Places and processes that change while clients commit everywhere: nothing is lost or doubled.

Protocol P13, P17, P18, P20, P21.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show, operate
from tests.support.node_processes import Cluster, NodeProcess, free_ports, running, wait_until
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

PAUSE_S = 0.1


def set_up(cluster: Cluster, name: str) -> NodeProcess:
    """Return a node that is to come, with its configuration, but no process yet."""
    port = free_ports(1)[0]
    return NodeProcess(cluster.directory, name, port, dict(cluster.ports), settings=QUICK)


def bring_in(cluster: Cluster, load: SteadyLoad, node: NodeProcess, members: str) -> None:
    """Start a node that has a place, until it is a member and its client is served."""
    cluster.nodes[node.name] = node
    cluster.ports[node.name] = int(node.url.rpartition(":")[2])
    node.start()
    all_show(cluster, members)
    load.join(node)


def take_out(cluster: Cluster, load: SteadyLoad, name: str) -> None:
    """End with a node that has no place any more, once it knows."""
    node = cluster.nodes.pop(name)
    del cluster.ports[name]
    wait_until(lambda: node.status()["phase"] == "JOINING", what=f"{name} knows that it is out")
    load.leave(name)
    assert node.stop() == 0


def test_places_change_and_nodes_restart_while_clients_commit(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        a, b, _ = cluster.nodes.values()
        with SteadyLoad(cluster, pause_s=PAUSE_S) as load:
            d = set_up(cluster, "D")
            operate(a, "peer", "add", "D", d.url)
            bring_in(cluster, load, d, "ABCD")
            load.progress("ABC")

            e = set_up(cluster, "E")
            operate(b, "peer", "replace", "C", "E", e.url)
            take_out(cluster, load, "C")
            bring_in(cluster, load, e, "ABED")
            load.progress("ABD")

            # The one on duty: B is it from now on.
            operate(d, "peer", "remove", "A")
            all_show(cluster, "BED")
            take_out(cluster, load, "A")
            load.progress("BED")

            for node in (b, d, e):
                assert node.stop() == 0
                node.start()
                load.progress(node.name)
                all_show(cluster, "BED")
            load.progress("BED")
        load.check()
