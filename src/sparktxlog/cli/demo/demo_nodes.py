"""The demo's nodes: real `sparktxlog serve` processes, each with its own directories."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import IO, Any

from sparktxlog.cli.node_api import NodeApi
from sparktxlog.errors import TransportError, TxLogError

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.1
#: Seconds of silence after which the others go on without a node, in the part with a kill.
SUSPECT_TIMEOUT_S = 4


class DemoError(TxLogError):
    """A process of the demo did not do its part; the hint names its log."""

    code = "demo"


@dataclass(slots=True)
class Child:
    """A process of the demo and its log file."""

    name: str
    log: Path
    process: subprocess.Popen[str]

    def fail_if_dead(self) -> None:
        """Raise DemoError with the end of the log if the process has ended."""
        if self.process.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-12:]
            raise DemoError(
                f"{self.name} ended with exit code {self.process.returncode}:\n" + "\n".join(lines),
                hint=f"Its log: {self.log}",
            )

    def stop(self) -> None:
        """Ask the process to end, and end it if it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def start_child(
    name: str,
    log: Path,
    arguments: Sequence[str],
    *,
    piped: bool,
    env: dict[str, str] | None = None,
) -> Child:
    """Start `python -m …` with stderr, and stdout unless piped, in a log file.

    The process has a session of its own: Ctrl-C reaches the demo, which then ends it in order.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else file,
            stderr=file,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    return Child(name=name, log=log, process=process)


def ask_line(child: Child, command: dict[str, Any] | None) -> dict[str, Any]:
    """Send a line of JSON to a child, unless None, and return the next line it answers."""
    stdin, stdout = child.process.stdin, child.process.stdout
    assert stdin is not None
    assert stdout is not None
    if command is not None:
        _send(stdin, json.dumps(command) + "\n", child)
    while line := stdout.readline():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    child.process.wait(_STOP_TIMEOUT_S)
    child.fail_if_dead()
    raise DemoError(f"{child.name} closed its output", hint=f"Its log: {child.log}")


def _send(stdin: IO[str], text: str, child: Child) -> None:
    try:
        stdin.write(text)
        stdin.flush()
    except BrokenPipeError:
        child.process.wait(_STOP_TIMEOUT_S)
        child.fail_if_dead()
        raise


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()


class Cluster:
    """The sites' nodes, perhaps a witness, and the relays between them.

    Args:
        directory: Parent of the sites' directories; must not hold sites already.
        sites: Node ids.
        witness: Id of a node that votes only; empty = none.
    """

    def __init__(self, directory: Path, sites: Sequence[str], witness: str = "") -> None:
        self.directory = directory
        self.sites = tuple(sites)
        self.witness = witness
        names = (*sites, witness) if witness else tuple(sites)
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.children: list[Child] = []
        self._nodes: dict[str, Child] = {}
        self._doors: dict[str, int] = {}
        self._secret = secrets.token_hex(24)
        self._relay: Child | None = None
        #: Whether the others go on without a node that is silent for a while.
        self._evicting = False

    def start(self) -> None:
        """Start relays and nodes; return when all nodes answer."""
        pairs = [f"{site}={port}" for site, port in self.ports.items()]
        self._relay = start_child(
            "relays", self.directory / "relays.log", ["sparktxlog.cli.demo.relay", *pairs],
            piped=True,
        )  # fmt: skip
        self.children.append(self._relay)
        self._doors = ask_line(self._relay, None)
        self._start_all()

    def _start_all(self) -> None:
        for name in self.ports:
            self.start_node(name)
        for name in self.ports:
            self.wait_until(partial(self._answers, name), f"node {name} to answer")

    def start_node(self, name: str) -> None:
        """Start a node that does not run; it answers soon."""
        config = self._write_config(name)
        child = start_child(
            f"node {name}",
            self.site_directory(name) / "node.log",
            ["sparktxlog.cli", "serve", "--config", str(config)],
            piped=False,
        )
        self._nodes[name] = child
        self.children.append(child)

    def kill_node(self, name: str) -> None:
        """End a node as a power cut does: SIGKILL."""
        child = self._nodes.pop(name)
        self.children.remove(child)
        child.process.kill()
        child.process.wait(_STOP_TIMEOUT_S)

    def restart_evicting(self) -> None:
        """Restart all nodes; from now on they go on without one that is silent for a while."""
        for name in tuple(self._nodes):
            child = self._nodes.pop(name)
            self.children.remove(child)
            child.stop()
        self._evicting = True
        self._start_all()
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

    def _answers(self, site: str) -> bool:
        try:
            return bool(self.api(site).get("/v1/info"))
        except TransportError:
            return False

    def _write_config(self, site: str) -> Path:
        doors = self._doors
        root = self.site_directory(site)
        lines = [
            f'node-id = "{site}"',
            f'master-url = "http://127.0.0.1:{doors[site]}"',
            f'listen = "127.0.0.1:{self.ports[site]}"',
            'cluster = "flights"',
            f"data-dir = {json.dumps(str(root))}",
            f'cluster-secret = "{self._secret}"',
            "idle-round-max = 2",
        ]
        if self._evicting:
            lines += ['eviction = "auto"', f"suspect-timeout = {SUSPECT_TIMEOUT_S}"]
        else:
            # The story cuts a site off for a while: the others wait for it, by name.
            lines.append('eviction = "manual"')
        witness = 'roles = ["witness"]'
        if site == self.witness:
            lines.append(witness)
        others = [other for other in self.ports if other != site]
        for number, other in enumerate(others, start=1):
            url = f"http://127.0.0.1:{doors[other]}"
            lines += [f"[peer.{number}]", f'id = "{other}"', f'url = "{url}"']
            if other == self.witness:
                lines.append(witness)
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

    def api(self, site: str) -> NodeApi:
        """Return a reader of the site's node."""
        return NodeApi(self.url(site))

    def status(self, site: str) -> dict[str, Any]:
        """Return the node's view of the cluster."""
        found: dict[str, Any] = self.api(site).get("/v1/status")
        return found

    def cut(self, site: str) -> None:
        """Cut all links of a site."""
        self._tell_relays({"do": "cut", "node": site})

    def heal(self) -> None:
        """Mend all links."""
        self._tell_relays({"do": "heal"})

    def received_bytes(self) -> dict[str, int]:
        """Return the bytes each site got from the others."""
        found = self._tell_relays({"do": "count"})
        return {site: int(found.get(site, 0)) for site in self.sites}

    def _tell_relays(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._relay is not None
        return ask_line(self._relay, command)

    def wait_until(
        self, holds: Callable[[], bool], what: str, timeout_s: float = _START_TIMEOUT_S
    ) -> None:
        """Return when `holds()`; raise DemoError when a process ends or time is over."""
        deadline = monotonic() + timeout_s
        pause = Event()
        while not holds():
            for child in self.children:
                child.fail_if_dead()
            if monotonic() > deadline:
                raise DemoError(
                    f"waited {timeout_s:g} s for {what}", hint=f"Logs: {self.directory}/*/*.log"
                )
            pause.wait(_POLL_S)

    def wait_until_equal(self, timeout_s: float) -> dict[str, int]:
        """Wait until nothing waits and all queues have one length, all of it published."""
        positions: dict[str, int] = {}

        def settled() -> bool:
            found = [self.status(site) for site in self.sites]
            positions.update({str(s["node_id"]): int(s["position"]) for s in found})
            waiting = sum(int(s["incoming_transactions"]) for s in found)
            published = {int(s["published"]) for s in found}
            return waiting == 0 and published == set(positions.values()) and len(published) == 1

        self.wait_until(settled, "all sites to hold the same queue", timeout_s)
        return positions

    def shared_files(self) -> int:
        """Return how many files of one site are, by inode, also files of another."""
        owners: dict[tuple[int, int], set[str]] = {}
        for site in self.sites:
            for path in self.site_directory(site).rglob("*"):
                if path.is_file():
                    found = path.stat()
                    owners.setdefault((found.st_dev, found.st_ino), set()).add(site)
        return sum(len(sites) > 1 for sites in owners.values())

    def keep(self) -> Path:
        """Leave all running; return a script that stops it."""
        self._tell_relays({"do": "stay"})
        script = self.directory / "stop.sh"
        pids = " ".join(str(child.process.pid) for child in reversed(self.children))
        script.write_text(f"#!/bin/sh\nkill {pids}\n")
        script.chmod(0o755)
        return script

    def stop(self) -> None:
        """Stop all processes, the relays last."""
        for child in reversed(self.children):
            child.stop()
