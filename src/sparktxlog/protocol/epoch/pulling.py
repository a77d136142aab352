"""A follower gets the queue from one node at a time, and never asks to be admitted (P38).

It asks for what follows its queue, and asks again once it has that.  The node that was asked keeps
the question until there is an answer.  So on a log at rest the next run comes at once, and on a
busy one a follower asks now and then, for many runs: it costs the nodes that order little.

While nothing comes it asks whether the node is alive, and asks the next one if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.outcomes import CurrentEpoch
from sparktxlog.protocol.messages.balloting import Probe, TailRequest
from sparktxlog.protocol.messages.events import earliest
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.messages.view import Phase, View
from sparktxlog.protocol.order.synchronized import SynchronizedQueue

#: Least time between two questions for the queue: on a busy log a follower is so much later.
PACE_US = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The node that a follower gets the queue from, and how far it is."""

    #: Empty = there is none.
    node: NodeId
    linked: bool
    #: How long ago its core said something, microseconds; None = it did not yet.
    heard_us: int | None
    #: Transactions that its queue has and the follower's does not, as far as known, and since when.
    lacks: int
    lags_us: int


class Pulling:
    """Decides when to ask which node.

    Args:
        current: Epoch that this node is in.
        queue: This node's queue.
        patience_us: Longest pause between two questions; nodes keep a question for longer.
        now: Shell's time, microseconds.
    """

    __slots__ = (
        "_asked", "_asked_at", "_config", "_current", "_end", "_heard", "_lags_since", "_linked",
        "_outbox", "_patience_us", "_pause_us", "_probed_at", "_queue", "_request_at",
        "_source",
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
        self._linked: set[NodeId] = set()
        #: Node → when its core said something last.
        self._heard: dict[NodeId, int] = {}
        #: The node that is asked now, empty = the first one.
        self._source = NodeId("")
        #: Position and time of the last question.
        self._asked, self._asked_at = -1, now - PACE_US
        #: When it was asked last whether it is alive; None = it was not since something came.
        self._probed_at: int | None = None
        #: When to ask again though nothing came.
        self._request_at = now
        self._pause_us = config.retry_us
        #: Greatest known end of another queue, and since when this one is before it.
        self._end = 0
        self._lags_since: int | None = None

    # -- what is seen ------------------------------------------------------------------------------

    def link(self, node: NodeId, *, up: bool, now: int) -> None:
        """Note that the connection to a node came up or broke: the first one is preferred."""
        if up:
            self._linked.add(node)
        else:
            self._linked.discard(node)
        if node in self._nodes():
            self._source, self._probed_at = NodeId(""), None
            self._pause_us = self._config.retry_us
            self._request_at = min(self._request_at, now)

    def heard(self, node: NodeId, now: int, end: int = 0) -> None:
        """Note a tail, or a message about an epoch, of a node, and where its queue ends."""
        self._heard[node] = now
        self._end = max(self._end, end)

    # -- what follows ------------------------------------------------------------------------------

    def sources(self) -> tuple[NodeId, ...]:
        """Return the nodes to get the queue and its runs from, the present one first.

        Nodes that are not linked are named only where none is.
        """
        found = self._nodes()
        found = [node for node in found if node in self._linked] or found
        return tuple(sorted(found, key=lambda node: node != self._source))

    def _nodes(self) -> list[NodeId]:
        """Return all nodes that may be asked, in the order of preference."""
        return followed_by(self._config.node_id, self._config.follow, self._current.view)

    def upstream(self, now: int) -> Upstream:
        """Return the node that is asked now, and how far this one is."""
        node = next(iter(self.sources()), NodeId(""))
        heard, since = self._heard.get(node), self._lags_since
        return Upstream(
            node=node,
            linked=node in self._linked,
            heard_us=None if heard is None else max(0, now - heard),
            lacks=max(0, self._end - self._queue.position),
            lags_us=0 if since is None else max(0, now - since),
        )

    def work(self, now: int) -> None:
        """Ask what is due, if this node is a follower."""
        if not self._follows:
            return
        if self._end <= self._queue.position:
            self._lags_since = None
        elif self._lags_since is None:
            self._lags_since = now
        sources = self._current.ordering.sources = self.sources()
        moved = self._has_moved()
        due = now >= self._request_at
        if not due and not (moved and now >= self._asked_at + PACE_US):
            return
        if not sources:
            self._request_at = now + self._patience_us
            return
        source = sources[0]
        if self._probed_at is not None and self._heard.get(source, -1) < self._probed_at:
            source = _after(source, sources)  # it did not even say that it is alive
        if moved or source != self._source:
            self._pause_us = self._config.retry_us
        self._source, self._probed_at = source, None if moved else now
        self._ask(source, now)

    @property
    def _follows(self) -> bool:
        return self._current.phase is Phase.FOLLOWING

    def _has_moved(self) -> bool:
        """Return whether something came since the last question, and there is room for more."""
        ahead = self._queue.ahead
        return self._queue.position > self._asked and (ahead is None or ahead.room > 0)

    def _ask(self, source: NodeId, now: int) -> None:
        base, ahead, head = self._queue.base, self._queue.ahead, self._current.head
        self._asked, self._asked_at = base.position, now
        self._request_at = now + self._pause_us
        self._pause_us = min(2 * self._pause_us, max(self._patience_us, self._config.retry_us))
        if self._probed_at is not None:
            self._outbox.send(source, Probe(**head, number=0))
        if ahead is None or ahead.room:
            self._outbox.send(
                source,
                TailRequest(
                    **head, position=base.position, chain_hash=base.chain_hash, ahead=ahead
                ),
            )

    def next_deadline(self) -> int | None:
        """Return when to ask next; None = this node is no follower."""
        if not self._follows:
            return None
        soon = self._asked_at + PACE_US if self._has_moved() else None
        return earliest([self._request_at, soon])


def followed_by(node: NodeId, follow: Iterable[NodeId], view: View) -> list[NodeId]:
    """Return the nodes that one asks while it is a follower, in the order of preference.

    Args:
        follow: What it is set to follow; those without a queue here do not count.
    """
    named = [other for other in follow if other != node and _has_queue(view, other)]
    return named or [member for member in view.members if member != node]


def circle_of(
    node: NodeId, view: View, follow_of: Callable[[NodeId], Iterable[str] | None]
) -> list[NodeId]:
    """Return the followers that one's upstreams lead to, itself too, if these lead to no member.

    Each of them finds the others alive, and all get nothing.  Empty = they lead to one, or to a
    follower of which this is not known.

    Args:
        follow_of: Node → what it is set to follow, None = unknown here.
    """
    found = [node]
    for one in found:
        follow = follow_of(one)
        if follow is None or not view.follows(one):
            return []
        asked = followed_by(one, map(NodeId, follow), view)
        found += [other for other in dict.fromkeys(asked) if other not in found]
    return sorted(found)


def _has_queue(view: View, node: NodeId) -> bool:
    seat = view.seat(node)
    return seat is not None and not seat.witness


def _after(node: NodeId, nodes: Iterable[NodeId]) -> NodeId:
    """Return the node that follows another one in a circle, in the order of their names."""
    names = sorted(nodes)
    return names[(names.index(node) + 1) % len(names)]
