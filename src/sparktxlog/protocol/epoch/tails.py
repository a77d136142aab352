"""Requests for the queue after a position, kept until there is something to send (P9)."""

from __future__ import annotations

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.actions import SendTail
from sparktxlog.protocol.messages.balloting import TailRequest
from sparktxlog.protocol.messages.outbox import Outbox


class TailRequests:
    """Nodes that wait for a part of the queue.

    Args:
        outbox: Takes the actions.
        wait_us: A request from the end of the queue waits so long for what comes next.
    """

    __slots__ = ("_outbox", "_requests", "_wait_us")

    def __init__(self, outbox: Outbox, wait_us: int) -> None:
        self._outbox = outbox
        self._wait_us = wait_us
        #: Node → when it asked, and for what.
        self._requests: dict[NodeId, tuple[int, TailRequest]] = {}

    def put(self, request: TailRequest, now: int) -> None:
        """Add a request; it replaces an earlier one of its sender."""
        self._requests[request.sender] = (now, request)

    def answer(self, position: int, now: int) -> None:
        """Answer the requests that a queue ending at `position` can answer."""
        for node, (at, request) in tuple(self._requests.items()):
            ahead = request.ahead
            if max(request.position, 0 if ahead is None else ahead.position) < position:
                self._outbox.tell(
                    SendTail(
                        peer=node,
                        position=request.position,
                        chain_hash=request.chain_hash,
                        ahead=ahead,
                    )
                )
            elif now <= at + self._wait_us:
                continue
            del self._requests[node]
