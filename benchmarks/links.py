"""Two network namespaces of our own, joined by a link of a set rate: `ip` and `tc tbf` (root).

Traffic stays on this machine.  The kernel's `tbf` counts whole Ethernet frames, so the *line
rate* that a copy is compared with is what plain TCP gets through the same link, measured here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

#: Addresses of the two ends.
DONOR, TARGET = "10.77.0.1", "10.77.0.2"
_BURST_S = 0.004
_SEND = """
import socket, sys, time
link = socket.create_connection((sys.argv[1], 7901), timeout=30)
block, left = bytes(1 << 20), int(sys.argv[2])
while left > 0:
    left -= link.send(block[:left])
link.shutdown(socket.SHUT_WR)
link.recv(1)
"""
_RECEIVE = """
import socket, sys, time
server = socket.create_server(("", 7901))
print("ready", flush=True)
link, _ = server.accept()
buffer, size, begin = bytearray(1 << 20), 0, time.perf_counter()
while got := link.recv_into(buffer):
    size += got
print(size / (time.perf_counter() - begin), flush=True)
"""


def usable() -> str:
    """Return why links cannot be shaped here, empty if they can."""
    if os.geteuid() != 0:
        return "shaping a link needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found (Debian: iproute2)" if missing else ""


class ShapedLink:
    """Two namespaces, `donor` and `target`, with a link of `bits_per_s` between them.

    Args:
        bits_per_s: Rate of each direction; None = as fast as the machine is.
    """

    def __init__(self, bits_per_s: int | None) -> None:
        self.bits_per_s = bits_per_s
        self._names = {end: f"txlog-{os.getpid()}-{end}" for end in ("donor", "target")}

    def __enter__(self) -> Self:
        for name in self._names.values():
            _run("ip", "netns", "add", name)
        donor, target = self._names["donor"], self._names["target"]
        _run(
            "ip",
            "link",
            "add",
            "veth0",
            "netns",
            donor,
            "type",
            "veth",
            "peer",
            "name",
            "veth0",
            "netns",
            target,
        )
        for end, address in (("donor", DONOR), ("target", TARGET)):
            self.call(end, "ip", "addr", "add", f"{address}/24", "dev", "veth0")
            for device in ("lo", "veth0"):
                self.call(end, "ip", "link", "set", device, "up")
            if self.bits_per_s is not None:
                burst = max(65_536, int(self.bits_per_s / 8 * _BURST_S))
                self.call(
                    end,
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    "veth0",
                    "root",
                    "tbf",
                    "rate",
                    f"{self.bits_per_s}bit",
                    "burst",
                    str(burst),
                    "latency",
                    "50ms",
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)

    def prefix(self, end: str) -> list[str]:
        """Return what to put before a command that is to run at `donor` or `target`."""
        return ["ip", "netns", "exec", self._names[end]]

    def call(self, end: str, *command: str) -> str:
        """Run a command at one end and return its output."""
        return _run(*self.prefix(end), *command)

    def line_bytes_per_s(self, size_bytes: int) -> float:
        """Send `size_bytes` from donor to target over one TCP connection; return the rate."""
        receiver = subprocess.Popen(
            [*self.prefix("target"), sys.executable, "-c", _RECEIVE],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert receiver.stdout is not None
        receiver.stdout.readline()
        self.call("donor", sys.executable, "-c", _SEND, TARGET, str(size_bytes))
        rate = float(receiver.stdout.readline())
        receiver.wait()
        return rate


def wait_listening(link: ShapedLink, end: str, address: str, port: int, timeout: float) -> None:
    """Wait until something listens on an address, as seen from one end."""
    probe = f"import socket; socket.create_connection(({address!r}, {port}), 1).close()"
    deadline = time.perf_counter() + timeout
    while True:
        done = subprocess.run(
            [*link.prefix(end), sys.executable, "-c", probe], capture_output=True, check=False
        )
        if done.returncode == 0:
            return
        if time.perf_counter() > deadline:
            raise TimeoutError(f"nothing listens on {address}:{port}")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
