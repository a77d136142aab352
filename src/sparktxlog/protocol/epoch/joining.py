"""Nodes that ask to be admitted (protocol P21): which are close enough to the queue's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparktxlog.model.ids import LARGEST, NodeId
from sparktxlog.protocol.messages.balloting import JoinRequest
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import View

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
#: One that comes no nearer by itself is waited for sooner: after so many times the patience, or
#: as soon as it could fetch what it lacks in such a part of the time for which it has asked, and in
#: the patience.
_STAYS_AWAY = 4
_ASKED_PART = 8
#: It comes nearer by itself if one of so many parts of what it lacked is gone after a patience or
#: two.
_BY_ITSELF = 4
#: It gains by an attempt if one of so many parts of what it lacked is gone then; so often at most
#: it is tried again soon.
_BY_ATTEMPTS, _MOST_SOON = 32, 32
#: After so many failures in a row the bar does not double any more.
_MAX_BAR = 6
#: When a node that did not ask for a patience yet was looked at.
_NEVER = (0, 0, 0)


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
    #: How many transactions it lacked when it asked last.
    lacks: int = 0
    #: When it was looked at, where its queue ended then, and what it lacked: a patience or two ago,
    #: and within the last patience.
    before: tuple[int, int, int] = _NEVER
    marked: tuple[int, int, int] = _NEVER

    def note(self, lacks: int, now: int, patience_us: int) -> None:
        """Note what it lacks, and now and then how far it is."""
        self.lacks, position = lacks, self.request.base.position
        if self.marked is _NEVER or now >= self.marked[0] + patience_us:
            self.before, self.marked = self.marked, (now, position, lacks)

    @property
    def grows(self) -> bool:
        """Whether its queue grew of late."""
        return self.before is not _NEVER and self.request.base.position > self.before[1]

    @property
    def stays_away(self) -> bool:
        """Whether its queue grows, and it comes no nearer by itself."""
        return self.grows and not _is_less(self.lacks, self.before[2], _BY_ITSELF)

    def needs_us(self, now: int) -> int:
        """Return how long it needs to fetch what it lacks, at the speed that it has shown."""
        at, position, _ = self.before
        moved = self.request.base.position - position
        return self.lacks * (now - at) // moved if self.grows else LARGEST


def _is_less(lacks: int, lacked: int, parts: int) -> bool:
    """Return whether one of so many parts of what was lacking is gone."""
    return 0 < parts * (lacked - lacks) >= lacked


class Admission:
    """Recent requests to join.

    Args:
        patience_us: A request counts for twice so long.
    """

    __slots__ = ("_asking", "_barred", "_patience_us", "_soon", "_tried")

    def __init__(self, patience_us: int) -> None:
        self._patience_us = patience_us
        self._asking: dict[NodeId, _Asking] = {}
        #: Node → (until when it is not admitted, how often it failed).
        self._barred: dict[str, tuple[int, int]] = {}
        #: Node → what it lacked when an attempt to admit it into the next epoch began.
        self._tried: dict[str, int] = {}
        #: Node → how often it was tried again soon.
        self._soon: dict[str, int] = {}

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
        lacks, asked_us = end.position - request.base.position, now - asking.since
        asking.note(lacks, now, self._patience_us)
        stays = asking.stays_away
        long = (_STAYS_AWAY if stays else _FOLLOWS) * self._patience_us
        follows = asked_us >= long and now - asking.moved_at < _FOLLOWS * self._patience_us
        if request.ts + _PUSHED_US < ts:
            asking.pushed_from = None
        elif asking.pushed_from is None:
            asking.pushed_from = stamp
        pushed = asking.pushed_from is not None and request.ts >= asking.pushed_from
        asking.near = (
            lacks <= 0
            or (pushed and request.ts + _NEAR_US >= ts)
            or (follows and lacks <= _NEAR)
            or (stays and asking.needs_us(now) <= min(asked_us // _ASKED_PART, self._patience_us))
        )

    def _is_old(self, asking: _Asking, now: int) -> bool:
        return now > asking.at + 2 * self._patience_us

    def greeted(self, node: str, incarnation: int) -> None:
        """Forget the request of a node that is again what it was before the request."""
        asking = self._asking.get(NodeId(node))
        if asking is not None and incarnation < asking.request.incarnation:
            del self._asking[NodeId(node)]

    def has_no_older_log(self, node: NodeId, view: View, position: int, now: int) -> bool:
        """Return whether a place asks to be admitted again, and has no queue where none is here.

        Args:
            position: End of the queue here.
        """
        asking, seat = self._asking.get(node), view.seat(node)
        if asking is None or seat is None or self._is_old(asking, now):
            return False
        request = asking.request
        later = request.incarnation > seat.incarnation and request.epoch <= view.epoch
        return later and (request.base.position == 0 or position > 0)

    def entered(self, view: View, now: int) -> None:
        """Forget the requests of new members; bar those that somebody tried to admit."""
        for node in view.members:
            self._asking.pop(node, None)
            self._barred.pop(node, None)
            self._soon.pop(node, None)
            self._tried.pop(node, None)
        self.bar(tuple(self._tried), now)

    def trying(self, nodes: Iterable[NodeId]) -> None:
        """Note an attempt to admit nodes, this node's or another one's, and what they lack now."""
        for node in nodes:
            asking = self._asking.get(node)
            self._tried.setdefault(node, 0 if asking is None else asking.lacks)

    def bar(self, nodes: Iterable[str], now: int) -> None:
        """For a while, do not admit nodes that failed to flush: each attempt stops everybody.

        The time grows with each failure.  One that gained by the attempt is tried again soon: so
        the members go at its pace until it has caught up.
        """
        for node in nodes:
            failures, soon = self._barred.get(node, (0, 0))[1] + 1, self._soon.get(node, 0)
            asking, lacked = self._asking.get(NodeId(node)), self._tried.pop(node, 0)
            pause = self._patience_us << min(failures, _MAX_BAR)
            gains = asking is not None and _is_less(asking.lacks, lacked, _BY_ATTEMPTS)
            if gains and soon < _MOST_SOON:
                failures, pause = 0, self._patience_us // 2
                self._soon[node] = soon + 1
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
            and (seat := view.seat(node)) is not None
            and seat.may_be_member
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
            if (request.log_id, request.epoch) != (view.log_id, view.epoch):
                continue
            member = node in view.members and request.incarnation == seat.incarnation
            if not seat.may_be_member:
                # A witness has no queue to fetch; without its former votes it needs a new
                # incarnation.  A follower is never a member; with another disk it needs one, too.
                member, near = request.incarnation == seat.incarnation, True
            if near and not member and request.incarnation >= seat.incarnation:
                found[node] = request.incarnation
        return found
