"""How a node without a log gets into a cluster that has one (protocol P21).

A fresh node, new or with a lost disk, is told by the first peer that it greets which lineage it has
to join, and under which incarnation.  It keeps that and starts anew, as a node that is no member
of anything; then it takes over a snapshot of a peer's queue, starts anew on top of it, and asks to
be admitted.  Each of the steps is durable, so a crash between them costs nothing.  Until a peer has
given its snapshot the core stands still: what it kept meanwhile would not fit under it.

A node that was away so long that the data of the runs it misses is kept nowhere any more takes the
same way from the second step on; its own runs that are not in the queue stay.  It has a queue, and
a snapshot replaces it only if it is the beginning of the peer's (`ancestry`): a node of another
history halts, like all that find a fork, and `peer quarantine` keeps what only it has (P28).  Where
no node can tell any more, it keeps what the snapshot would drop, and says so
(`unverified_history`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from typing import Any

import structlog

from sparktxlog.codec.wire import Hello
from sparktxlog.errors import (
    QUARANTINE_HINT,
    ExpiredError,
    RemoteProtocolError,
    StorageError,
    TransportError,
    TxLogError,
)
from sparktxlog.protocol.words.actions import Alarm
from sparktxlog.protocol.words.view import View
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.giving_way.unverified_history import (
    keep_dropped_runs,
    keep_uncompared,
    uncompared,
)
from sparktxlog.runtime.membership.ancestry import compare_queues
from sparktxlog.runtime.membership.join_orders import JoinOrder, StartAgainError, keep_order
from sparktxlog.runtime.membership.queue_snapshots import SnapshotTaker
from sparktxlog.runtime.membership.standings import become_another
from sparktxlog.storage.interfaces import PutValue, QueueSnapshot, ResetJournal, Write
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.joining")

#: So often in a row no member held a run of the queue, until its data counts as gone: containers
#: are forgotten only once all members have the run, and who forgot one never gets it back.
_RUN_MISSES = 2
#: So often in a row a member, one at a time, kept a part of the queue no more; another one may.
_QUEUE_MISSES = 5
#: Pause before another attempt when the own disk failed, seconds.
_RETRY_S = 5.0

#: A node that follows the queue waits for a moment of rest so long, seconds.
_WAITS_S = 1.5


class Joining:
    """Carries out the two steps before a fresh node can ask to be admitted."""

    def __init__(self, base: Foundation, core: CoreLoop) -> None:
        self._base = base
        self._cycle = core.cycle
        self._executor = core.executor
        #: What is known of the last snapshot that nobody could compare the history here with.
        self.uncompared = uncompared(base.state.values)
        self.taker = SnapshotTaker(base.config.data_dir / "snapshots")
        self._own = base.core.incarnation
        self._node_id = base.config.node_id
        #: What it was told at an earlier start.
        self._order = base.order
        self._task: asyncio.Task[None] | None = None
        self._position = base.state.core.base.position
        #: Digest of a run → how often in a row no member held it.  What came of other runs says
        #: nothing of it: while clients commit there is always one that comes.
        self._missed_runs: dict[bytes, int] = {}
        self._misses = 0
        #: Position after which the queue was asked for last, and the look whether it is there.
        self._asked = -1
        self._look: asyncio.Task[None] | None = None
        #: Peers that took this node as it is, since the start.
        self._taken = set[str]()
        #: Set when the core may go to work; a witness has no queue to take over.
        self.settled = asyncio.Event()
        order = self._order
        goes_on = self._position and order is not None and not order.behind
        if base.remains is None and (order is None or base.config.is_witness or goes_on):
            self.settled.set()

    @property
    def only_joins(self) -> bool:
        """Whether this node may not begin a log, and has not been told of one yet."""
        return self._base.remains is not None

    @property
    def proven(self) -> bool:
        """Whether this node is what it seems: it keeps something, or all peers took it as it is.

        One that keeps nothing may have lost its disk, and so may the peer that takes it: the one
        that was never heard may have the log (P29).  What it took before it learned that would
        keep it out: no peer lets a node with data under another instance in.
        """
        known = not self._base.is_fresh() or bool(self._taken and not self.awaited())
        return self._base.remains is None and known

    def shown(self) -> dict[str, Any]:
        """Return what is on its way, and what could not be compared, for status."""
        progress, uncompared = self.taker.progress, self.uncompared
        return {
            "taking_snapshot": None
            if progress is None
            else dict(zip(("peer", "bytes", "of_bytes"), progress, strict=True)),
            "uncompared": None if uncompared is None else asdict(uncompared),
        }

    def awaited(self) -> list[str]:
        """Return the places of the first epoch that neither took this node nor were ever heard."""
        base = self._base
        if base.master.view.epoch != base.core.epoch:
            return []
        unheard = {node_id for node_id in base.links if not base.master.heard(node_id)}
        return sorted(unheard - self._taken)

    def accept_order(self, hello: Hello) -> None:
        """Take an order to join, once, and start anew with it.

        A node that keeps something is told so if it showed less than before: its disk is an older
        image, of which nothing is to be said any more under the present incarnation (P30).
        """
        log = hello.ancestors[0] if hello.ancestors else ""
        order = JoinOrder(lineage=hello.lineage, incarnation=hello.join_as, log=log)
        fresh = self._base.is_fresh()
        if self._task is None and order != self._order and (fresh or hello.join_as > self._own):
            _log.warning(
                "this node joins" if fresh else "this node's disk is an older one: it joins again",
                lineage=order.lineage,
                incarnation=order.incarnation,
                told_by=hello.node_id,
            )
            others = () if fresh else (become_another(),)
            self._join(order, *others)

    def _start(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        return asyncio.create_task(self._base.supervisor.keep(name, work), name=name)

    def outdated(self, view: View) -> None:
        """Join anew: the others hold what this node said and does not know of (P30)."""
        seat = view.seat(self._node_id)
        incarnation = max(self._own, 0 if seat is None else seat.incarnation) + 1
        log = view.ancestors[0][0] if view.ancestors else ""
        order = JoinOrder(lineage=view.lineage, incarnation=incarnation, log=log)
        if self._task is None:
            _log.error("this node's disk is an older one: it joins again", incarnation=incarnation)
            self._join(order, become_another())

    def _join(self, order: JoinOrder, *others: Write) -> None:
        """Keep an order durably, with other writes, and start anew with it."""

        async def keep() -> None:
            await self._executor.write([keep_order(order), *others])
            text = f"joins {order.lineage} as {order.incarnation}"
            self._base.fail(StartAgainError(text))

        self._task = self._start("joining", keep)

    def note_missed(self, lineage: str, incarnation: int, run: bytes = b"") -> None:
        """Note that nobody had what a joiner lacks; start anew on a snapshot if it goes on.

        Args:
            run: Digest of the run that no member holds; empty: a member keeps the part of the
                queue that was asked for no more.
        """
        if run:
            misses = self._missed_runs[run] = self._missed_runs.get(run, 0) + 1
            gone = misses >= _RUN_MISSES
        else:
            self._misses += 1
            gone = self._misses >= _QUEUE_MISSES
        if gone and self._task is None:
            _log.warning("lags too far", position=self._position)
            order = JoinOrder(lineage=lineage, incarnation=incarnation, behind=True)
            self._join(order)

    def note_request(self, link: PeerLink, position: int, missed: Callable[[], None]) -> None:
        """Look, where the same part of the queue is asked for again, whether the peer keeps it.

        A peer that pruned even the rows has nothing to answer with.

        Args:
            missed: Called if it keeps that part no more.
        """
        if position != self._asked:
            self._asked, self._misses = position, 0
        elif self._task is None and (self._look is None or self._look.done()):
            self._look = asyncio.create_task(self._look_behind(link, position, missed))

    async def _look_behind(self, link: PeerLink, position: int, missed: Callable[[], None]) -> None:
        try:
            await link.get_run_behind(position)
        except TxLogError as error:
            # Any other failure says nothing of its queue: the next request looks again.
            if error.fields.get("status") == ExpiredError.http_status:
                missed()

    def note_arrived(self, run: bytes) -> None:
        """Note that the data of a run came, by its digest."""
        self._missed_runs.pop(run, None)
        self._misses = 0

    def note_link(self, link: PeerLink) -> None:
        """Take over a peer's queue once the first one is reached as a joiner."""
        if self._base.remains is not None:
            # That peer has no log to join: together they would found another one.
            self._base.fail(self._base.remains)
            return
        self._taken.add(link.node_id)
        if self._order is not None and not self.settled.is_set() and self._task is None:
            order = self._order
            self._task = self._start(
                "taking over a snapshot", lambda: self._take_snapshot(link, order)
            )

    async def _take_snapshot(self, link: PeerLink, order: JoinOrder) -> None:
        writes: list[Write] = []
        try:
            snapshot = await self.taker.take(link)
            if snapshot.position > self._position:
                compared = await compare_queues(
                    self._base.journal, self._base.state.core, link, snapshot
                )
                if compared.differs:
                    self._halt(link, compared.differs)
                    return
                if not compared.certain:
                    writes.append(await self._keep_uncompared(link, snapshot, order))
        except (TransportError, RemoteProtocolError, StorageError) as error:
            _log.warning("no snapshot", peer=link.node_id, reason=str(error))
            if isinstance(error, StorageError):  # the own disk's: a greeting is no news for it
                await asyncio.sleep(_RETRY_S)
            self._task = None
            link.greet_again()
            return
        if snapshot.position <= self._position:
            self.taker.drop()
            _log.info("nothing to take over", peer=link.node_id, position=snapshot.position)
            self._task = None
            self.settled.set()
            return
        await self._executor.write(
            [
                ResetJournal(
                    snapshot=snapshot, node_id=self._node_id, incarnation=order.incarnation
                ),
                keep_order(replace(order, behind=False)),
                *writes,
            ]
        )
        self.taker.drop()
        _log.warning("snapshot taken over", peer=link.node_id, position=snapshot.position)
        self._base.fail(StartAgainError(f"begins at position {snapshot.position}"))

    def _halt(self, link: PeerLink, differs: str) -> None:
        """Stop before anything is replaced; the same is found at the next start."""
        text = (
            f"{link.node_id} has another queue up to position {self._position}: {differs} "
            f"(P9, P28).  {QUARANTINE_HINT}"
        )
        self._cycle.raise_alarm(Alarm(code="diverged", text=text, fatal=True))

    async def _keep_uncompared(
        self, link: PeerLink, snapshot: QueueSnapshot, order: JoinOrder
    ) -> PutValue:
        found = await asyncio.to_thread(
            keep_dropped_runs, self._base, snapshot, order.incarnation, link.node_id, wall_us()
        )
        _log.error(
            "the history here could not be compared with that of the snapshot",
            peer=link.node_id,
            position=found.position,
            snapshot=found.snapshot_position,
            kept=found.kept,
            quarantine=found.quarantine_id,
        )
        return keep_uncompared(found)

    async def close(self) -> None:
        """Stop what is under way."""
        for task in (self._task, self._look):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class QuietMoment:
    """When a node asks to be admitted: at a moment of rest (protocol P21).

    All members stand still for an admission until the node has answered twice.  While its
    publisher works through what was missed it answers late, so it does not ask then; not for
    ever, since on a busy log the publisher may never rest.

    Args:
        is_busy: Returns whether this node would answer late.
        now: Seconds of any steady clock.
    """

    def __init__(self, is_busy: Callable[[], bool], now: Callable[[], float]) -> None:
        self._is_busy = is_busy
        self._now = now
        #: Until when it waits for a moment of rest; None = it has not begun to ask.
        self._until: float | None = None

    def begin(self) -> None:
        """Note that this node is no member any more."""
        self._until = None

    def may_ask(self) -> bool:
        """Return whether a request that is due may leave; another one follows soon."""
        if self._until is None:
            self._until = self._now() + _WAITS_S
        return not self._is_busy() or self._now() >= self._until
