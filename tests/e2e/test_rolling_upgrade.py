"""Nodes of two wire versions side by side under load, upgraded one by one (protocol P31)."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import (
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    running,
    wait_until,
)
from tests.support.steady_load import SteadyLoad

from sparktxlog.config.sources import WIRE_VERSION
from sparktxlog.protocol.messages.versions import ACCEPTANCE, CONDITIONS, NEWEST, OLDEST

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def in_force(cluster: Cluster) -> set[int]:
    """Return the versions that the nodes say are in force."""
    return {node.status()["wire_version"] for node in cluster.nodes.values()}


def links(node: NodeProcess) -> dict[str, int | None]:
    """Return the versions of a node's links."""
    return {peer["id"]: peer["wire_version"] for peer in node.status()["peers"]}


def valid_for_an_hour(number: int) -> dict[str, Any]:
    """Return a transaction that only the later version knows."""
    return append(number) | {"valid_until": int((time.time() + 3_600) * 1e6)}


def reading(number: int, position: int) -> dict[str, Any]:
    """Return a transaction that rests on what it read at a position."""
    return append(number) | {"conditions": {"read_position": position, "reads": ["t"]}}


def test_nodes_are_upgraded_one_by_one_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "ABC", settings=QUICK)
    for node in cluster.nodes.values():
        node.environment[WIRE_VERSION] = str(OLDEST)
    with running(cluster):
        a, b, c = cluster.nodes.values()
        assert (in_force(cluster), links(a)) == ({OLDEST}, {"B": OLDEST, "C": OLDEST})
        with SteadyLoad(cluster, pause_s=0.1) as load:
            for node in (a, b, c):
                assert in_force(cluster) == {OLDEST}
                with pytest.raises(HttpProblem, match=f"needs wire version {ACCEPTANCE}"):
                    a.commit(valid_for_an_hour(1))
                with pytest.raises(HttpProblem, match=f"need wire version {CONDITIONS}"):
                    a.commit(reading(1, 0))
                assert node.stop() == 0
                del node.environment[WIRE_VERSION]
                node.start()
                load.progress(node.name)
                all_show(cluster, "ABC")
                if node is b:
                    assert links(a) == {"B": NEWEST, "C": OLDEST}
                    assert list(a.status()["wire_version_waits_for"]) == ["C"]
            wait_until(lambda: in_force(cluster) == {NEWEST}, what="the version is raised")
            load.progress("ABC")
        load.check()
        assert links(c) == {"A": NEWEST, "B": NEWEST}
        a.commit(valid_for_an_hour(2))
        # Nobody counted what was written before: what was read then is too old, and no error.
        position = a.commit(append(3))["position"]
        with pytest.raises(HttpProblem, match="conflict"):
            b.commit(reading(4, 1))
        wait_until(lambda: b.status()["position"] >= position, what="B has it")
        b.commit(reading(5, position))

        # There is no way back: neither with this disk, nor with an empty one.
        c.stop()
        c.environment[WIRE_VERSION] = str(OLDEST)
        c.start()
        assert c.process is not None and c.process.wait(60) != 0
        refusal = f"uses wire version {NEWEST}, this release speaks {OLDEST} to {OLDEST}"
        assert refusal in c.log_text()
        shutil.rmtree(c.directory / c.name)
        c.start()
        c.wait_ready()
        text = f"{NEWEST} to {NEWEST}: none in common.  Install the newer release at"
        wait_until(lambda: text in c.status()["peers"][0]["reason"], what="C says why")
        assert '"code": "wire-version"' in a.log_text() or "wire-version" in a.log_text()

        # The newer release is the way out.
        c.stop()
        del c.environment[WIRE_VERSION]
        c.start()
        all_show(cluster, "ABC")
        cluster.agree(cluster.settle())
