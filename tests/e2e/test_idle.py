"""A member that dies while nobody says anything."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Event

import pytest
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import Cluster, NodeProcess, append, call, running, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: Seconds between two posts without news.
IDLE = ("idle-round-max = 2", "idle-round-min = 60\nidle-round-max = 60")


def misses(node: NodeProcess, name: str) -> bool:
    """Return whether a node has no sign of life from another one."""
    return bool(call(f"{node.url}/v1/epochs")["suspects"] == [name])


def resting_rounds(*nodes: NodeProcess) -> list[int]:
    """Return the numbers of the nodes' rounds, as soon as they stay the same for a second."""
    found: list[int] = []
    while (shown := [node.status()["round"] for node in nodes]) != found:
        found = shown
        Event().wait(1.0)
    return found


def test_a_broken_connection_is_noticed_in_an_idle_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "ABC", settings=QUICK)
    for node in cluster.nodes.values():
        node.config.write_text(node.config.read_text().replace(*IDLE))
    with running(cluster):
        a, b, c = cluster.nodes.values()
        a.commit(append(1))
        cluster.publish()
        posts = resting_rounds(a, b)
        c.kill()
        for node in (a, b):
            wait_until(partial(misses, node, "C"), 30.0, f"{node.name} misses C")
        assert [node.status()["round"] for node in (a, b)] == posts, "by no post of theirs"
        # So the next commit finds an epoch without it.
        all_show(cluster, "AB", timeout=20.0)
