"""Real node processes on loopback for measurements."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_TIMEOUT_S = 300.0


class Cluster:
    """`names` nodes as processes, each with its own directory below `root`.

    Args:
        of_each: Name of a node → settings that it alone has.
    """

    def __init__(
        self,
        root: Path,
        names: str = "ABC",
        of_each: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.root = root
        self._of_each = of_each or {}
        self.names = list(names)
        self.settings = settings
        self.urls = {name: f"http://127.0.0.1:{free_port()}" for name in names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._secret = secrets.token_hex(16)

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
            for name in self.names:
                self.wait_ready(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self.processes):
            self.stop(name)

    def data_dir(self, name: str) -> Path:
        """Return the node's data directory."""
        return self.root / f"site-{name.lower()}"

    def peer_url(self, name: str) -> str:
        """Return the address at which a node's peers reach it."""
        return self.urls[name]

    def peer_lines(self, peer: str) -> str:
        """Return what else stands of a node in the configurations of the others: nothing."""
        return ""

    def start(self, name: str) -> None:
        """Start a node's process; `wait_ready` waits for it."""
        config = self.root / f"site-{name.lower()}.toml"
        lines = {
            "node-id": name,
            "master-url": self.peer_url(name),
            "data-dir": str(self.data_dir(name)),
            "cluster-secret": self._secret,
            "log-level": "warning",
            **self.settings,
            **self._of_each.get(name, {}),
        }
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        peers = [peer for peer in self.names if peer != name]
        for number, peer in enumerate(peers, start=1):
            text += f'[peer.{number}]\nid = "{peer}"\nurl = "{self.peer_url(peer)}"\n'
            text += self.peer_lines(peer)
        config.write_text(text)
        with (self.root / f"site-{name.lower()}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "sparktxlog.cli", "serve", "--config", str(config)],
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, name: str) -> float:
        """Wait until the node is ready; return the seconds since this call."""
        begin = time.perf_counter()
        while True:
            try:
                with urllib.request.urlopen(f"{self.urls[name]}/readyz", timeout=5):
                    return time.perf_counter() - begin
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if self.processes[name].poll() is not None:
                    log = (self.root / f"site-{name.lower()}.log").read_text()[-2_000:]
                    raise RuntimeError(f"node {name} ended:\n{log}") from None
                if time.perf_counter() - begin > START_TIMEOUT_S:
                    raise
                time.sleep(0.02)

    def stop(self, name: str) -> None:
        """End a node's process with SIGTERM and wait for it."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def get(self, name: str, path: str, timeout: float = 60) -> Any:
        """Return the JSON answer of a node."""
        with urllib.request.urlopen(self.urls[name] + path, timeout=timeout) as answer:
            return json.load(answer)

    def resident_bytes(self, name: str) -> int:
        """Return the resident memory of a node's process."""
        pages = Path(f"/proc/{self.processes[name].pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self, name: str) -> float:
        """Return user and system time of a node's process."""
        fields = Path(f"/proc/{self.processes[name].pid}/stat").read_text().rsplit(")", 1)[1]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def wait_published(self, name: str, position: int, timeout: float = 120) -> None:
        """Wait until a node has published the queue up to `position`."""
        path = f"/v1/published?at_least={position}&timeout={timeout:g}"
        self.get(name, path, timeout=timeout + 10)

    def wait_position(self, position: int, timeout: float = 120) -> None:
        """Wait until every node's queue holds `position`."""
        deadline = time.perf_counter() + timeout
        waiting = set(self.names)
        while waiting:
            waiting = {n for n in waiting if self.get(n, "/v1/info")["position"] < position}
            if waiting and time.perf_counter() > deadline:
                raise TimeoutError(f"nodes {sorted(waiting)} did not reach position {position}")
            if waiting:
                time.sleep(0.005)


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
