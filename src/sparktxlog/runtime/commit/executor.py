"""The executor: carries out the core's actions in order, and groups writes.

`protocol/messages/action_order.py` defines the order: persist before you send.  The writes of a
batch become durable together, with one fsync in the single writer thread; meanwhile the next batch
gathers (group commit, protocol P1b).

If the disk is full, the batch is retried until it fits, and nothing is lost.  After any other
failure the state of the storage is unknown, so the node must stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import structlog

from sparktxlog.codec.containers.payload import void_payload
from sparktxlog.errors import DiskFullError, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.protocol.messages.action_order import MAX_BATCH, ActionStream
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistAnnouncement,
    PersistBallot,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    PersistRestamp,
    PersistStanding,
    PersistView,
    PersistVoid,
    PersistWithdrawal,
)
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.holdings import Holdings
from sparktxlog.runtime.loop_threads import LoopThreads
from sparktxlog.runtime.membership.standings import keep_standing
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropAnnouncement,
    PutAnnouncement,
    PutBallot,
    PutReservation,
    PutRestamp,
    PutRun,
    PutView,
    Write,
)
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.journal.write_pace import WritePace
from sparktxlog.supervision import foreseen

_log = structlog.get_logger("sparktxlog.executor")

_RETRY_S = 1.0


@dataclass(slots=True, kw_only=True)
class AsideWrite:
    """Writes of the node, in addition to those of the core, at their place in the stream."""

    writes: Sequence[Write]
    #: Set when durable; None = nobody waits.
    done: asyncio.Future[None] | None = None


class TakesActions(Protocol):
    """Carries out the actions that are no writes; never blocks."""

    def deliver(self, action: Action, at: int) -> None:
        """Carry out one action; `at` is the wall clock of its batch, microseconds."""

    def wrote(self, seconds: float) -> None:
        """Note that a batch is durable, and how long that took."""

    def rested(self) -> None:
        """Note that no action waits."""


class Executor:
    """Carries actions out in order; only its thread writes to the journal.

    Args:
        node_id: This node; its own runs survive the end of an epoch.
    """

    def __init__(
        self, journal: Journal, holdings: Holdings, *, node_id: NodeId, max_batch: int = MAX_BATCH
    ) -> None:
        self._journal = journal
        self._holdings = holdings
        self._node_id = node_id
        self._stream: ActionStream[Action | AsideWrite] = ActionStream(
            durable=(AsideWrite,), max_batch=max_batch
        )
        self._ready = asyncio.Event()
        self._thread = LoopThreads(1, "journal-writer")
        #: The present batch.
        self._batch: list[Action | AsideWrite] = []
        #: The error that ended `run`; no more writes are possible.
        self._failed: TxLogError | None = None
        #: How long writes take.
        self.pace = WritePace()
        #: True: a batch is on its way to the disk.
        self.writing = False
        #: True: the disk was full at the last attempt; submits are refused meanwhile.
        self.disk_full = False
        #: Called when the disk is full; returns whether there is some space now.
        self.make_room: Callable[[], bool] = lambda: False
        #: Called with the commit tables that ordered runs changed, once that is durable.
        self.on_commits: Callable[[Sequence[CommitTable]], None] = lambda tables: None
        #: Called with the header of a peer's run, once that is durable.
        self.on_held: Callable[[RunHeader], None] = lambda header: None
        #: Returns writes that become durable together with an action.
        self.writes_with: Callable[[Action], Sequence[Write]] = lambda action: ()

    def put(self, items: Iterable[Action | AsideWrite]) -> None:
        """Queue actions after all earlier ones."""
        self._stream.put(items)
        self._ready.set()

    def write(self, writes: Sequence[Write]) -> asyncio.Future[None]:
        """Make writes of the node durable; the future is set when they are."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failed is not None:
            done.set_exception(self._failed)
        else:
            self.put([AsideWrite(writes=writes, done=done)])
        return done

    def write_then(self, writes: Sequence[Write], then: Callable[[], None]) -> None:
        """Make writes of the node durable, then call `then`, unless they fail."""
        self.write(writes).add_done_callback(
            lambda done: None if done.cancelled() or done.exception() else then()
        )

    @property
    def depth(self) -> int:
        """Number of items that wait."""
        return len(self._stream)

    async def run(self, delivery: TakesActions) -> None:
        """Work until cancelled.

        Raises:
            StorageError: The state of the journal is unknown; the node must stop (not definite).
            InvariantViolation: The core asked for what is not there; the node must stop.
            InternalError: An unforeseen error; what was carried out is not known (not definite).
        """
        try:
            while True:
                await self._ready.wait()
                self._ready.clear()
                while self._stream:
                    self._carry_out_leading(delivery)
                    await self._work_batch(delivery)
                delivery.rested()
        except Exception as error:
            known = foreseen(error)
            self._fail(known)
            raise known from error

    def _fail(self, error: TxLogError) -> None:
        """Fail all waiting writes."""
        self._failed = error
        for item in (*self._batch, *self._stream):
            if isinstance(item, AsideWrite) and item.done is not None and not item.done.done():
                item.done.set_exception(error)
        self._stream.clear()

    def close(self) -> None:
        """Wait for the write in flight and stop the thread."""
        self._thread.close()

    def _carry_out_leading(self, delivery: TakesActions) -> None:
        at = wall_us()
        for item in self._stream.leading():
            assert not isinstance(item, AsideWrite), "those must be durable"
            delivery.deliver(item, at)

    async def _work_batch(self, delivery: TakesActions) -> None:
        batch = self._batch = self._stream.take()
        if not batch:
            return
        at = wall_us()
        writes: list[Write] = []
        for item in batch:
            if isinstance(item, AsideWrite):
                writes.extend(item.writes)
            elif self._stream.must_be_durable(item):
                writes.extend(self._to_writes(item, at))
                writes.extend(self.writes_with(item))
        self.writing = True
        started = perf_counter()
        try:
            await self._write(writes)
        finally:
            self.writing = False
        for item in batch:
            self._finish(item, at, delivery)
        delivery.wrote(perf_counter() - started)

    async def _write(self, writes: Sequence[Write]) -> None:
        while True:
            try:
                with self.pace.timing():
                    await self._thread.run(self._journal.write, writes)
            except DiskFullError as error:
                if not self.disk_full:
                    _log.error("disk full, waiting for space", error=str(error))
                self.disk_full = True
                if not self.make_room():
                    await asyncio.sleep(_RETRY_S)
            else:
                if self.disk_full:
                    _log.info("the disk has space again")
                self.disk_full = False
                return

    def _finish(self, item: Action | AsideWrite, at: int, delivery: TakesActions) -> None:
        match item:
            case AsideWrite():
                if item.done is not None and not item.done.done():
                    item.done.set_result(None)
            case PersistOwnRun():
                self._holdings.own_persisted(item.ticket)
            case PersistForeignRun():
                self._holdings.foreign_persisted(item.header)
                self.on_held(item.header)
            case PersistAnnouncement():
                self._holdings.announced(item.ticket)
            case PersistQueue():
                if item.commit_tables:
                    self.on_commits(item.commit_tables)
            case _ if not self._stream.must_be_durable(item):
                delivery.deliver(item, at)

    def _to_writes(self, action: Action, at: int) -> Sequence[Write]:
        if isinstance(action, PersistWithdrawal):
            return [
                DropAnnouncement(digest=run.digest, code=run.code, text=run.text, at=at)
                for run in action.runs
            ]
        return [self._to_write(action, at)]

    def _to_write(self, action: Action, at: int) -> Write:
        match action:
            case PersistOwnRun():
                run = self._holdings.own(action.ticket)
                payload = run.payload or self._holdings.find(run.digest)
                if payload is None:
                    payload = self._journal.read_announced(run.digest)
                assert payload is not None, "an announced run is in the journal"
                return PutRun(header=action.header, payload=payload, ends_announcement=True)
            case PersistForeignRun():
                payload = self._holdings.foreign(action.header)
                return PutRun(header=action.header, payload=payload)
            case PersistReservation():
                return PutReservation(counter=action.counter)
            case PersistAnnouncement():
                run = self._holdings.own(action.ticket)
                assert run.payload is not None, "a run is announced once"
                return PutAnnouncement(
                    ticket=action.ticket,
                    digest=action.digest,
                    payload=run.payload,
                    session=run.session,
                )
            case PersistQueue():
                return AppendQueue(
                    entries=action.entries,
                    ordered_at=at,
                    tables=action.tables,
                    writes=action.writes,
                    undecided=action.undecided,
                    commit_tables=action.commit_tables,
                )
            case PersistBallot():
                return PutBallot(state=action.state)
            case PersistView():
                return PutView(
                    view=action.view, node_id=self._node_id, incarnation=action.incarnation
                )
            case PersistVoid():
                payload = void_payload(action.voided)
                return PutRun(header=action.voided.header, payload=payload)
            case PersistRestamp():
                return PutRestamp(header=action.header)
            case PersistStanding():
                return keep_standing(action.node, action.standing)
        raise AssertionError(f"{type(action).__name__} is nothing to persist")
