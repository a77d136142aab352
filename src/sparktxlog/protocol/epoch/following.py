"""A lagging node asks the members for their queue, and to be admitted (P9, P21).

It asks one node at a time for the tail, continues at once when a part of it was appended, and asks
another node if nothing arrives.  While nothing changes it asks at growing intervals.
"""

from __future__ import annotations

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.outcomes import CurrentEpoch
from sparktxlog.protocol.messages.balloting import JoinRequest, TailRequest
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.posts import Ahead
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.messages.view import Phase, View
from sparktxlog.protocol.order.synchronized import SynchronizedQueue

#: Longest pause of a node that has no place in the roster.
_SEATLESS_US = 30_000_000


class Following:
    """Decides when to ask which node.

    Args:
        current: Epoch that this node is in.
        queue: Members keep payloads for the position that a node shows.
        patience_us: How long members count a request.
        now: Shell's time, microseconds.
    """

    __slots__ = (
        "_asked", "_config", "_current", "_joined_at", "_joined_base", "_known", "_outbox",
        "_patience_us", "_pause_us", "_queue", "_turn", "holder", "request_at", "source",
    )  # fmt: skip

    def __init__(
        self,
        current: CurrentEpoch,
        config: MasterConfig,
        outbox: Outbox,
        queue: SynchronizedQueue,
        patience_us: int,
        now: int,
    ) -> None:
        self._current = current
        self._config = config
        self._outbox = outbox
        self._queue = queue
        self._patience_us = patience_us
        #: When to ask again, shell's time.
        self.request_at = now
        #: Node that sent the last tail; it is asked for the next one.
        self.source = NodeId("")
        #: Node that has the queue up to the base of the flush, empty = unknown.
        self.holder = NodeId("")
        self._turn = 0
        #: Position asked for last.
        self._asked = -1
        self._pause_us = config.retry_us
        #: When it asked to be admitted last, and the end of its queue then.
        self._joined_at = now
        self._joined_base = -1
        #: What was known at the last request: news shorten the pause again.
        self._known: tuple[View, View | None, int] | None = None

    def work(self, wanted: View | None, counter: int, now: int) -> None:
        """Ask for what is missing, and to be admitted.

        Args:
            wanted: View whose final queue is to be held: the members wait for it.
            counter: What this node would promise.
        """
        view, base = self._current.view, self._queue.base
        # The part of a tail that came and waits after the queue is not asked for again.
        ahead = self._queue.ahead
        known, urgent = (view, wanted, base.position), False
        if known != self._known:
            # The members wait until this node has it.
            urgent = wanted is not None and (self._known is None or self._known[1] != wanted)
            # What it fetches is of no use until a tail of the new epoch names it again.
            is_new = self._known is not None and self._known[0] != view
            self._known = known
            self._pause_us = self._config.retry_us
            at_once = urgent or is_new
            self.request_at = now if at_once else min(self.request_at, now + self._pause_us)
        due = now >= self.request_at
        if due:
            self.request_at = now + self._pause_us
            # Without a place it can only learn of one; with one, requests must stay fresh.
            most = self._patience_us if view.seat(self._config.node_id) else _SEATLESS_US
            self._pause_us = min(2 * self._pause_us, max(most, self._config.retry_us))
            self._turn += 1
        # Progress is reported soon: it may be near enough now.
        soon = self._joined_at + self._config.retry_us // 8
        progress = base.position > self._joined_base and now >= soon
        if not self._current.is_member and (due or progress):
            self._joined_at, self._joined_base = now, base.position
            self._ask_admission(counter)
        if self._current.phase in (Phase.WITNESS, Phase.FOLLOWING):
            return  # one keeps no queue, the other one gets it otherwise (P38)
        if wanted is not None and base.position >= wanted.base.position:
            return
        if ahead is not None and not ahead.room:
            return
        if due or base.position > self._asked >= 0:
            self._asked = base.position
            self._ask_tail(ahead, due=due, urgent=urgent)

    def _ask_admission(self, counter: int) -> None:
        current, queue = self._current, self._queue
        request = JoinRequest(**current.head, base=queue.base, ts=queue.key[1], counter=counter)
        if self._config.node_id in current.spared():
            return
        for seat in current.view.roster:
            if seat.node_id != self._config.node_id:
                self._outbox.send(seat.node_id, request)

    def _ask_tail(self, ahead: Ahead | None, *, due: bool, urgent: bool) -> None:
        members, base = self._current.view.members, self._queue.base
        others = [member for member in members if member != self._config.node_id]
        if not others:
            return
        # On schedule it asks another one each time, the known holder first; on progress the one
        # that it is from.
        turn = others[self._turn % len(others)]
        node = self.source if not due and self.source in others else turn
        if due and self.holder in others and (urgent or self._turn % 2):
            node = self.holder
        request = TailRequest(
            **self._current.head, position=base.position, chain_hash=base.chain_hash, ahead=ahead
        )
        self._outbox.send(node, request)
