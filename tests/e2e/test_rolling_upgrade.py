"""Nodes of two wire versions side by side under load, upgraded one by one (protocol P31).

There is one version so far; the next one is made up, and brings nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import (
    Cluster,
    NodeProcess,
    running,
    wait_until,
)
from tests.support.steady_load import SteadyLoad

from sparktxlog.config.sources import WIRE_VERSION
from sparktxlog.protocol.messages.versions import NEWEST

pytestmark = [pytest.mark.e2e, pytest.mark.faults]
#: What the next release speaks.
LATER = NEWEST + 1


def in_force(cluster: Cluster) -> set[int]:
    """Return the versions that the nodes say are in force."""
    return {node.status()["wire_version"] for node in cluster.nodes.values()}


def links(node: NodeProcess) -> dict[str, int | None]:
    """Return the versions of a node's links."""
    return {peer["id"]: peer["wire_version"] for peer in node.status()["peers"]}


def test_nodes_are_upgraded_one_by_one_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "ABC", settings=QUICK)
    with running(cluster):
        a, b, c = cluster.nodes.values()
        assert (in_force(cluster), links(a)) == ({NEWEST}, {"B": NEWEST, "C": NEWEST})
        with SteadyLoad(cluster, pause_s=0.1) as load:
            for node in (a, b, c):
                assert in_force(cluster) == {NEWEST}
                assert node.stop() == 0
                node.environment[WIRE_VERSION] = str(LATER)
                node.start()
                load.progress(node.name)
                all_show(cluster, "ABC")
                if node is b:
                    assert links(a) == {"B": LATER, "C": NEWEST}
                    assert list(a.status()["wire_version_waits_for"]) == ["C"]
            wait_until(lambda: in_force(cluster) == {LATER}, what="the version is raised")
            load.progress("ABC")
        load.check()
        assert links(c) == {"A": LATER, "B": LATER}

        # There is no way back: neither with this disk, nor with an empty one.
        c.stop()
        del c.environment[WIRE_VERSION]
        c.start()
        assert c.process is not None and c.process.wait(60) != 0
        refusal = f"uses wire version {LATER}, this release speaks {NEWEST} to {NEWEST}"
        assert refusal in c.log_text()
        shutil.rmtree(c.directory / c.name)
        c.start()
        c.wait_ready()
        text = f"{LATER} to {LATER}: none in common.  Install the newer release at"
        wait_until(lambda: text in c.status()["peers"][0]["reason"], what="C says why")
        assert "wire-version" in a.log_text()

        # The newer release is the way out.
        c.stop()
        c.environment[WIRE_VERSION] = str(LATER)
        c.start()
        all_show(cluster, "ABC")
        cluster.agree(cluster.settle())
