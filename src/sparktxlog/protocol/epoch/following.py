"""A node that is behind asks the members for their queue, and to be admitted (P9, P21).

It asks one node at a time for the tail, goes on at once when a part of it was appended, and turns
to another node when nothing comes.  While nothing changes it asks ever more seldom.
"""

from __future__ import annotations

from collections.abc import Callable

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.words.balloting import EpochMessage, JoinRequest, TailRequest
from sparktxlog.protocol.words.messages import Ahead, MergeBase
from sparktxlog.protocol.words.recovery import MasterConfig
from sparktxlog.protocol.words.view import View

#: Longest pause of a node that has no place in the roster.
_SEATLESS_US = 30_000_000


class Following:
    """When to ask whom.

    Args:
        send: Sends a message to a node.
        patience_us: How long members count a request.
        now: Shell's time, microseconds.
    """

    __slots__ = (
        "_asked", "_config", "_joined_at", "_joined_base", "_known", "_patience_us", "_pause_us",
        "_send", "_turn", "holder", "request_at", "source",
    )  # fmt: skip

    def __init__(
        self,
        config: MasterConfig,
        send: Callable[[NodeId, EpochMessage], None],
        patience_us: int,
        now: int,
    ) -> None:
        self._config = config
        self._patience_us = patience_us
        self._send = send
        #: When to ask again, shell's time.
        self.request_at = now
        #: Who sent the last tail; it is asked for the next one.
        self.source = NodeId("")
        #: Who has the queue up to the base of the flush, empty = not known.
        self.holder = NodeId("")
        self._turn = 0
        #: Position asked for last.
        self._asked = -1
        self._pause_us = config.retry_us
        #: When it asked to be admitted last, and the end of its queue then.
        self._joined_at = now
        self._joined_base = -1
        #: What was known when it asked last: news shorten the pause again.
        self._known: tuple[View, View | None, int] | None = None

    def work(
        self,
        view: View,
        wanted: View | None,
        base: MergeBase,
        ts: int,
        now: int,
        *,
        counter: int,
        joining: bool,
        witness: bool,
        ahead: Ahead | None = None,
    ) -> None:
        """Ask for what is missing, and to be admitted.

        Args:
            witness: Ask for no queue.
            wanted: View whose final queue is to be held: the members wait for it.
            base: End of the own queue: members keep payloads for the position that a node shows.
            ahead: What of a tail came and waits behind that: it is not asked for again.
            ts: Stamp of the last run there.
            counter: What this node would promise.
        """
        known, urgent = (view, wanted, base.position), False
        if known != self._known:
            # The members stand still until this node has it.
            urgent = wanted is not None and (self._known is None or self._known[1] != wanted)
            self._known = known
            self._pause_us = self._config.retry_us
            self.request_at = now if urgent else min(self.request_at, now + self._pause_us)
        due = now >= self.request_at
        if due:
            self.request_at = now + self._pause_us
            # Without a place it can only learn of one; with one, requests must stay fresh.
            most = self._patience_us if view.seat(self._config.node_id) else _SEATLESS_US
            self._pause_us = min(2 * self._pause_us, max(most, self._config.retry_us))
            self._turn += 1
        # Progress is told soon: it may be near enough now.
        soon = self._joined_at + self._config.retry_us // 8
        if joining and (due or (base.position > self._joined_base and now >= soon)):
            self._joined_at, self._joined_base = now, base.position
            self._ask_admission(view, base, ts, counter)
        if witness:
            return
        if wanted is not None and base.position >= wanted.base.position:
            return
        if ahead is not None and not ahead.room:
            return
        if due or base.position > self._asked >= 0:
            self._asked = base.position
            self._ask_tail(view, base, ahead, due=due, urgent=urgent)

    def _ask_admission(self, view: View, base: MergeBase, ts: int, counter: int) -> None:
        own = self._config
        for seat in view.roster:
            if seat.node_id != own.node_id:
                self._send(
                    seat.node_id,
                    JoinRequest(
                        lineage=view.lineage, epoch=view.epoch, sender=own.node_id,
                        incarnation=own.incarnation, base=base, ts=ts, counter=counter,
                    ),
                )  # fmt: skip

    def _ask_tail(
        self, view: View, base: MergeBase, ahead: Ahead | None, *, due: bool, urgent: bool
    ) -> None:
        own = self._config
        others = [member for member in view.members if member != own.node_id]
        if not others:
            return
        # On schedule another one each time, the known holder first; on progress the one it is from.
        turn = others[self._turn % len(others)]
        node = self.source if not due and self.source in others else turn
        if due and self.holder in others and (urgent or self._turn % 2):
            node = self.holder
        self._send(
            node,
            TailRequest(
                lineage=view.lineage, epoch=view.epoch, sender=own.node_id,
                incarnation=own.incarnation, position=base.position, chain_hash=base.chain_hash,
                ahead=ahead,
            ),
        )  # fmt: skip
