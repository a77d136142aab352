"""The simulated world: one loop, the nodes on it, their disks and wires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

from tests.verification.nodes import staging
from tests.verification.nodes.checks import CONDITION_WINDOW, Checks, violated
from tests.verification.nodes.clients import Clients
from tests.verification.nodes.disk import Disks
from tests.verification.nodes.lockstep import Lockstep
from tests.verification.nodes.network import Network
from tests.verification.nodes.node import SimulatedNode, is_write
from tests.verification.nodes.placed_tables import PlacedTables
from tests.verification.nodes.table_writers import TableWriters
from tests.verification.nodes.virtual import CLOCKS, LIFE, Life, VirtualLoop, in_life

from sparktxlog.runtime.loop_threads import LoopThreads
from sparktxlog.storage import payload_log
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.payload_log import PAYLOAD_LOG

_SECRET = "a secret of the simulated cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A cluster to simulate."""

    name: str
    masters: tuple[str, ...]
    witnesses: tuple[str, ...] = ()
    #: Nodes that only follow (P38): the first one the members, each other one that before it.
    followers: tuple[str, ...] = ()
    #: True: copies of its data directories run as well.
    cloned: bool = False


class World:
    """Nodes, network and time of one seed; one a process.

    Args:
        seed: Source of everything by chance.
        layout: The cluster.
        root: An empty directory for the disks.
        load_until_s: Clients begin nothing after this time.
        log: Takes each line of the trace; None = nobody reads it.
        log_kept_h: `tx-log-max-depth`; None = drawn.
    """

    def __init__(
        self, seed: int, layout: Layout, root: Path, *, load_until_s: float,
        log: Callable[[str], None] | None = None, log_kept_h: float | None = None,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.layout = layout
        self.log = log
        self.random = Random(f"{layout.name}:{seed}")
        self.loop = VirtualLoop(self._lag)
        self.loop.set_exception_handler(self._unhandled)
        self.loop.on_work = self._worked
        CLOCKS.enter(self.loop, seed)
        Lockstep(self.loop).install()
        threads: Any = LoopThreads
        threads.run = lambda own, work, *args: self.loop.run_in_executor(own, work, *args)
        #: True: the history ends now.
        self.over = False
        self._lives = 0
        self._end: asyncio.Future[None] = self.loop.create_future()
        self.checks = Checks(self)
        self.tables = PlacedTables(self)
        self.disks = Disks(root, self.random)
        self.disks.install()
        self._log_containers()
        self.network = Network(self.loop, self.random, self.checks)
        staging.install(self.network)
        self.nodes = self._make_nodes(log_kept_h)
        #: Copies of nodes that run beside them, by their names.
        self.clones: dict[str, SimulatedNode] = {}
        self.clients = Clients(self, load_until_s, pause_s=1.5)
        self.writers = TableWriters(self, load_until_s)

    def _log_containers(self) -> None:
        """Have containers in files, which are soon full."""
        random = Random(f"payload log:{self.layout.name}:{self.seed}")
        journal, log = cast(Any, journal_module), cast(Any, payload_log)
        journal.LEAST_BYTES = random.choice((0, 500))
        log.FILE_BYTES = random.choice((4_000, 40_000))

    def _make_nodes(self, log_kept_h: float | None) -> dict[str, SimulatedNode]:
        names = (*self.layout.masters, *self.layout.witnesses, *self.layout.followers)
        nodes = {}
        drawn: dict[str, Any] = {
            "id-window": self.random.choice((1_000, 1_000_000)),
            # Hours: the log is expired after 36 s in half of the seeds.
            "tx-log-max-depth": self.random.choice((0.01, 168)),
            "rejoin-keep-bytes": self.random.choice((0, 20_000, 1 << 30)),
        }
        if log_kept_h is not None:
            drawn["tx-log-max-depth"] = log_kept_h
        for name in names:
            settings: dict[str, Any] = {
                "node-id": name,
                "master-url": f"http://{name}:7070",
                "cluster-secret": _SECRET,
                "client-token": "a token of the simulated clients",
                "suspect-timeout": 3,
                "start-timeout": 6,
                "idle-round-max": 4,
                "publish-interval": 2,
                "stage-timeout": 5,
                "inline-limit": staging.INLINE_LIMIT,
                "signature-interval": 100,
                "condition-window": CONDITION_WINDOW,
                "check-addresses": "none",
                **drawn,
            }
            if name in self.layout.witnesses:
                settings["roles"] = "witness"
            if name in self.layout.followers:
                settings["roles"] = "follower,replica"
                before = self.layout.followers[: self.layout.followers.index(name)]
                settings["follow"] = before[-1] if before else ""
            for number, other in enumerate((n for n in names if n != name), start=1):
                settings[f"peer.{number}.id"] = other
                settings[f"peer.{number}.url"] = f"http://{other}:7070"
                if other in self.layout.witnesses:
                    settings[f"peer.{number}.role"] = "witness"
                if other in self.layout.followers:
                    settings[f"peer.{number}.role"] = "follower"
            node = nodes[name] = SimulatedNode(self, name, settings)
            self.network.servers[name] = node
        return nodes

    def find(self, name: str) -> SimulatedNode:
        """Return a node, or a copy of one."""
        return self.nodes.get(name) or self.clones[name]

    @property
    def context(self) -> Context:
        """A context of no node's life."""
        return in_life(None)

    # -- time --------------------------------------------------------------------------------------

    def next_life(self) -> int:
        """Return the number of a new life."""
        self._lives += 1
        return self._lives

    def after(self, delay: float, work: Callable[..., object], *arguments: Any) -> None:
        """Do something after a delay, seconds."""
        self.loop.call_later(delay, work, *arguments, context=self.context)

    def run_until(self, end: float, until: Callable[[], bool] | None = None) -> None:
        """Let time pass; `until` ends it earlier, looked at each half second."""

        async def wait() -> None:
            while self.loop.time() < end and not self.over and not (until and until()):
                await asyncio.wait([self._end], timeout=min(0.5, end - self.loop.time()))

        self.loop.run_until_complete(wait())

    def rest(self) -> None:
        """Let clients and writers begin nothing more."""
        self.clients.until_s = self.writers.until_s = self.loop.time()

    def end(self) -> None:
        """End the history: an invariant is violated."""
        self.over = True
        if not self._end.done():
            self._end.set_result(None)

    def _lag(self, executor: object) -> tuple[float, float]:
        """Return how long work of a pool takes, and how long its end needs to be told."""
        life, random = LIFE.get(), self.random
        node = None if life is None else self.find(life.name)
        slow = 0.002
        if node is not None and getattr(executor, "name", "") == "journal-writer":
            slow = node.slow_s
        return 0.0001 + random.random() * slow, 0.00005 + random.random() * slow / 4

    # -- seen --------------------------------------------------------------------------------------

    def _worked(
        self, life: Life | None, work: Callable[..., Any], arguments: tuple[Any, ...],
        error: BaseException | None,
    ) -> None:  # fmt: skip
        if life is None or not is_write(work):
            return
        node = self.find(life.name)
        if error is None:
            if any((node.disk.path / PAYLOAD_LOG).glob("*")):
                self.checks.happened("container in a file")
            node.disk.committed()
            self.checks.wrote(node, *arguments)
        elif node.disk.failed:
            node.commit_failed(*arguments)
        elif node.disk.full:
            self.checks.happened("disk full while a batch waits")

    def _unhandled(self, loop: object, told: dict[str, Any]) -> None:
        error = told.get("exception")
        story = told.get("message", "") if error is None else violated(error)
        self.checks.fail(f"nobody handles: {told.get('message')}: {story}")

    def report(self, task: asyncio.Task[Any]) -> None:
        """See a task of the world end: it must not fail."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.checks.fail(f"{task.get_name()} failed: {violated(error)}")
