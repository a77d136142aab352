"""Real nodes as processes on loopback, for tests that kill, stop and restart them."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.support.forked_nodes import ForkedNode, fork_node, node_environment

from sparktxlog.codec.containers.assembly import assemble_rows
from sparktxlog.model.transactions.operation import OperationKind

SECRET = "a secret of the test cluster"
TABLE = {
    "operations": [
        {
            "kind": "create_table",
            "table": "t",
            "columns": [{"name": "id", "type": "bigint"}, {"name": "v", "type": "string"}],
        }
    ]
}


#: Below what systems give to outgoing connections, and other ones in each process of a run: a
#: node that is down for a moment finds its port free again.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = range(20_000 + 2_000 * (_WORKER % 6), 22_000 + 2_000 * (_WORKER % 6))
_candidates = itertools.cycle(random.sample(_PORTS, len(_PORTS)))


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    ports: list[int] = []
    while len(ports) < count:
        port = next(_candidates)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports


def ports_in_a_row(count: int) -> int:
    """Return the first of so many ports in a row that were free a moment ago."""
    for first in random.sample(_PORTS[:-count], len(_PORTS) - count):
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError(f"no {count} ports in a row are free")


def append(number: int, transaction_id: str | None = None) -> dict[str, Any]:
    """Return a transaction that appends one row."""
    body: dict[str, Any] = {
        "operations": [{"kind": "append", "table": "t", "rows": [{"id": number, "v": "x"}]}]
    }
    if transaction_id is not None:
        body["transaction_id"] = transaction_id
    return body


def run_payload(n: int, seed: int) -> bytes:
    """Return the container of a run of `n` one-row appends."""
    import numpy as np
    import pyarrow as pa

    rows = pa.table({"id": pa.array(range(n), pa.int64()), "v": pa.array(["run"] * n)})
    ids = b"".join((seed * 1_000_000 + i).to_bytes(16, "big") for i in range(n))
    txs = np.arange(n, dtype=np.int32)
    return assemble_rows("t", OperationKind.APPEND, 1, rows, txs, ids, 1)[1]


class HttpProblem(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(f"{status}: {document}")
        self.status = status
        self.document = document


def call(
    url: str, body: Any = None, *, raw: bytes | None = None, timeout: float = 60, token: str = ""
) -> Any:
    """Call a node and return its JSON; half an answer of a killed node is a broken connection."""
    data = raw if raw is not None else (json.dumps(body).encode() if body is not None else None)
    headers = {"content-type": "application/json"}
    if raw is not None:
        headers = {"content-type": "application/vnd.sparktxlog.run"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            raise HttpProblem(error.code, json.loads(error.read())) from error
    except http.client.IncompleteRead as error:
        raise ConnectionError(f"{url}: the answer was cut off") from error


def wait_until(condition: Callable[[], Any], timeout: float = 90.0, what: str = "") -> Any:
    """Return what the condition returns once it is true; calls that fail count as false."""
    deadline = time.monotonic() + timeout
    last: Any = None
    while time.monotonic() < deadline:
        try:
            last = condition()
            if last:
                return last
        except (OSError, HttpProblem) as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"not reached in {timeout} s: {what or condition}; last: {last}")


#: Nodes wait for one that is missing; tests of epochs say otherwise.
MANUAL = 'eviction = "manual"'


class NodeProcess:
    """One `sparktxlog serve` process."""

    def __init__(
        self,
        directory: Path,
        name: str,
        port: int,
        peers: dict[str, int],
        settings: Sequence[str] = (MANUAL,),
        witnesses: str = "",
        weights: dict[str, int] | None = None,
        followers: str = "",
    ) -> None:
        self.name = name
        self.witnesses, self.followers = witnesses, followers
        #: Votes of nodes that have not one.
        self.weights = weights or {}
        #: What its command line begins with: a program that starts another one.
        self.prefix: tuple[str, ...] = ()
        #: Environment variables of the process, beside those of the test.
        self.environment: dict[str, str] = {}
        #: Further lines of its configuration.
        self.settings = tuple(settings)
        self.url = f"http://127.0.0.1:{port}"
        self.directory = directory
        self.peers = peers
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / f"{name}.toml"
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | ForkedNode | None = None
        self.write_config(port, peers)

    def write_config(
        self, port: int, peers: dict[str, int], *, secret: str = SECRET, data: str | None = None
    ) -> None:
        """Write the node's configuration file."""
        lines = [
            f'node-id = "{self.name}"',
            f'master-url = "http://127.0.0.1:{port}"',
            f'data-dir = "{self.directory / (data or self.name)}"',
            f'cluster-secret = "{secret}"',
            "publish-interval = 0.1",
            "idle-round-max = 2",
            *self.settings,
        ]
        if self.name in self.witnesses:
            lines.append('roles = ["witness"]')
        if self.name in self.followers:
            lines.append('roles = ["follower", "replica"]')
        if self.name in self.weights:
            lines.append(f"weight = {self.weights[self.name]}")
        for number, (name, peer_port) in enumerate(sorted(peers.items()), start=1):
            lines += [f"[peer.{number}]", f'id = "{name}"', f'url = "http://127.0.0.1:{peer_port}"']
            if name in self.witnesses:
                lines.append('roles = ["witness"]')
            if name in self.followers:
                lines.append('roles = ["follower", "replica"]')
            if name in self.weights:
                lines.append(f"weight = {self.weights[name]}")
        self.config.touch(0o600)  # it holds a secret
        self.config.write_text("\n".join(lines) + "\n")

    def start(self, *settings: str) -> None:
        """Start the process; `wait_ready` waits for it."""
        arguments = ["serve", "--config", str(self.config)]
        for setting in settings:
            arguments += ["--set", setting]
        if not (self.prefix or self.environment):
            self.process = fork_node(self.log, *arguments)
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "sparktxlog.cli", *arguments],
                stdout=log,
                stderr=log,
                env={**node_environment(), **self.environment},
            )

    def wait_ready(self) -> None:
        """Wait until the node answers."""
        wait_until(lambda: self.status()["node_id"] == self.name, what=f"{self.name} is up")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process as a power cut would."""
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(30)

    def stop(self) -> int:
        """Stop the process cleanly and return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait(30)

    def status(self) -> dict[str, Any]:
        """Return the node's status."""
        status: dict[str, Any] = call(f"{self.url}/v1/status", timeout=15)
        return status

    @property
    def lake(self) -> Path:
        """Where the replica of this node's site is."""
        return self.directory / self.name / "lake"

    def replica(self, site: str = "") -> dict[str, Any]:
        """Return what the node knows of a site's replica, its own if none is named."""
        found = call(f"{self.url}/v1/status?tables=1", timeout=15)["replicas"]
        return next((r for r in found if r["node_id"] == (site or self.name)), {})

    def hear(self, site: str, position: int, timeout: float = 240.0) -> dict[str, Any]:
        """Wait until the node knows that a site's replica is at a position; return it."""

        def heard() -> dict[str, Any]:
            replica = self.replica(site)
            return replica if replica.get("position") == position else {}

        what = f"{self.name} hears that the replica of {site} is at {position}"
        found: dict[str, Any] = wait_until(heard, timeout, what)
        return found

    def commit(
        self, body: dict[str, Any], level: str = "ordered", timeout: float = 30
    ) -> dict[str, Any]:
        """Commit a transaction and return its receipt."""
        url = f"{self.url}/v1/transactions?level={level}&timeout={timeout}"
        receipt: dict[str, Any] = call(url, body)
        return receipt

    def commit_run(self, payload: bytes, level: str = "ordered") -> dict[str, Any]:
        """Commit a run and return its receipt."""
        receipt: dict[str, Any] = call(f"{self.url}/v1/runs?level={level}", raw=payload)
        return receipt

    def log_text(self) -> str:
        """Return everything the node logged."""
        return self.log.read_text()


def queue_of(node: NodeProcess, after: int = 0) -> list[dict[str, Any]]:
    """Return the runs of a node's queue behind a position, each position being in one of them."""
    found: list[dict[str, Any]] = []
    end = after
    while page := call(f"{node.url}/v1/queue?after={end}&limit=1000"):
        for run in page:
            assert run["position"] == end + 1
            end += run["n"]
        found += page
    return found


def committed(node: NodeProcess, identities: set[str]) -> list[str]:
    """Return those of the ids that take effect, as often as they do."""
    return sorted(
        run["first_id"]
        for run in queue_of(node)
        if run["first_id"] in identities and not run["rejected"]
    )


class Cluster:
    """Nodes that are each other's peers."""

    def __init__(
        self,
        directory: Path,
        names: str = "ABC",
        settings: Sequence[str] = (MANUAL,),
        witnesses: str = "",
        weights: dict[str, int] | None = None,
    ) -> None:
        self.directory = directory
        self.witnesses = witnesses
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.nodes = {
            name: NodeProcess(
                directory, name, port, self.peers_of(name), settings, witnesses, weights
            )
            for name, port in self.ports.items()
        }

    def peers_of(self, name: str) -> dict[str, int]:
        """Return the other nodes' ports."""
        return {other: port for other, port in self.ports.items() if other != name}

    def start(self) -> None:
        """Start all nodes and wait until all links are up."""
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            node.wait_ready()
        wait_until(self.all_linked, what="all links are up")

    def all_linked(self) -> bool:
        """Return whether every node is linked to every other."""
        return all(
            peer["linked"] for node in self.nodes.values() for peer in node.status()["peers"]
        )

    def masters(self) -> list[NodeProcess]:
        """Return the nodes that have a queue."""
        return [node for name, node in self.nodes.items() if name not in self.witnesses]

    def settle(self, timeout: float = 90) -> int:
        """Wait until nothing waits and all nodes stand at one position; return it."""

        def quiet() -> int:
            states = [node.status() for node in self.masters()]
            if any(state["incoming_runs"] or state["halted"] for state in states):
                return 0
            # What a core has ordered may not be durable yet, and the others not know of it.
            positions = {s[end] for s in states for end in ("position", "chain_position")}
            return int(positions.pop()) if len(positions) == 1 else 0

        position: int = wait_until(quiet, timeout, "everything is ordered everywhere")
        return position

    def publish(self) -> int:
        """As `settle`, and wait until all nodes have published what they hold."""
        position = self.settle()
        for node in self.masters():
            call(f"{node.url}/v1/published?at_least={position}&timeout=30")
        return position

    def agree(self, position: int, timeout: float = 90) -> str:
        """Wait until all nodes stand at a position with one chain hash; return the hash."""

        def same() -> str:
            states = [node.status() for node in self.masters()]
            assert all(state["halted"] is None for state in states), states
            hashes = {state["chain_hash"] for state in states}
            positions = {state["position"] for state in states}
            assert positions != {position} or len(hashes) == 1, states
            return hashes.pop() if positions == {position} else ""

        found: str = wait_until(same, timeout, f"all stand at {position}")
        return found

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self.nodes.values():
            if node.process is not None:
                node.stop()


AnyCluster = TypeVar("AnyCluster", bound=Cluster)


@contextmanager
def running(cluster: AnyCluster) -> Iterator[AnyCluster]:
    """Start a cluster that has the table `t` everywhere; stop all that it started in the end."""
    try:
        cluster.start()
        cluster.masters()[0].commit(TABLE)
        cluster.settle()
        yield cluster
    finally:
        cluster.stop()


def restart_unheard(cluster: Cluster, node: NodeProcess) -> None:
    """Restart a node with another secret: it accepts, for ever, and no peer links to it."""
    node.stop()
    node.write_config(cluster.ports[node.name], node.peers, secret="another secret of 16+")
    node.start("suspect-timeout=0")
    node.wait_ready()
