"""Secrets, tokens, addresses and certificates are replaced as the pages say, under load.

No commit is refused for longer than one restart of a node takes, and none where none is needed.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.certificates import Authority, Pair
from tests.support.epoch_views import operate, told
from tests.support.node_processes import (
    SECRET,
    Cluster,
    NodeProcess,
    free_ports,
    running,
    wait_until,
)
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: Longer than a restart: who is away for that long is no member meanwhile, and joins again.
PATIENT = ("suspect-timeout = 10",)
NEW = "the secret that comes next"
#: Seconds that a link may take after a node is ready, and a commit after that.
_AFTER_S = 3.0


class Acts:
    """What an operator does to a cluster, and how long the longest restart took."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.longest_s = 0.0
        self.load: SteadyLoad

    def restart(self, node: NodeProcess) -> None:
        """Restart a node, and wait until it is ready and another one shows it as linked."""
        began = time.monotonic()
        assert node.stop() == 0
        self.started(node, began)

    def started(self, node: NodeProcess, began: float) -> None:
        """Start a node that was stopped, and wait as `restart`."""
        node.start()
        node.wait_ready()
        wait_until(
            lambda: urlopen(f"{node.url}/readyz").close() is None, what=f"{node.name} is ready"
        )
        other = next(one for one in self._cluster.nodes.values() if one is not node)
        wait_until(
            lambda: next(p for p in other.status()["peers"] if p["id"] == node.name)["linked"]
        )
        took_s = time.monotonic() - began
        print(f"{node.name} restarted in {took_s:.1f} s, {began:.1f} to {began + took_s:.1f}")
        self.longest_s = max(self.longest_s, took_s)
        code, text = told(other, "peers")
        assert code == 0 and node.name in text
        self.load.progress("ABC", 2)

    def configure(self, node: NodeProcess, secret: str, *settings: str) -> None:
        """Write a node's file again."""
        node.settings = (*PATIENT, *settings)
        cluster = self._cluster
        node.write_config(cluster.ports[node.name], cluster.peers_of(node.name), secret=secret)


def test_secret_tokens_and_addresses_are_replaced_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "ABC", settings=PATIENT)
    acts, nodes = Acts(cluster), cluster.nodes
    with running(cluster), SteadyLoad(cluster, pause_s=0.1) as load:
        acts.load = load
        # docs/administration.md, "Replace the cluster secret"; an admin token comes and goes, too.
        token = 'admin-token = "the token of its operators"'
        for secret, more in (
            (SECRET, [f'cluster-secret-also = "{NEW}"']),
            (NEW, [f'cluster-secret-also = "{SECRET}"', token]),
            (NEW, []),
        ):
            for node in nodes.values():
                acts.configure(node, secret, *more)
                acts.restart(node)
        _, audit = told(nodes["A"], "audit")
        assert "cluster-secret" in audit and "admin-token" in audit
        # docs/epochs.md: "If only one node gets another address: run `peer set` for it first".
        for node, port in zip(nodes.values(), free_ports(3), strict=True):
            address = f"http://127.0.0.1:{port}"
            operate(node, "peer", "set", node.name, "--address", address)
            cluster.ports[node.name] = port
            for other in nodes.values():
                acts.configure(other, NEW)
            stopped = time.monotonic()
            assert node.stop() == 0
            node.url = address
            acts.started(node, stopped)
        # Who started before another one moved has its old address in what it read.
        said = [w["text"] for node in nodes.values() for w in node.status()["warnings"]]
        assert len(said) == 3 and all("and answers: change the configuration" in t for t in said)
        longest = {name: round(one.longest_s, 1) for name, one in load.promises.items()}
        print(f"longest restart {acts.longest_s:.1f} s, longest without a commit {longest}")
        for name, one in load.promises.items():  # shown if it fails
            for at, asked_s, why in one.refused:
                print(f"{name} at {at:.1f}, asked for {asked_s:.1f} s: {why[:150]}")
        assert max(longest.values()) <= acts.longest_s + _AFTER_S
        for node in nodes.values():
            load.leave(node.name)
        load.check()


def test_certificates_and_authority_are_replaced_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/encryption.md, "New certificates" and "Another authority"."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    trusted = tmp_path / "trusted.crt"
    shutil.copy(authority.ca_file, trusted)
    for name in ("SSL_CERT_FILE", "SPARKTXLOG_CA_FILE"):
        monkeypatch.setenv(name, str(trusted))
    cluster = Cluster(tmp_path, "ABC", settings=PATIENT)

    def install(name: str, pair: Pair) -> None:
        # As `install` and `mv` do: in one step each.
        for path, kind in ((pair.cert, "crt"), (pair.key, "key")):
            fresh = tmp_path / f"{name}.{kind}.new"
            shutil.copy(path, fresh)
            fresh.replace(tmp_path / f"{name}.{kind}")

    for name, node in cluster.nodes.items():
        install(name, authority.issue(name))
        text = node.config.read_text().replace("http://", "https://")
        node.config.write_text(
            f'tls-cert-file = "{tmp_path / name}.crt"\ntls-key-file = "{tmp_path / name}.key"\n'
            f'tls-ca-file = "{trusted}"\n{text}'
        )
        node.url = node.url.replace("http://", "https://")

    def taken_up(times: int) -> None:
        for node in cluster.nodes.values():
            wait_until(
                lambda node=node: node.log_text().count("new certificates are in use") >= times
            )
        load.progress("ABC")

    def trust(*authorities: Authority) -> None:
        fresh = tmp_path / "trusted.new"
        fresh.write_text("".join(one.ca_file.read_text() for one in authorities))
        fresh.replace(trusted)

    with running(cluster), SteadyLoad(cluster, pause_s=0.1) as load:
        for name in cluster.nodes:
            install(name, authority.issue(name))
        taken_up(1)
        trust(authority, other)
        taken_up(2)
        for name in cluster.nodes:
            install(name, other.issue(name))
        taken_up(3)
        trust(other)
        taken_up(4)
        longest = {name: round(one.longest_s, 1) for name, one in load.promises.items()}
        print(f"longest without a commit {longest}")
        for name in cluster.nodes:
            load.leave(name)
        assert [one.refused for one in load.promises.values()] == [[], [], []]
        load.check()
