"""Nodes of demos and rehearsals: `sparktxlog serve` processes, each with its own directories."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from examples.demo.bucket_server import WEED_PORTS, BucketServer
from examples.demo.children import Child, DemoError

from sparktxlog import Client
from sparktxlog.errors import TransportError
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store import Store

_START_TIMEOUT_S = 60.0
_POLL_S = 0.1
#: Seconds to wait for a node's answer.
_PATIENCE_S = 10.0
#: Seconds of silence after which the others go on without a node, in the part with a kill.
SUSPECT_TIMEOUT_S = 4
#: Seconds for which nodes take commits that nobody can order, in the parts without a kill.
_CUT_TIMEOUT_S = 300


def free_ports(count: int) -> list[int]:
    """Return free ports of loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()


class Cluster:
    """The sites' nodes, perhaps a witness, and the relays between them.

    Args:
        directory: Parent of the sites' directories; must not contain sites.
        sites: Node ids.
        witness: Id of a node that votes only; empty = none.
        suspect_timeout_s: Seconds of silence after which the others go on without a node; None =
            they wait for it, until `restart_evicting`.
        in_buckets: The sites' tables lie in a bucket of this machine, not in their directories.
        followers: Ids of nodes that follow: the first one the sites, each other one that before it.
    """

    def __init__(
        self,
        directory: Path,
        sites: Sequence[str],
        witness: str = "",
        *,
        suspect_timeout_s: float | None = None,
        in_buckets: bool = False,
        followers: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.sites = tuple(sites)
        self.witness = witness
        self.followers = tuple(followers)
        names = (*sites, *([witness] if witness else []), *followers)
        ports = free_ports(len(names) + WEED_PORTS)
        self.ports = dict(zip(names, ports, strict=False))
        self.bucket = BucketServer(directory, ports[len(names) :]) if in_buckets else None
        #: All processes but Spark's, in the order in which they were started.
        self.children: dict[str, Child] = {}
        #: Node → port of its relay.
        self._doors: dict[str, int] = {}
        self._secret = secrets.token_hex(24)
        #: None: the others wait for a silent node.
        self.suspect_timeout_s = suspect_timeout_s

    @property
    def _relays(self) -> Child:
        return self.children["relays"]

    def start(self) -> None:
        """Start the store, relays and nodes; return when all nodes answer."""
        if self.bucket is not None:
            self.children["store"] = self.bucket.start()
            self.wait_until(self.bucket.answers, "the store to answer")
        arguments = ["examples.demo.relay", json.dumps(self.ports)]
        log = self.directory / "relays.log"
        self.children["relays"] = Child("relays", log, arguments, answers=True)
        self._doors = self._relays.read_answer()
        self._start_nodes()

    def _start_nodes(self) -> None:
        for name in self.ports:
            self.start_node(name)
        self.wait_until(lambda: all(map(self.answers, self.ports)), "all nodes to answer")

    def start_node(self, name: str) -> None:
        """Start a node that does not run; it needs a moment before it answers."""
        log = self.site_directory(name) / "node.log"
        arguments = ["sparktxlog.cli", "serve", "--config", str(self._write_config(name))]
        self.children[name] = Child(f"node {name}", log, arguments)

    def kill_node(self, name: str) -> None:
        """Kill a node with SIGKILL."""
        child = self.children.pop(name)
        child.kill()
        child.stop()

    def restart_evicting(self) -> None:
        """Restart all nodes; from now on they go on without one that is silent for a while."""
        for name in self.ports:
            self.children.pop(name).stop()
        self.suspect_timeout_s = SUSPECT_TIMEOUT_S
        self._start_nodes()
        self.wait_until(self.is_whole, "all nodes to be linked again")

    def is_whole(self) -> bool:
        """Return whether every site's node takes part, with all sites, and is linked to all."""
        try:
            found = [self.status(site) for site in self.sites]
        except TransportError:
            return False
        return all(
            status["phase"] == "NORMAL"
            and set(self.sites) <= set(status["members"])
            and all(peer["linked"] for peer in status["peers"])
            for status in found
        )

    def answers(self, name: str) -> bool:
        """Return whether a node answers."""
        try:
            return bool(self.info(name))
        except TransportError:
            return False

    def _write_config(self, site: str) -> Path:
        root = self.site_directory(site)
        urls = {name: f"http://127.0.0.1:{port}" for name, port in self._doors.items()}
        evicts = self.suspect_timeout_s is not None
        lines = [
            f'node-id = "{site}"',
            f'master-url = "{urls[site]}"',
            f'listen = "127.0.0.1:{self.ports[site]}"',
            'cluster = "flights"',
            f"data-dir = {json.dumps(str(root))}",
            f'cluster-secret = "{self._secret}"',
            "idle-round-max = 2",
            # While a site is cut off the others wait for it, and all take what has to wait.
            f'eviction = "{"auto" if evicts else "manual"}"',
            f"suspect-timeout = {self.suspect_timeout_s if evicts else _CUT_TIMEOUT_S}",
        ]
        witness, follower = 'roles = ["witness"]', 'roles = ["follower", "replica"]'
        if site == self.witness:
            lines.append(witness)
        elif site in self.followers:
            lines.append(follower)
            before = self.followers[: self.followers.index(site)][-1:]
            lines += [f'follow = ["{name}"]' for name in before]
        elif self.bucket is not None:
            lines += self.bucket.node_settings(site)
        for number, other in enumerate((name for name in self.ports if name != site), start=1):
            lines += [f"[peer.{number}]", f'id = "{other}"', f'url = "{urls[other]}"']
            if other == self.witness:
                lines.append(witness)
            if other in self.followers:
                lines.append(follower)
        path = root / "node.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n")
        return path

    def site_directory(self, site: str) -> Path:
        """Return the directory that holds everything of one site."""
        return self.directory / f"site-{site.lower()}"

    def url(self, site: str) -> str:
        """Return the URL under which the site's own jobs reach its node."""
        return f"http://127.0.0.1:{self.ports[site]}"

    def info(self, site: str) -> dict[str, Any]:
        """Return names and directories of the site's node."""
        with Client(self.url(site), timeout=_PATIENCE_S) as client:
            return client.info()

    def status(self, site: str) -> dict[str, Any]:
        """Return the node's view of the cluster."""
        with Client(self.url(site), timeout=_PATIENCE_S) as client:
            return client.status()

    def lake(self, site: str) -> str:
        """Return where a site's row tables are: a directory, or a prefix of the bucket."""
        found = self.info(site)
        return str(found["lake_url"] or found["lake_root"])

    def store_at(self, url: str) -> Store:
        """Open a directory, or a prefix of the bucket."""
        return store_at(url) if self.bucket is None else self.bucket.store_at(url)

    def bucket_requests(self, site: str) -> dict[str, dict[str, int]]:
        """Return what a node asked of the bucket since its start: kind → `requests`, `bytes`."""
        found = dict[str, dict[str, int]]()
        for store in self.status(site)["stores"]:
            for kind, asked in store["asked"].items():
                of_kind = found.setdefault(kind, {})
                for what, count in asked.items():
                    of_kind[what] = of_kind.get(what, 0) + count
        return found

    def cut(self, site: str) -> None:
        """Cut all links of a site."""
        self._relays.ask({"do": "cut", "node": site})

    def heal(self) -> None:
        """Restore all links."""
        self._relays.ask({"do": "heal"})

    def received_bytes(self) -> dict[str, int]:
        """Return the bytes each site got from the others."""
        found = self._relays.ask({"do": "count"})
        return {site: int(found.get(site, 0)) for site in self.sites}

    def wait_until(
        self, holds: Callable[[], bool], what: str, timeout_s: float = _START_TIMEOUT_S
    ) -> None:
        """Return when `holds()`; raise DemoError if a process ends or the time is over."""
        deadline = monotonic() + timeout_s
        pause = Event()
        while not holds():
            for child in self.children.values():
                child.fail_if_dead()
            if monotonic() > deadline:
                raise DemoError(
                    f"waited {timeout_s:g} s for {what}", hint=f"Logs: {self.directory}/*/*.log"
                )
            pause.wait(_POLL_S)

    def wait_until_equal(self, timeout_s: float) -> dict[str, int]:
        """Wait until all queues are equal and published, and no transaction waits."""
        positions: dict[str, int] = {}

        def settled() -> bool:
            found = [self.status(site) for site in self.sites]
            positions.update({str(s["node_id"]): int(s["position"]) for s in found})
            ends = {*positions.values(), *(int(s["published"]) for s in found)}
            return len(ends) == 1 and not any(s["incoming_transactions"] for s in found)

        self.wait_until(settled, "all sites to hold the same queue", timeout_s)
        return positions

    def shared_files(self) -> int:
        """Return how many files of one site are, by inode, also files of another."""
        owners: dict[tuple[int, int], set[str]] = {}
        for site in (*self.sites, *self.followers):
            for path in self.site_directory(site).rglob("*"):
                if path.is_file():
                    found = path.stat()
                    owners.setdefault((found.st_dev, found.st_ino), set()).add(site)
        return sum(len(sites) > 1 for sites in owners.values())

    def keep(self) -> Path:
        """Leave all running; return a script that stops it."""
        self._relays.ask({"do": "stay"})
        script = self.directory / "stop.sh"
        pids = " ".join(str(child.process.pid) for child in reversed(self.children.values()))
        script.write_text(f"#!/bin/sh\nkill {pids}\n")
        script.chmod(0o755)
        return script

    def stop(self) -> None:
        """Stop all processes, the relays last."""
        for child in reversed(self.children.values()):
            child.stop()
