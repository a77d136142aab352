"""Server processes on loopback, and what processes cost, from /proc."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

START_TIMEOUT_S = 300.0
_PRIVATE = re.compile(r"^Private_(?:Clean|Dirty):\s+(\d+) kB", re.MULTILINE)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process, with that of its threads that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1]
    user, system = fields.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(root: int | None = None) -> float:
    """Return user and system time of a process and of all below it, with those that ended.

    Args:
        root: None = this process.
    """
    # The kernel's lists of children leave out some while processes come and go.
    below: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for at in Path("/proc").glob("[0-9]*"):
        try:
            fields = (at / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        below.setdefault(int(fields[1]), []).append(int(at.name))
        spent[int(at.name)] = sum(map(int, fields[11:15]))
    ticks, left = 0, [os.getpid() if root is None else root]
    while left:
        pid = left.pop()
        ticks += spent.get(pid, 0)
        left += below.get(pid, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def written_bytes(pid: int) -> int:
    """Return what a process gave to disks: whole pages, each once between two writebacks."""
    found = re.search(r"^write_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def private_bytes(pid: int) -> int:
    """Return the memory that only this process has."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(map(int, _PRIVATE.findall(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What some work took, or what had been spent at a moment."""

    #: Of the clock.
    seconds: float
    #: CPU seconds of all servers.
    servers: float
    #: CPU seconds of the client.
    client: float
    #: Bytes that all servers wrote.
    written: int

    def since(self, began: Spent) -> Spent:
        """Return the difference."""
        return Spent(
            seconds=self.seconds - began.seconds,
            servers=self.servers - began.servers,
            client=self.client - began.client,
            written=self.written - began.written,
        )


def spent_now(servers: Iterable[int], client: int) -> Spent:
    """Return what servers and their client have spent since they began.

    Args:
        client: This process, or that of a peer's own client.
    """
    pids = list(servers)
    return Spent(
        seconds=time.perf_counter(),
        servers=sum(map(cpu_seconds, pids)),
        client=time.process_time() if client == os.getpid() else cpu_seconds(client),
        written=sum(map(written_bytes, pids)),
    )


class Servers:
    """The server processes of one peer, each with a log of what it says."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        """The processes that were started and not stopped."""
        return [process.pid for process in self.running.values()]

    def start(
        self, name: str, command: Sequence[str | Path], environ: Mapping[str, str] | None = None
    ) -> None:
        """Start a server."""
        with self._log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environ or {})},
                cwd=self.directory,
            )

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until a call returns true; one that fails with an `OSError` counts as false.

        Raises:
            RuntimeError: A server ended meanwhile; the end of its log is in the text.
            TimeoutError: Not within five minutes.
        """
        deadline, names = time.perf_counter() + START_TIMEOUT_S, list(self.running)
        while not self._true(ready):
            for name, process in list(self.running.items()):
                if process.poll() is not None:
                    self.stop()
                    raise RuntimeError(f"{name} ended:\n{self.said(name)}")
            if time.perf_counter() > deadline:
                self.stop()
                told = "\n".join(f"{name}:\n{self.said(name)}" for name in names)
                raise TimeoutError(f"{what}: not within {START_TIMEOUT_S:g} s\n{told}")
            time.sleep(0.1)

    @staticmethod
    def _true(ready: Callable[[], bool]) -> bool:
        try:
            return ready()
        except OSError:
            return False

    def said(self, name: str) -> str:
        """Return the end of a server's log."""
        return self._log(name).read_text(errors="replace")[-2_000:]

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all of them; those that take longer than 20 s are killed."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
