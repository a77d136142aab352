"""Nodes that prove that they know this cluster's secret, and that one end refuses: both warn.

A node without a place, of another log or with other settings looks like one that is down: the
others go on without it, and it goes on without them.  A node that does not know the secret causes
no warning, or anybody could cause one.
"""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.model.answers import OperatorWarning
from sparktxlog.transport.peer_link import PeerLink

#: Most nodes that are remembered, and for how long after their last attempt, microseconds.
_MOST, _KEPT_US = 16, 600_000_000


class Strangers:
    """What was refused lately; belongs to the event loop."""

    def __init__(self) -> None:
        #: Node → when it tried last (log clock, microseconds), and why it was refused.
        self._refused: dict[str, tuple[int, str]] = {}

    def note(self, node: str, why: str, now: int) -> None:
        """Note that a node that knows the secret was refused."""
        self._refused.pop(node, None)
        self._refused[node] = (now, why)
        while len(self._refused) > _MOST:
            del self._refused[next(iter(self._refused))]

    def accepted(self, node: str) -> None:
        """Note that a node's greeting was accepted."""
        self._refused.pop(node, None)

    def warnings(self, links: Iterable[PeerLink], now: int) -> list[OperatorWarning]:
        """Return a warning for each node that is refused here, or refuses this one."""
        texts = [
            f"Node {node} knows the secret of this cluster and is refused: {why}.  Stop it, or "
            "compare places, log and settings (`sparktxlog peer list` at both)."
            for node, (at, why) in self._refused.items()
            if now - at <= _KEPT_US
        ]
        texts += [
            f"{link.node_id} refuses this node: {link.refusal}.  It takes no part there: compare "
            "places, log and settings (`sparktxlog peer list` at both)."
            for link in links
            if link.refusal and not link.up
        ]
        return [{"code": "stranger", "text": text} for text in texts]
