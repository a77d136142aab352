"""Nodes that ask to be admitted (protocol P21): which are close enough to the queue's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.words.balloting import JoinRequest
from sparktxlog.protocol.words.messages import MergeBase
from sparktxlog.protocol.words.view import View

#: A joiner fetches the queue by itself.  Once what it lacks was stamped so short a time ago,
#: microseconds, members push to it what they push to each other.
_PUSHED_US = 1_000_000
#: It is admitted when all that was not pushed to it is in its queue, and that ends so short a time
#: ago: then it holds what the final queue may ask for, and answers soon.  The members stand still
#: meanwhile.
_NEAR_US = 100_000
#: One that never gets so near is admitted when it has asked for so many times the patience, came
#: nearer within such a time, and lacks at most so many transactions: it cannot keep up, and
#: somebody has to wait for it.  One that stands still would stop everybody for nothing: what it
#: lacks it gets by a flush no sooner than by itself.
_FOLLOWS = 10
_NEAR = 16_384
#: After so many failures in a row the bar does not double any more.
_MAX_BAR = 6


@dataclass(slots=True)
class _Asking:
    """What is known of a node that asks to join."""

    request: JoinRequest
    #: When the newest request came, and the first one of an unbroken series.
    at: int
    since: int
    #: When its queue was last seen to have grown.
    moved_at: int
    #: Everything stamped after this is pushed to it; None = it lacks too much for that.
    pushed_from: int | None = None
    #: Whether it lacked little when it asked.
    near: bool = False


class Admission:
    """Recent requests to join.

    Args:
        patience_us: A request counts for twice so long.
    """

    __slots__ = ("_asking", "_barred", "_patience_us")

    def __init__(self, patience_us: int) -> None:
        self._patience_us = patience_us
        self._asking: dict[NodeId, _Asking] = {}
        #: Node → (until when it is not admitted, how often it failed).
        self._barred: dict[str, tuple[int, int]] = {}

    def requested(
        self, request: JoinRequest, end: MergeBase, ts: int, stamp: int, now: int
    ) -> None:
        """Note a request.

        Args:
            end: End of this node's queue.
            ts: Stamp of the last run there.
            stamp: Greatest stamp that this node gave or saw.
        """
        asking = self._asking.get(request.sender)
        if asking is None or self._is_old(asking, now):
            asking = self._asking[request.sender] = _Asking(request, now, now, now)
        if request.base.position > asking.request.base.position:
            asking.moved_at = now
        asking.request, asking.at = request, now
        lacks, long = end.position - request.base.position, _FOLLOWS * self._patience_us
        follows = now - asking.since >= long > now - asking.moved_at
        if request.ts + _PUSHED_US < ts:
            asking.pushed_from = None
        elif asking.pushed_from is None:
            asking.pushed_from = stamp
        pushed = asking.pushed_from is not None and request.ts >= asking.pushed_from
        asking.near = (
            lacks <= 0 or (pushed and request.ts + _NEAR_US >= ts) or (follows and lacks <= _NEAR)
        )

    def _is_old(self, asking: _Asking, now: int) -> bool:
        return now > asking.at + 2 * self._patience_us

    def greeted(self, node: str, incarnation: int) -> None:
        """Forget the request of a node that is again what it was before the request."""
        asking = self._asking.get(NodeId(node))
        if asking is not None and incarnation < asking.request.incarnation:
            del self._asking[NodeId(node)]

    def has_no_older_log(self, node: NodeId, view: View, position: int, now: int) -> bool:
        """Return whether a place asks to be admitted anew, and has no queue where none is here.

        Args:
            position: End of the queue here.
        """
        asking, seat = self._asking.get(node), view.seat(node)
        if asking is None or seat is None or self._is_old(asking, now):
            return False
        request = asking.request
        later = request.incarnation > seat.incarnation and request.epoch <= view.epoch
        return later and (request.base.position == 0 or position > 0)

    def entered(self, view: View) -> None:
        """Forget the requests of new members."""
        for node in view.members:
            self._asking.pop(node, None)
            self._barred.pop(node, None)

    def bar(self, nodes: Iterable[str], now: int) -> None:
        """Do not admit nodes for a while that failed to flush: each attempt stops everybody."""
        for node in nodes:
            failures = self._barred.get(node, (0, 0))[1] + 1
            pause = self._patience_us << min(failures, _MAX_BAR)
            self._barred[node] = (now + pause, failures)

    def pushed(self, view: View, now: int) -> tuple[NodeId, ...]:
        """Return the nodes that are so near that members push their runs to them too."""
        if not self._asking:
            return ()
        return tuple(
            node
            for node, asking in sorted(self._asking.items())
            if asking.pushed_from is not None
            and not self._is_old(asking, now)
            and view.seat(node) is not None
            and node not in view.members
        )

    def ready(self, view: View, now: int) -> dict[NodeId, int]:
        """Return the nodes that may be admitted: node → incarnation.

        A node has a place in the roster, and never returns under an incarnation before that.
        """
        if not self._asking:
            return {}
        found = {}
        for node, asking in sorted(self._asking.items()):
            request, near, seat = asking.request, asking.near, view.seat(node)
            if seat is None or self._is_old(asking, now):
                continue
            if now < self._barred.get(node, (0, 0))[0]:
                continue
            if (request.lineage, request.epoch) != (view.lineage, view.epoch):
                continue
            member = node in view.members and request.incarnation == seat.incarnation
            if seat.witness:
                # It has no queue to fetch; without its former votes it needs a new incarnation.
                member, near = request.incarnation == seat.incarnation, True
            if near and not member and request.incarnation >= seat.incarnation:
                found[node] = request.incarnation
        return found
