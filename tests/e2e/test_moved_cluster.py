"""All nodes get other addresses, as docs/epochs.md says: the log goes on, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.epoch_views import QUICK, all_show, operate
from tests.support.node_processes import (
    Cluster,
    NodeProcess,
    append,
    free_ports,
    running,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def _warnings(node: NodeProcess) -> list[str]:
    return [one["text"] for one in node.status()["warnings"]]


def test_a_cluster_moves_to_other_addresses(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "ABC", settings=QUICK)) as cluster:
        a = cluster.nodes["A"]
        # The places are decided from now on: those of the files do not count by themselves.
        operate(a, "peer", "promote", "B")
        all_show(cluster, "BAC")
        before = a.commit(append(1))["position"]
        cluster.agree(before)
        for node in cluster.nodes.values():
            node.stop()
        cluster.ports = dict(zip("ABC", free_ports(3), strict=True))
        for name, node in cluster.nodes.items():
            node.url = f"http://127.0.0.1:{cluster.ports[name]}"
            node.write_config(cluster.ports[name], cluster.peers_of(name))
        cluster.start()
        all_show(cluster, "BAC")
        after = a.commit(append(2))["position"]
        cluster.agree(after)
        said = _warnings(a)
        assert sum("peer set" in text for text in said) == 3, said
        assert any("a copy of one" in text for text in said), said
        for name, node in cluster.nodes.items():
            assert any(f"peer set {name} --address {node.url}" in text for text in said)
            operate(a, "peer", "set", name, "--address", node.url)
        all_show(cluster, "BAC")
        wait_until(
            lambda: not any("peer set" in t for n in cluster.nodes.values() for t in _warnings(n))
        )
        assert a.commit(append(3))["position"] > after
