"""Nodes in network namespaces of their own, joined by a bridge that can be parted (root).

A site's port is moved to a second bridge, so what is sent across the cut vanishes as on a dead
cable; one direction alone is cut by a route to nowhere.  Clients come by links of their own.
"""

from __future__ import annotations

import os
import subprocess
import urllib.request
from typing import Any

from tests.support.node_processes import Cluster

_TOKEN = "the token of the test's clients"


def run(*command: str) -> None:
    """Run a command; what it says about a failure is in the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class NamespaceCluster(Cluster):
    """Node processes, each in a namespace; use as Cluster."""

    def start(self) -> None:
        """Make the network, start all nodes and wait until all links are up."""
        self._tag = f"txlog{os.getpid()}"
        self._hub = f"{self._tag}-hub"
        self._addresses = {n: f"10.78.0.{i}" for i, n in enumerate(self.nodes, start=1)}
        run("ip", "netns", "add", self._hub)
        for bridge in ("whole", "apart"):
            self._in_hub("link", "add", bridge, "type", "bridge")
            self._in_hub("link", "set", bridge, "up")
        for index, name in enumerate(self.nodes, start=1):
            self._add_site(name, index)
        opener = urllib.request.build_opener()
        opener.addheaders = [("Authorization", f"Bearer {_TOKEN}")]
        urllib.request.install_opener(opener)
        super().start()

    def _add_site(self, name: str, index: int) -> None:
        space, port, node = f"{self._tag}-{name}", self.ports[name], self.nodes[name]
        client_end = f"tx{os.getpid()}{name}"
        run("ip", "netns", "add", space)
        self._in_hub(
            "link", "add", f"port{name}", "type", "veth", "peer", "name", "site0", "netns", space
        )
        self._in_hub("link", "set", f"port{name}", "master", "whole", "up")
        run(
            "ip",
            "link",
            "add",
            client_end,
            "type",
            "veth",
            "peer",
            "name",
            "clients0",
            "netns",
            space,
        )
        run("ip", "addr", "add", f"10.79.{index}.1/30", "dev", client_end)
        run("ip", "link", "set", client_end, "up")
        for address, device in (
            (f"{self._addresses[name]}/24", "site0"),
            (f"10.79.{index}.2/30", "clients0"),
        ):
            self._at(name, "addr", "add", address, "dev", device)
        for device in ("lo", "site0", "clients0"):
            self._at(name, "link", "set", device, "up")
        node.prefix = ("ip", "netns", "exec", space)
        node.url = f"http://10.79.{index}.2:{port}"
        text = node.config.read_text()
        for other, other_port in self.ports.items():
            text = text.replace(f"127.0.0.1:{other_port}", f"{self._addresses[other]}:{other_port}")
        node.config.write_text(f'listen = "0.0.0.0:{port}"\nclient-token = "{_TOKEN}"\n{text}')

    def part(self, some: str) -> None:
        """Cut some sites off from the others; they reach each other."""
        for name in some:
            self._in_hub("link", "set", f"port{name}", "master", "apart")

    def lose(self, sender: str, receiver: str) -> None:
        """Lose what one site sends to another."""
        self._at(sender, "route", "add", "blackhole", f"{self._addresses[receiver]}/32")
        self._lost = (sender, receiver)

    def heal(self) -> None:
        """Let everybody reach everybody again."""
        for name in self.nodes:
            self._in_hub("link", "set", f"port{name}", "master", "whole")
        lost: tuple[str, str] | None = self.__dict__.pop("_lost", None)
        if lost is not None:
            self._at(lost[0], "route", "del", "blackhole", f"{self._addresses[lost[1]]}/32")

    def _in_hub(self, *arguments: str) -> None:
        run("ip", "-n", self._hub, *arguments)

    def _at(self, name: str, *arguments: str) -> None:
        run("ip", "-n", f"{self._tag}-{name}", *arguments)

    def stop(self) -> None:
        """Stop all nodes and remove the network."""
        super().stop()
        no_opener: Any = None
        urllib.request.install_opener(no_opener)
        for end in (*self.nodes, "hub"):
            subprocess.run(
                ["ip", "netns", "del", f"{self._tag}-{end}"], capture_output=True, check=False
            )
