"""Four masters: one may die or stop, and of two halves none goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show
from tests.support.node_processes import running, wait_until
from tests.support.site_links import LinkedCluster, ways_between
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def test_four_masters(tmp_path: Path) -> None:
    with running(LinkedCluster(tmp_path, "ABCD", settings=QUICK)) as cluster:
        a, b, c, d = cluster.nodes.values()
        with SteadyLoad(cluster) as load:
            a.kill()
            all_show(cluster, "BCD")
            load.progress("BCD")
            a.start()
            all_show(cluster, "ABCD")

            d.send(signal.SIGSTOP)
            all_show(cluster, "ABC")
            load.progress("ABC")
            d.send(signal.SIGCONT)
            all_show(cluster, "ABCD")
            load.progress("ABCD")

            epochs = {node.name: node.status()["epoch"] for node in (a, b, c, d)}
            cluster.links.lose(ways_between("AB", "CD"))
            wait_until(
                lambda: (
                    a.status()["suspects"] == b.status()["suspects"] == ["C", "D"]
                    and c.status()["suspects"] == d.status()["suspects"] == ["A", "B"]
                ),
                what="each half misses the other one",
            )
            positions = {node.name: node.status()["position"] for node in (a, b, c, d)}
            for name in "ABCD":
                assert load.stands_still(name)
            assert {n.name: n.status()["position"] for n in (a, b, c, d)} == positions
            assert {n.name: n.status()["epoch"] for n in (a, b, c, d)} == epochs
            cluster.links.heal()
            load.progress("ABCD")
            all_show(cluster, "ABCD")
        load.check()
