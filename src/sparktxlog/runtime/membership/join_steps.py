"""How a node without a log joins a cluster that has one (protocol P21).

The first peer that a fresh node greets (a new node, or one that lost its disk) gives it an order:
which log id to join, under which incarnation.  The node

1. keeps the order and starts again, as a member of nothing;
2. takes over a summary of a peer's queue, with the files of what is prepared and undecided there
   (P35), and starts again from it;
3. asks to be admitted.

Each step is durable, so a crash between them costs nothing.  Until the summary is here the core
does nothing: its state would not fit to the summary.

A node that was away so long that nobody has the data of the runs it lacks begins with step 2; its
own runs that are not in the queue stay.  A summary replaces its queue only if that is the
beginning of the peer's (`ancestry`).  If it is not, the node halts, as at any fork, and `peer
quarantine` keeps what only it has (P28).  If no node can decide that any more, the node keeps what
the summary drops, and its status says so (`unverified_history`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from typing import Any

import structlog

from sparktxlog.codec.wire import Hello
from sparktxlog.errors import (
    QUARANTINE_HINT,
    ExpiredError,
    NotMemberError,
    RemoteProtocolError,
    StorageError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.protocol.messages.actions import Alarm
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.leaving_fork.unverified_history import (
    keep_dropped_runs,
    keep_uncompared,
    uncompared,
)
from sparktxlog.runtime.membership.ancestry import compare_queues
from sparktxlog.runtime.membership.join_orders import JoinOrder, StartAgainError, keep_order
from sparktxlog.runtime.membership.queue_summaries import SummaryTaker
from sparktxlog.runtime.membership.standings import renew_instance
from sparktxlog.storage.interfaces import PutValue, QueueSummary, ResetJournal, Write
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.joining")

#: The data of a run is gone when no member had it so often in a row: members forget containers only
#: after all members have the run, and never get them back.
_RUN_MISSES = 2
#: A part of the queue is gone when so many questions in a row, each to one member, did not find it.
_QUEUE_MISSES = 5
#: Pause before another attempt after the disk failed, seconds.
_RETRY_S = 5.0

#: A node that follows the queue waits so long for a quiet moment, seconds.
_WAITS_S = 1.5


class Joining:
    """Carries out the steps before a fresh node can ask to be admitted."""

    #: Fetches the staged files that payload containers name, as far as peers have them.
    fetch_files: Callable[[Sequence[bytes]], Awaitable[None]]

    def __init__(self, base: Foundation, core: CoreLoop) -> None:
        self._base = base
        self._cycle = core.cycle
        self._executor = core.executor
        #: The last summary whose history could not be compared with this node's, None = none.
        self.uncompared = uncompared(base.state.values)
        self.taker = SummaryTaker(base)
        self._own = base.core.incarnation
        self._node_id = base.config.node_id
        #: The order of an earlier start.
        self._order = base.order
        self._task: asyncio.Task[None] | None = None
        self._position = base.state.core.base.position
        #: Digest of a run → how often in a row no member had it.  Other runs that arrive do not
        #: reset it: while clients commit there is always one.
        self._missed_runs: dict[bytes, int] = {}
        self._misses = 0
        #: Position after which the queue was requested last, and the check that a peer has it.
        self._asked = -1
        self._look: asyncio.Task[None] | None = None
        #: Peers that accepted this node as it is, since the start.
        self._taken = set[str]()
        #: True once this start knew the log.
        self._knows_log = False
        #: Set when the core may work; a witness has no queue to take over.
        self.settled = asyncio.Event()
        order = self._order
        goes_on = self._position and order is not None and not order.behind
        if base.remains is None and (order is None or base.config.is_witness or goes_on):
            self.settled.set()

    @property
    def only_joins(self) -> bool:
        """Whether this node must not found a log, and has no order to join one yet."""
        return self._base.remains is not None

    @property
    def proven(self) -> bool:
        """Whether this node certainly lost no data: it has some, or all peers accepted it as it is.

        A node without data may have lost its disk, and so may a peer that accepts it; a peer that
        was never heard may have the log (P29).  Until that is certain it takes no transaction: no
        peer admits a node that has data under another instance.
        """
        known = not self._base.is_fresh() or bool(self._taken and not self.awaited())
        return self._base.remains is None and known

    def ignorance(self) -> str:
        """Return why this node does not know the log yet, as a clause; empty = it knows it.

        Until then nothing is known here of tables and transactions, and nothing is taken.
        """
        if self._knows_log:
            return ""
        if self._base.remains is not None:
            return "its journal is new, and it waits for a peer whose log it can join"
        if not self.settled.is_set():
            return "it joins the log, and has not taken over a peer's queue yet"
        if self._base.links and not self.proven:
            awaited = self.awaited() or ["a peer"]
            have = "have" if awaited[1:] else "has"
            return f"it has no data, and {' and '.join(awaited)} {have} not accepted it yet"
        self._knows_log = True
        return ""

    def check_knows_log(self) -> None:
        """Refuse what only a node that knows the log can answer or take.

        Raises:
            NotMemberError: This one does not know it yet; nothing happened (definite).
        """
        if ignorance := self.ignorance():
            raise NotMemberError(
                f"node {self._node_id!r} does not know the log yet: {ignorance}",
                hint="Ask another node, or this one later.  At the first start of a cluster each "
                "of its nodes must be reachable once.  Remove a node that will not come with "
                "`sparktxlog peer remove`.",
            )

    def shown(self) -> dict[str, Any]:
        """Return the progress of a summary, and the history that was not compared, for status."""
        progress, uncompared = self.taker.progress, self.uncompared
        return {
            "fetching_summary": None
            if progress is None
            else dict(zip(("peer", "bytes", "of_bytes"), progress, strict=True)),
            "uncompared": None if uncompared is None else asdict(uncompared),
        }

    def awaited(self) -> list[str]:
        """Return the nodes of the first epoch that were never heard and did not accept this one."""
        base = self._base
        if base.master.view.epoch != base.core.epoch:
            return []
        view = base.master.view
        unheard = {
            node_id
            for node_id in base.links
            if not (base.master.heard(node_id) or view.follows(node_id))
        }
        return sorted(unheard - self._taken)

    def accept_order(self, hello: Hello) -> None:
        """Take an order to join, once, and start again with it.

        A node that has data gets an order if it showed less than before: its disk is an older one,
        and it must not speak under its present incarnation any more (P30).
        """
        log = hello.ancestors[0] if hello.ancestors else ""
        order = JoinOrder(log_id=hello.log_id, incarnation=hello.join_as, log=log)
        fresh = self._base.is_fresh()
        if self._task is None and order != self._order and (fresh or hello.join_as > self._own):
            _log.warning(
                "this node joins" if fresh else "this node's disk is an older one: it joins again",
                log_id=order.log_id,
                incarnation=order.incarnation,
                told_by=hello.node_id,
            )
            others = () if fresh else (renew_instance(),)
            self._join(order, *others)

    def _start(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        return asyncio.create_task(self._base.supervisor.keep(name, work), name=name)

    def outdated(self, view: View) -> None:
        """Join again: the others have words of this node that it does not know of (P30)."""
        seat = view.seat(self._node_id)
        incarnation = max(self._own, 0 if seat is None else seat.incarnation) + 1
        log = view.ancestors[0][0] if view.ancestors else ""
        order = JoinOrder(log_id=view.log_id, incarnation=incarnation, log=log)
        if self._task is None:
            _log.error("this node's disk is an older one: it joins again", incarnation=incarnation)
            self._join(order, renew_instance())

    def _join(self, order: JoinOrder, *others: Write) -> None:
        """Keep an order durably, with other writes, and start again with it."""

        async def keep() -> None:
            await self._executor.write([keep_order(order), *others])
            text = f"joins {order.log_id} as {order.incarnation}"
            self._base.fail(StartAgainError(text))

        self._task = self._start("joining", keep)

    def note_missed(self, log_id: str, incarnation: int, run: bytes = b"") -> None:
        """Note that nobody had what a joiner lacks; after some times start again for a summary.

        Args:
            run: Digest of the run that no member has; empty = a member does not have the requested
                part of the queue any more.
        """
        if run:
            misses = self._missed_runs[run] = self._missed_runs.get(run, 0) + 1
            gone = misses >= _RUN_MISSES
        else:
            self._misses += 1
            gone = self._misses >= _QUEUE_MISSES
        if gone and self._task is None:
            _log.warning("too far behind", position=self._position)
            order = JoinOrder(log_id=log_id, incarnation=incarnation, behind=True)
            self._join(order)

    def note_request(self, link: PeerLink, position: int, missed: Callable[[], None]) -> None:
        """If the same part of the queue is requested again, check that the peer still has it.

        A peer that pruned the rows cannot answer the request at all.

        Args:
            missed: Called if the peer does not have that part any more.
        """
        if position != self._asked:
            self._asked, self._misses = position, 0
        elif self._task is None and (self._look is None or self._look.done()):
            self._look = asyncio.create_task(self._check_kept(link, position, missed))

    async def _check_kept(self, link: PeerLink, position: int, missed: Callable[[], None]) -> None:
        try:
            await link.get_run_after(position)
        except TxLogError as error:
            # Any other failure says nothing about its queue: the next request checks again.
            if error.fields.get("status") == ExpiredError.http_status:
                missed()

    def note_arrived(self, run: bytes) -> None:
        """Note that the data of a run arrived, by its digest."""
        self._missed_runs.pop(run, None)
        self._misses = 0

    def note_link(self, link: PeerLink) -> None:
        """As a joiner, take over the queue of the first peer that is linked.

        A node that lost its journal ends once every peer accepted it as it is: none of them has a
        log to join, and together they would found another one.
        """
        self._taken.add(link.node_id)
        if self._base.remains is not None:
            if not self.awaited():
                self._base.fail(self._base.remains)
            return
        pulling = self._base.master.pulling
        if pulling is not None and link.node_id not in pulling.sources():
            return  # a follower begins with the queue of a node that it follows (P38)
        if self._order is not None and not self.settled.is_set() and self._task is None:
            order = self._order
            self._task = self._start(
                "taking over a queue summary", lambda: self._take_summary(link, order)
            )

    async def _take_summary(self, link: PeerLink, order: JoinOrder) -> None:
        writes: list[Write] = []
        try:
            summary = await self.taker.take(link)
            if summary.position > self._position:
                compared = await compare_queues(
                    self._base.journal, self._base.state.core, link, summary
                )
                if compared.differs:
                    self._halt(link, compared.differs)
                    return
                if not compared.certain:
                    writes.append(await self._keep_uncompared(link, summary, order))
        except (TransportError, UnauthorizedError, RemoteProtocolError, StorageError) as error:
            _log.warning("no queue summary", peer=link.node_id, reason=str(error))
            if isinstance(error, StorageError):  # of this disk: it needs time, not a greeting
                await asyncio.sleep(_RETRY_S)
            self._task = None
            link.greet_again()
            return
        if summary.position <= self._position:
            self.taker.drop()
            _log.info("nothing to take over", peer=link.node_id, position=summary.position)
            self._task = None
            self.settled.set()
            return
        await self.fetch_files([item.payload for item in summary.prepared])
        await self._executor.write(
            [
                ResetJournal(summary=summary, node_id=self._node_id, incarnation=order.incarnation),
                keep_order(replace(order, behind=False)),
                *writes,
            ]
        )
        self.taker.drop()
        _log.warning("queue summary taken over", peer=link.node_id, position=summary.position)
        self._base.fail(StartAgainError(f"begins at position {summary.position}"))

    def _halt(self, link: PeerLink, differs: str) -> None:
        """Halt before anything is replaced; the next start finds the same."""
        text = (
            f"{link.node_id} has another queue up to position {self._position}: {differs} "
            f"(P9, P28).  {QUARANTINE_HINT}"
        )
        self._cycle.raise_alarm(Alarm(code="diverged", text=text, fatal=True))

    async def _keep_uncompared(
        self, link: PeerLink, summary: QueueSummary, order: JoinOrder
    ) -> PutValue:
        found = await asyncio.to_thread(
            keep_dropped_runs, self._base, summary, order.incarnation, link.node_id, wall_us()
        )
        _log.error(
            "this node's history could not be compared with the summary's",
            peer=link.node_id,
            position=found.position,
            summary=found.summary_position,
            kept=found.kept,
            quarantine=found.quarantine_id,
        )
        return keep_uncompared(found)

    async def close(self) -> None:
        """Stop all tasks."""
        for task in (self._task, self._look):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class QuietMoment:
    """Chooses a quiet moment at which a node asks to be admitted (protocol P21).

    For an admission all members wait until the node has answered twice.  While its publisher is
    busy with a backlog it answers late, so it does not ask then.  After a while it asks anyway: on
    a busy log the publisher may never be idle.

    Args:
        is_busy: Returns whether this node would answer late.
        now: Seconds of any steady clock.
    """

    def __init__(self, is_busy: Callable[[], bool], now: Callable[[], float]) -> None:
        self._is_busy = is_busy
        self._now = now
        #: When it stops waiting; None = it does not want to ask yet.
        self._until: float | None = None

    def begin(self) -> None:
        """Note that this node is no member any more."""
        self._until = None

    def may_ask(self) -> bool:
        """Return whether a due request may be sent; if not, another one is due soon."""
        if self._until is None:
            self._until = self._now() + _WAITS_S
        return not self._is_busy() or self._now() >= self._until
