"""Real nodes with an address each at two switches: either may fail, and it is seen.

Nobody is evicted meanwhile, and commits go on at all nodes; where connections break, though the
nodes are ready to go on without a member after two seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.epoch_views import QUICK
from tests.support.node_processes import call, running, wait_until
from tests.support.site_links import TwoSwitchCluster, ways_between
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: A member is overdue after six seconds, and a post without an answer ends after ten.
SOONER = ("suspect-timeout = 4", "start-timeout = 8")


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TwoSwitchCluster]:
    """Three nodes; any two reach each other through both switches.  The parameter: settings."""
    settings = getattr(request, "param", QUICK)
    with running(TwoSwitchCluster(tmp_path, "ABC", settings=settings)) as found:
        yield found


def matrix(cluster: TwoSwitchCluster, dead: set[tuple[str, str, int]]) -> dict[str, Any]:
    """Return what all nodes shall show: all addresses answer but (observer, node, switch)."""
    return {
        observer: {
            node: {
                address: (observer, node, switch) not in dead
                for switch, address in enumerate(cluster.addresses(node))
            }
            for node in cluster.nodes
            if node != observer
        }
        for observer in cluster.nodes
    }


def all_show(cluster: TwoSwitchCluster, dead: set[tuple[str, str, int]]) -> None:
    """Wait until each node shows the same matrix."""
    wanted = matrix(cluster, dead)
    for node in cluster.nodes.values():
        wait_until(
            lambda node=node: node.status()["reachability"]["addresses"] == wanted,
            60,
            f"{node.name} shows {sorted(dead)}",
        )


def links_of(cluster: TwoSwitchCluster) -> dict[str, dict[str, str]]:
    """Return the address that each node's link to each other one uses, of links that are up."""
    return {
        name: {peer["id"]: peer["url"] for peer in node.status()["peers"] if peer["linked"]}
        for name, node in cluster.nodes.items()
    }


def at_switch(cluster: TwoSwitchCluster, switch: int) -> dict[str, dict[str, str]]:
    """Return `links_of` when all links use one switch."""
    return {
        name: {other: cluster.addresses(other)[switch] for other in cluster.peers_of(name)}
        for name in cluster.nodes
    }


def epochs(cluster: TwoSwitchCluster) -> list[tuple[int, list[str]]]:
    found = [node.status() for node in cluster.nodes.values()]
    return [(status["epoch"], status["members"]) for status in found]


def peer_list(cluster: TwoSwitchCluster, *options: str) -> str:
    """Return what `sparktxlog peer list` prints of a node."""
    program = (
        "import sys; from sparktxlog.cli.command_line import run; sys.argv[0] = 'sparktxlog'; run()"
    )
    url = cluster.nodes["C"].url
    return subprocess.run(
        [sys.executable, "-c", program, "peer", "list", "--url", url, *options],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_either_switch_may_fail_and_all_nodes_show_it(cluster: TwoSwitchCluster) -> None:
    names = "".join(cluster.nodes)
    before = epochs(cluster)
    with SteadyLoad(cluster) as load:
        all_show(cluster, set())
        assert links_of(cluster) == at_switch(cluster, 0)

        # B's port at the second switch: nothing uses it, and still all know.
        cluster.second.refuse(ways_between("B", "AC"))
        dead = {("A", "B", 1), ("C", "B", 1), ("B", "A", 1), ("B", "C", 1)}
        all_show(cluster, dead)
        found = call(f"{cluster.nodes['C'].url}/v1/epochs")["reachability"]
        # Of A and C the others differ; whether B answers itself nobody asks.
        second = {name: [cluster.addresses(name)[1]] for name in "AC"}
        assert (found["differing"], found["differing_addresses"]) == ([], second)
        assert json.loads(peer_list(cluster, "--json"))["reachability"] == found
        text = peer_list(cluster)
        assert "which addresses answer" in text
        assert f"Nodes disagree about {second['A'][0]}, {second['C'][0]}" in text
        assert links_of(cluster) == at_switch(cluster, 0)
        cluster.second.heal()
        all_show(cluster, set())

        # The whole first switch: the links move to the second one.
        cluster.links.refuse(ways_between(names, names))
        wait_until(lambda: links_of(cluster) == at_switch(cluster, 1), 60, "links moved")
        all_show(cluster, {(a, b, 0) for a in names for b in names})
        load.progress(names)
        cluster.links.heal()
        all_show(cluster, set())
        load.progress(names)

        # And back, as the second one fails.
        cluster.second.refuse(ways_between(names, names))
        wait_until(lambda: links_of(cluster) == at_switch(cluster, 0), 60, "links moved back")
        load.progress(names)
    load.check()
    assert epochs(cluster) == before
    log = cluster.nodes["A"].log_text()
    assert "address does not answer" in log
    assert "address answers" in log


@pytest.mark.parametrize(
    "cluster", [(), SOONER], indirect=True, ids=["default timeouts", "before a post times out"]
)
def test_a_port_that_fails_without_a_word_evicts_nobody(cluster: TwoSwitchCluster) -> None:
    all_show(cluster, set())
    before = epochs(cluster)
    with SteadyLoad(cluster) as load:
        cluster.links.lose(ways_between("B", "AC"))
        moved = at_switch(cluster, 1)
        for here, there in ("AC", "CA"):
            moved[here][there] = cluster.addresses(there)[0]
        wait_until(lambda: links_of(cluster) == moved, 60, "the links of B moved")
        load.progress("ABC")
        all_show(cluster, {("A", "B", 0), ("C", "B", 0), ("B", "A", 0), ("B", "C", 0)})
    load.check()
    assert epochs(cluster) == before
