"""Partitions of real nodes in real networks: what `test_epoch_faults` does with relays, as root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show, shows
from tests.support.node_processes import TABLE, wait_until
from tests.support.site_namespaces import NamespaceCluster
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.privileged, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NamespaceCluster]:
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and `ip` (Debian: iproute2)")
    found = NamespaceCluster(tmp_path, request.param, settings=QUICK)
    try:
        found.start()
        found.nodes["A"].commit(TABLE)
        found.settle()
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize(
    ("cluster", "minority"), [("ABC", "A"), ("ABCDE", "CD")], indirect=["cluster"]
)
def test_the_larger_side_goes_on(cluster: NamespaceCluster, minority: str) -> None:
    names = "".join(cluster.nodes)
    majority = "".join(name for name in names if name not in minority)
    with SteadyLoad(cluster) as load:
        cluster.part(minority)
        all_show(cluster, majority)
        waiting = load.count(minority)
        load.progress(majority)
        assert all(load.stands_still(name) for name in minority)
        assert load.count(minority) == waiting
        cluster.heal()
        all_show(cluster, names)
        load.progress(names)
    load.check()


@pytest.mark.parametrize("cluster", ["ABC"], indirect=True)
def test_a_one_way_cut_splits_nothing(cluster: NamespaceCluster) -> None:
    with SteadyLoad(cluster) as load:
        cluster.lose("A", "B")
        wait_until(
            lambda: any(shows(cluster.nodes["C"], members) for members in ("AC", "BC")),
            150,
            "one of the two is left out",
        )
        load.progress("C")
        cluster.heal()
        all_show(cluster, "ABC")
        load.progress("ABC")
    load.check()
