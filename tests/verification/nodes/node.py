"""A simulated node: a real one, its disk, its clocks, and how it starts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp
from tests.verification.nodes.disk import die_inside, tear
from tests.verification.nodes.virtual import Life

from sparktxlog.config import load_config
from sparktxlog.errors import StorageError, TxLogError
from sparktxlog.runtime.membership.join_orders import StartAgainError
from sparktxlog.runtime.node import Node, build_node
from sparktxlog.service import application
from sparktxlog.storage.interfaces import AppendQueue, Write
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.transport.kept_connections import KeptConnections

if TYPE_CHECKING:
    from tests.verification.nodes.world import World

#: A write is in the middle of its transaction so often when it is caught by a kill.
_INSIDE = 0.5
#: A power loss finds its commit on the way to the disk so often.
_TORN = 0.7
#: A node that was stopped is back after so long at the latest, seconds.
_BACK_S = 6.0


class SimulatedNode:
    """One node of a simulated cluster.

    Args:
        world: Where it lives.
        name: Its id and host.
        settings: Of its configuration, beside its directory.
    """

    def __init__(self, world: World, name: str, settings: Mapping[str, Any]) -> None:
        self.world = world
        self.name = name
        self.disk = world.disks.make(name)
        self._settings = settings
        #: False: a copy of another node's data directory, of which nobody promised anything.
        self.original = True
        self.life: Life | None = None
        self.running: Node | None = None
        self.app: ASGIApp | None = None
        #: Called once when a commit has failed.
        self.on_failure: Callable[[SimulatedNode], None] | None = None
        #: True: its machine has no power.
        self.dark = False
        #: Clocks of its next life.
        self.wall_off_ns = 0
        self.drift_ppm = 0
        #: Seconds that a write takes at most.
        self.slow_s = 0.004
        self.witness = name in world.layout.witnesses
        self.follower = name in world.layout.followers
        self._stop: asyncio.Event | None = None

    @property
    def takes(self) -> bool:
        """Whether clients find it; they look for no follower."""
        there = self.app is not None and self.life is not None and not self.life.paused
        return there and not self.follower

    @property
    def orders(self) -> bool:
        """Whether a write of its queue is under way."""
        return any(
            owner is self.life and is_write(work) and any(isinstance(w, AppendQueue) for w in of[0])
            for owner, work, of in self.world.loop.waiting_work.values()
        )

    def clone(self, name: str) -> SimulatedNode:
        """Return another node with this one's configuration and a copy of its disk as it is."""
        clone = SimulatedNode(self.world, name, self._settings)
        clone.original, clone.witness, clone.follower = False, self.witness, self.follower
        clone.disk.copy(self.disk)
        self.world.clients.staged.copied(self.disk.path, clone.disk.path)
        clone.wall_off_ns, clone.drift_ppm = self.wall_off_ns, self.drift_ppm
        self.world.network.beside[name] = self.name
        self.world.checks.cloned(self, clone)
        return clone

    # -- start -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, if it does not run."""
        if self.life is not None or self.world.over:
            return
        self.dark = False
        self.world.network.changed()
        self.life = Life(
            self.name, self.world.next_life(), wall_off_ns=self.wall_off_ns,
            drift_ppm=self.drift_ppm,
        )  # fmt: skip
        task = self.world.loop.own_task(self.life, self._serve(self.life), f"serve {self.name}")
        task.add_done_callback(self.world.report, context=self.world.context)

    async def _serve(self, life: Life) -> None:
        """Do what `sparktxlog serve` does."""
        error: TxLogError | None
        try:
            error = await self._serve_once()
            while isinstance(error, StartAgainError):
                if "another process" in error.message:
                    self.world.checks.happened("original started again by itself")
                error = await self._serve_once()
        except StorageError as refused:
            if not (self.disk.failing or self.disk.sync_error):
                raise
            self.world.checks.happened("start on a failing disk")
            self.disk.failed, error = True, refused
        self._ended(life, error)

    async def _serve_once(self) -> TxLogError | None:
        """Run a node until it stops; return the error after which it had to."""
        values = {**self._settings, "data-dir": str(self.disk.path)}
        running = build_node(load_config(None, values, {}), self._connections)
        self.running = running
        journal = running.base.journal
        assert isinstance(journal, Journal)
        self.disk.opened(journal)
        base = running.base.master.base
        self.world.checks.started(self, base.position, base.chain_hash)
        running.base.supervisor.on_unforeseen = self._unforeseen
        app = application.build_app(running)
        stop = self._stop = asyncio.Event()
        running.failed.add_done_callback(lambda _: stop.set())
        await running.start()
        self.app = app
        self.world.network.changed()
        await stop.wait()
        self.app = None
        running.begin_stop()
        await running.stop()
        self.disk.stopped()
        self.running = None
        return running.failed.result() if running.failed.done() else None

    def _unforeseen(self, name: str, error: BaseException) -> None:
        """A task that is begun anew is a mistake all the same."""
        told = {"message": f"{name} of {self.name} failed", "exception": error}
        self.world.loop.call_exception_handler(told)

    def _connections(self) -> KeptConnections:
        """Return what its links send with."""
        return self.world.network.connections()

    def _ended(self, life: Life, error: TxLogError | None) -> None:
        world = self.world
        world.checks.note("stopped", self.name, error)
        self.life = None
        world.network.ended(life, silent=False)
        world.clients.lost(life)
        life.kill()
        self.disk.unlock()
        if error is None:  # a start that was asked for while it still stopped was lost
            world.after(_BACK_S, self.start)
            return
        if not (self.disk.failed and isinstance(error, StorageError)):
            world.checks.fail(f"{self.name} stopped by itself: {error}")
        world.checks.happened("stopped by a failed write")
        world.after(world.random.uniform(0.5, 4), self.start)

    def commit_failed(self, writes: Sequence[Write]) -> None:
        """See a commit fail: nobody knows whether it was kept."""
        self.world.checks.happened("commit failed")
        self.disk.doubtful = writes
        then, self.on_failure = self.on_failure, None
        if then is not None:
            self.world.after(0, then, self)

    # -- ends --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        if self.life is not None and self._stop is not None and self.app is not None:
            self.world.checks.happened("clean stop")
            # The server waits for open requests; who waits for a level is told at once.
            assert self.running is not None
            self.life.context().run(self.running.begin_stop)
            self._stop.set()

    def kill(self, *, power: bool = False, disk: bool = False) -> None:
        """End it at once.

        Args:
            power: Its machine loses power: what was not fsynced may go.
            disk: Its disk is lost.
        """
        life, world = self.life, self.world
        if life is None:
            return
        world.checks.note("kill", self.name, power, disk)
        self._mark_kill(life, power=power)
        if disk:
            self.disk.lose()
            world.checks.disk_lost(self)
        else:
            self.disk.crash(power=power)
            if power:
                world.tables.power_lost(self)
        life.remains += [self.running, self.app, self._stop]
        self.life = self.running = self.app = self._stop = None
        self.dark = power
        life.kill()
        world.network.ended(life, silent=power)
        world.clients.lost(life)

    def _mark_kill(self, life: Life, *, power: bool) -> None:
        """See where a kill caught the writer, sometimes inside of its transaction."""
        marks, loop = self.world.checks, self.world.loop
        for owner, work, arguments in loop.waiting_work.values():
            if owner is life and is_write(work):
                journal = work.__self__  # type: ignore[attr-defined]
                if power and self.world.random.random() < _TORN:
                    marks.happened("power loss while a commit was written")
                    tear(journal, *arguments)
                    self.disk.doubtful = arguments[0]
                elif self.world.random.random() < _INSIDE:
                    marks.happened("kill inside a transaction")
                    die_inside(journal, *arguments, unsynced=self.world.random.random() < _INSIDE)
                else:
                    marks.happened("kill before a write")
                return
        executor = None if self.running is None else self.running.core.executor
        if executor is not None and executor.writing:
            marks.happened("kill between write and completion")


def is_write(work: Any) -> bool:
    """Return whether work of a thread is a write of a journal."""
    return getattr(work, "__func__", None) is Journal.write
