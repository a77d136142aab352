"""Nodes that ask to be admitted (protocol P21): who is close enough to the end of the queue."""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.balloting import JoinRequest
from sparktxlog.protocol.view import View

#: A joiner fetches the queue by itself until it is so near its end; the rest comes with the flush,
#: for which the members stand still (V36, V41).
_NEAR = 16_384
#: After so many failures in a row the bar does not double any more.
_MAX_BAR = 6


class Admission:
    """Requests to join that were heard a short while ago.

    Args:
        patience_us: A request counts for twice so long.
    """

    __slots__ = ("_barred", "_patience_us", "_requests")

    def __init__(self, patience_us: int) -> None:
        self._patience_us = patience_us
        self._requests: dict[NodeId, tuple[int, JoinRequest]] = {}
        #: Node → (until when it is not admitted, how often it failed).
        self._barred: dict[str, tuple[int, int]] = {}

    def requested(self, request: JoinRequest, now: int) -> None:
        """Note a request."""
        self._requests[request.sender] = (now, request)

    def entered(self, view: View) -> None:
        """Forget who is a member now."""
        for node in view.members:
            self._requests.pop(node, None)
            self._barred.pop(node, None)

    def bar(self, nodes: Iterable[str], now: int) -> None:
        """Do not admit nodes for a while that failed to flush: each attempt stops everybody."""
        for node in nodes:
            failures = self._barred.get(node, (0, 0))[1] + 1
            pause = self._patience_us << min(failures, _MAX_BAR)
            self._barred[node] = (now + pause, failures)

    def ready(self, view: View, position: int, now: int) -> dict[NodeId, int]:
        """Return who may be admitted: node → incarnation.

        A node has a place in the roster, and never returns under an incarnation before that.
        """
        if not self._requests:
            return {}
        found = {}
        for node, (at, request) in sorted(self._requests.items()):
            seat = view.seat(node)
            if seat is None or now > at + 2 * self._patience_us:
                continue
            if now < self._barred.get(node, (0, 0))[0]:
                continue
            if (request.lineage, request.epoch) != (view.lineage, view.epoch):
                continue
            member = node in view.members and request.incarnation == seat.incarnation
            if seat.witness:
                # It has no queue to fetch; without its former votes it needs a new incarnation.
                member, near = request.incarnation == seat.incarnation, True
            else:
                near = request.base.position + _NEAR >= position
            if near and not member and request.incarnation >= seat.incarnation:
                found[node] = request.incarnation
        return found
