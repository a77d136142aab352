"""All nodes get other addresses, as docs/sites.md says: the log goes on, and says what to do.

So does a copy of a cluster that is started elsewhere: it never speaks with the original.
"""

from __future__ import annotations

import shutil
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


def test_a_copy_for_staging_leaves_the_original_alone(tmp_path: Path) -> None:
    """Both order; neither hears of the other, and the copy is told that it is one."""
    with running(Cluster(tmp_path / "original", "ABC", settings=QUICK)) as original:
        operate(original.nodes["A"], "peer", "promote", "B")  # addresses are decided from now on
        all_show(original, "BAC")
        before = original.nodes["A"].commit(append(1))["position"]
        original.agree(before)
        for node in original.nodes.values():
            node.stop()
        copy = Cluster(tmp_path / "copy", "ABC", settings=QUICK)
        for name, node in copy.nodes.items():
            shutil.copytree(original.nodes[name].directory / name, node.directory / name)
            node.write_config(copy.ports[name], node.peers, secret="the secret of the copy")
        original.start()
        try:
            copy.start()
            for number, cluster in enumerate((copy, original, copy), start=2):
                for node in cluster.nodes.values():
                    position = node.commit(append(number))["position"]
                cluster.agree(position)
            assert original.nodes["A"].status()["position"] == before + 3
            assert copy.nodes["A"].status()["position"] == before + 6
            for name, node in copy.nodes.items():
                said = _warnings(node)
                assert any("a copy of one" in text for text in said), said
                assert _warnings(original.nodes[name]) == []
                assert "peer refused" not in original.nodes[name].log_text()
        finally:
            copy.stop()
