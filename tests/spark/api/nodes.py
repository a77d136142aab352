"""Starts real nodes, each alone in its cluster, for tests of the Spark interface."""

from __future__ import annotations

import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.support.certificates import Authority
from tests.support.forked_nodes import ForkedNode, fork_node
from tests.support.node_processes import free_ports

_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningNode:
    """A started node."""

    url: str
    directory: Path
    process: ForkedNode

    def stop(self) -> None:
        """Stop it and wait."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_node(directory: Path, *settings: str, authority: Authority | None = None) -> RunningNode:
    """Start a single node with the master and replica roles on a free port of loopback.

    Args:
        authority: Signs the node's certificate, by which it speaks TLS.
    """
    (port,) = free_ports(1)
    url, trusted = f"http://127.0.0.1:{port}", None
    if authority is not None:
        url, pair = f"https://127.0.0.1:{port}", authority.issue("A")
        trusted = ssl.create_default_context(cafile=str(authority.ca_file))
        files = {"cert": pair.cert, "key": pair.key, "ca": authority.ca_file}
        settings += tuple(f'tls-{name}-file = "{file}"' for name, file in files.items())
    config = directory / "node.toml"
    config.write_text(
        f'node-id = "A"\nmaster-url = "{url}"\ndata-dir = "{directory / "data"}"\n'
        'log-format = "json"\n' + "".join(f"{line}\n" for line in settings)
    )
    process = fork_node(directory / "node.log", "serve", "--config", str(config))
    node = RunningNode(url=url, directory=directory, process=process)
    deadline = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=1, context=trusted).close()
            return node
        except (urllib.error.URLError, OSError):
            text = (directory / "node.log").read_text()
            assert process.poll() is None, f"the node ended:\n{text}"
            assert time.monotonic() < deadline, f"the node is not ready:\n{text}"
            time.sleep(0.05)  # a starting process offers nothing to wait for
