"""Secrets, tokens, addresses, certificates and disks are replaced, and nodes added, under load.

All as the pages say. No commit is refused for longer than one restart of a node takes, and none
where none is needed.
"""

from __future__ import annotations

import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.support.certificates import Authority, Pair
from tests.support.epoch_views import all_show, operate, told
from tests.support.node_processes import (
    SECRET,
    Cluster,
    HttpProblem,
    NodeProcess,
    call,
    free_ports,
    running,
    wait_until,
)
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: Longer than a restart, on any machine: who is away for so long is no member meanwhile, and joins
#: again.  A commit that waits for somebody who is not there waits for so long, too.
PATIENT_S = 20.0
PATIENT = (f"suspect-timeout = {PATIENT_S:g}",)
NEW = "the secret that comes next"
TOKEN, NEW_TOKEN = "a token of its clients", "the token that comes next"
#: Seconds that a link may take after a node is ready, and a commit after that; on a slow machine
#: half a restart more.
_AFTER_S = 3.0


class Acts:
    """What an operator does to a cluster, and how long the longest restart took."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.longest_s = 0.0
        self.load: SteadyLoad
        #: What operators show.
        self.shown: dict[str, str] = {}

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
        # 3 as long as the order waits for the node that has just come.
        wait_until(lambda: told(other, "peers", **self.shown)[0] == 0, what="peers are well")
        self.load.progress("ABC", 2)

    def configure(self, node: NodeProcess, secret: str, *settings: str) -> None:
        """Write a node's file again."""
        node.settings = (*PATIENT, *settings)
        cluster = self._cluster
        node.write_config(cluster.ports[node.name], cluster.peers_of(node.name), secret=secret)


def show(*token: str) -> None:
    """Let every call that names no token show this one, or none."""
    opener = urllib.request.build_opener()
    opener.addheaders = [("Authorization", f"Bearer {one}") for one in token]
    urllib.request.install_opener(opener)


@contextmanager
def showing(token: str) -> Iterator[None]:
    """As `show`, as long as the context lasts."""
    show(token)
    try:
        yield
    finally:
        show()


def patient_load(cluster: Cluster) -> SteadyLoad:
    """Return clients that are refused only what would have waited for somebody who is away."""
    return SteadyLoad(cluster, pause_s=0.1, timeout_s=PATIENT_S)


def longest_of(load: SteadyLoad) -> dict[str, float]:
    """Return the longest time without a commit at each node, and begin to measure again."""
    found = {name: round(one.longest_s, 1) for name, one in load.promises.items()}
    for name, one in load.promises.items():  # shown if a test fails
        for at, asked_s, why in one.refused:
            print(f"{name} at {at:.1f}, asked for {asked_s:.1f} s: {why[:150]}")
        one.longest_s = 0.0
        one.refused.clear()
    print(f"longest without a commit {found}")
    return found


def test_a_cluster_grows_from_one_to_three_under_load(tmp_path: Path) -> None:
    """docs/sites.md, "From one node to two, and on"."""
    cluster = Cluster(tmp_path, "A", settings=PATIENT)
    a = cluster.nodes["A"]

    def added(name: str) -> NodeProcess:
        port = free_ports(1)[0]
        node = NodeProcess(tmp_path, name, port, dict(cluster.ports), settings=PATIENT)
        cluster.nodes[name], cluster.ports[name] = node, port
        return node

    with running(cluster), patient_load(cluster) as load:
        b = added("B")
        operate(a, "peer", "add", "B", b.url, "--weight", "0")
        load.progress("A")
        b.start()
        all_show(cluster, "AB")
        load.join(b)
        operate(a, "peer", "set", "B", "--weight", "1")
        load.progress("AB")
        c = added("C")
        operate(a, "peer", "add", "C", c.url)
        load.progress("AB")
        c.start()
        all_show(cluster, "ABC")
        load.join(c)
        load.progress("ABC")
        assert not any(one.refused for one in load.promises.values())
        assert max(longest_of(load).values()) < PATIENT_S
        for name in cluster.nodes:
            load.leave(name)
        load.check()


def test_a_disk_is_replaced_while_the_others_go_on(tmp_path: Path) -> None:
    """docs/sites.md, "Replacing disks one after the other"; the node on duty, without a worker."""
    cluster = Cluster(tmp_path, "ABC", settings=PATIENT)
    a, b = cluster.nodes["A"], cluster.nodes["B"]
    with running(cluster), patient_load(cluster) as load:
        operate(a, "peer", "pause")
        wait_until(lambda: told(b, "survival", "A")[0] == 0, what="A may be lost")
        operate(b, "peer", "remove", "A")
        began = time.monotonic()
        assert a.stop() == 0
        shutil.rmtree(tmp_path / "A")
        # Longer than others would wait for it.
        wait_until(lambda: time.monotonic() - began > PATIENT_S, 2 * PATIENT_S)
        load.progress("BC")
        a.start()
        a.wait_ready()
        operate(b, "peer", "add", "A", a.url)
        wait_until(lambda: urlopen(f"{a.url}/readyz").close() is None, what="A is ready")
        load.progress("A", 2)
        print(f"A was away for {time.monotonic() - began:.1f} s")
        all_show(cluster, "BCA")
        load.progress("ABC")
        assert not load.promises["B"].refused and not load.promises["C"].refused
        longest = longest_of(load)
        assert max(longest["B"], longest["C"]) < PATIENT_S
        for name in cluster.nodes:
            load.leave(name)
        load.check()


def test_secret_tokens_and_addresses_are_replaced_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "ABC", settings=(*PATIENT, f'client-token = "{TOKEN}"'))
    acts, nodes = Acts(cluster), cluster.nodes
    acts.shown = {"SPARKTXLOG_CLIENT_TOKEN": TOKEN}
    with showing(TOKEN), running(cluster), SteadyLoad(cluster, pause_s=0.1) as load:
        acts.load = load
        # docs/access.md, "Replace the cluster secret" and "Replace the client token", in
        # the same restarts; an admin token comes and goes, too.
        admin = 'admin-token = "the token of its operators"'
        for secret, token, *more in (
            (SECRET, TOKEN, f'cluster-secret-also = "{NEW}"', f'client-token-also = "{NEW_TOKEN}"'),
            (
                NEW,
                NEW_TOKEN,
                f'cluster-secret-also = "{SECRET}"',
                f'client-token-also = "{TOKEN}"',
                admin,
            ),
            (NEW, NEW_TOKEN),
        ):
            for node in nodes.values():
                acts.configure(node, secret, f'client-token = "{token}"', *more)
                acts.restart(node)
            # The clients of A and B get it as soon as all nodes know it, that of C at the end.
            load.tokens |= dict.fromkeys("AB" if token == TOKEN else "C", NEW_TOKEN)
            show(token)
            acts.shown = {"SPARKTXLOG_CLIENT_TOKEN": token}
        with pytest.raises(HttpProblem, match="401"):
            call(f"{nodes['A'].url}/v1/status", token=TOKEN)
        _, audit = told(nodes["A"], "audit", **acts.shown)
        assert all(f"{name}-also" in audit for name in ("cluster-secret", "client-token"))
        assert "admin-token" in audit
        # docs/sites.md: "If only one node gets another address: run `peer set` for it first".
        for node, port in zip(nodes.values(), free_ports(3), strict=True):
            address = f"http://127.0.0.1:{port}"
            operate(node, "peer", "set", node.name, "--address", address, **acts.shown)
            cluster.ports[node.name] = port
            for other in nodes.values():
                acts.configure(other, NEW, f'client-token = "{NEW_TOKEN}"')
            stopped = time.monotonic()
            assert node.stop() == 0
            node.url = address
            acts.started(node, stopped)
        # Who started before another one moved has its old address in what it read.
        said = [w["text"] for node in nodes.values() for w in node.status()["warnings"]]
        assert len(said) == 3 and all("and answers: change the configuration" in t for t in said)
        refused = [why for one in load.promises.values() for *_, why in one.refused]
        assert not [why for why in refused if why.startswith("401")]
        print(f"longest restart {acts.longest_s:.1f} s")
        assert max(longest_of(load).values()) <= 1.5 * acts.longest_s + _AFTER_S
        for node in nodes.values():
            load.leave(node.name)
        load.check()


def test_certificates_and_authority_are_replaced_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/access.md, "New certificates" and "Another authority"."""
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

    with running(cluster), patient_load(cluster) as load:
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
        assert [one.refused for one in load.promises.values()] == [[], [], []]
        longest_of(load)
        for name in cluster.nodes:
            load.leave(name)
        load.check()
