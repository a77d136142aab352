"""Faults between real nodes: partitions, one-way cuts, kills, two sites.

Each test commits at all nodes meanwhile; in the end whatever was acknowledged is in all queues,
once and at the position that was told (`SteadyLoad.check`), so at most one side went on.
Protocol P11–P23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.epoch_views import QUICK, all_show, shows
from tests.support.node_processes import (
    TABLE,
    call,
    wait_until,
)
from tests.support.site_links import LinkedCluster, SiteLinks, ways_between
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


Start = Callable[..., LinkedCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts nodes behind links that can be cut."""
    clusters: list[LinkedCluster] = []

    def begin(names: str, **options: Any) -> LinkedCluster:
        cluster = LinkedCluster(tmp_path, names, settings=QUICK, **options)
        clusters.append(cluster)
        cluster.start()
        cluster.masters()[0].commit(TABLE)
        cluster.settle()
        return cluster

    yield begin
    for cluster in clusters:
        cluster.stop()


@pytest.mark.parametrize("cut", [SiteLinks.refuse, SiteLinks.lose], ids=["refused", "lost"])
@pytest.mark.parametrize(
    ("names", "minority"),
    [("ABC", "C"), pytest.param("ABCDE", "AE", marks=pytest.mark.repeated)],
)
def test_the_larger_side_goes_on(
    start: Start, names: str, minority: str, cut: Callable[..., None]
) -> None:
    cluster = start(names)
    majority = "".join(name for name in names if name not in minority)
    with SteadyLoad(cluster) as load:
        cut(cluster.links, ways_between(minority, majority))
        all_show(cluster, majority)
        waiting = load.count(minority)
        before = [cluster.nodes[name].status() for name in minority]
        load.progress(majority)
        for name in minority:
            assert load.stands_still(name)
        wait_until(lambda: all(cluster.nodes[name].status()["suspects"] for name in minority))
        for status in before:
            now = cluster.nodes[status["node_id"]].status()
            assert (now["epoch"], now["position"]) == (status["epoch"], status["position"])
        assert load.count(minority) == waiting
        cluster.links.heal()
        all_show(cluster, names)
        load.progress(names)
    load.check()


def test_a_one_way_cut_splits_nothing_and_is_shown(start: Start) -> None:
    cluster = start("ABC")
    a, b = cluster.nodes["A"], cluster.nodes["B"]
    with SteadyLoad(cluster) as load:
        cluster.links.lose({("A", "B")})
        wait_until(lambda: b.status()["suspects"] or len(b.status()["members"]) < 3, 120)
        # Of those that hear each other two go on.
        wait_until(
            lambda: any(len(node.status()["members"]) == 2 for node in cluster.nodes.values()),
            120,
            "one of the two is left out",
        )
        left_out = wait_until(
            lambda: next(
                (
                    n
                    for n in "ABC"
                    if all(
                        shows(cluster.nodes[o], f"{'ABC'.replace(n, '')}")
                        for o in "ABC".replace(n, "")
                    )
                ),
                "",
            ),
            120,
        )
        assert left_out in "AB"
        load.progress("ABC".replace(left_out, ""))
        wait_until(
            lambda: (
                call(f"{a.url}/v1/status")["reachability"]["differing"]
                or call(f"{b.url}/v1/status")["reachability"]["differing"]
            ),
            what="the broken link is shown",
        )
        cluster.links.heal()
        all_show(cluster, "ABC")
        load.progress("ABC")
    load.check()


@pytest.mark.parametrize(
    ("names", "victims"),
    [
        pytest.param("ABC", "A", marks=pytest.mark.repeated),
        pytest.param("ABCDE", "BD", marks=pytest.mark.repeated),
        ("ABC", "ABC"),
    ],
)
def test_killed_members_come_back(start: Start, names: str, victims: str) -> None:
    cluster = start(names)
    rest = "".join(name for name in names if name not in victims)
    with SteadyLoad(cluster) as load:
        for name in victims:
            cluster.nodes[name].kill()
        if rest:
            all_show(cluster, rest)
            load.progress(rest)
        for name in victims:
            cluster.nodes[name].start()
        all_show(cluster, names)
        load.progress(names)
    load.check()


def test_of_two_equal_masters_neither_goes_on_alone(start: Start) -> None:
    cluster = start("AB")
    a, b = cluster.nodes.values()
    with SteadyLoad(cluster) as load:
        cluster.links.refuse(ways_between("A", "B"))
        wait_until(lambda: a.status()["suspects"] == ["B"] and b.status()["suspects"] == ["A"])
        seen, epochs = load.count("AB"), [node.status()["epoch"] for node in (a, b)]
        assert load.stands_still("A")
        assert load.stands_still("B")
        assert [node.status()["epoch"] for node in (a, b)] == epochs
        assert load.count("AB") == seen
        cluster.links.heal()
        load.progress("AB")
        a.kill()
        wait_until(lambda: b.status()["suspects"] == ["A"])
        seen = load.count("B")
        assert load.stands_still("B")
        assert load.count("B") == seen
        a.start()
        all_show(cluster, "AB")
        load.progress("AB")
    load.check()


def test_of_two_masters_the_heavier_one_goes_on(start: Start) -> None:
    cluster = start("AB", weights={"A": 2})
    a, b = cluster.nodes.values()
    with SteadyLoad(cluster) as load:
        cluster.links.lose(ways_between("A", "B"))
        all_show(cluster, "A")
        load.progress("A")
        assert load.stands_still("B")
        assert b.status()["epoch"] < a.status()["epoch"]
        cluster.links.heal()
        all_show(cluster, "AB")
        load.progress("AB")

        b.kill()
        all_show(cluster, "A")
        load.progress("A")
        b.start()
        all_show(cluster, "AB")

        a.kill()
        wait_until(lambda: b.status()["suspects"] == ["A"])
        assert load.stands_still("B")
        a.start()
        all_show(cluster, "AB")
        load.progress("AB")
    load.check()


@pytest.mark.parametrize("alone", ["A", pytest.param("B", marks=pytest.mark.repeated)])
def test_the_side_of_the_witness_goes_on(start: Start, alone: str) -> None:
    cluster = start("ABW", witnesses="W")
    other = "B" if alone == "A" else "A"
    with SteadyLoad(cluster) as load:
        cluster.links.lose(ways_between(alone, other + "W"))
        all_show(cluster, other)
        load.progress(other)
        assert load.stands_still(alone)
        cluster.links.heal()
        all_show(cluster, "AB")
        # Without the witness both go on, and it comes back to its place.
        cluster.nodes["W"].kill()
        load.progress("AB")
        cluster.nodes["W"].start()
        cluster.nodes["W"].wait_ready()
        cluster.nodes[alone].kill()
        all_show(cluster, other)
        load.progress(other)
        cluster.nodes[alone].start()
        all_show(cluster, "AB")
        load.progress("AB")
    load.check()
