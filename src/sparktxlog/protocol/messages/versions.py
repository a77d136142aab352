"""Wire versions: how nodes of different releases work together (P31).

Each node speaks a range of versions.  A link uses the newest one that both ends speak.  Decisions
that all members must make alike use the version *in force*, which is part of the view: an epoch
decision raises it once all voters and members speak a later one; it is never lowered.

Nothing needs a version beyond the first one yet.  A new message, field or rule of the tables needs
the next one, which is declared here and checked at the link or in the view.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.view import FIRST_VERSION, View

#: Versions that this release speaks.
OLDEST = FIRST_VERSION
NEWEST = 1


def deciders(view: View) -> set[NodeId]:
    """Return the nodes that must speak a version before it may be in force: voters and members."""
    return {seat.node_id for seat in view.roster if seat.weight > 0}.union(view.members)


class Raising:
    """Knows when the version in force can be raised (P31).

    Args:
        own: This node.
        newest: Version that it speaks.
        pause_us: Shortest time between two attempts of one epoch after another.
    """

    __slots__ = ("_attempts", "_deciders", "_in_force", "_newest", "_own", "_pause_us", "at")

    def __init__(self, own: NodeId, newest: int, pause_us: int, view: View, now: int) -> None:
        self._own = own
        #: Node → newest version that it speaks; only of those that are linked.
        self._newest: dict[str, int] = {own: newest}
        self._pause_us = pause_us
        self._attempts = 0
        #: When the next attempt may begin.
        self.at = now
        self._in_force = view.version
        self._deciders = deciders(view)

    def entered(self, view: View, now: int) -> None:
        """Begin a new epoch; if it could have raised the version, the next attempt waits."""
        failed = self.wanted and view.version == self._in_force
        self._attempts = self._attempts + 1 if failed else 0
        self.at = now + (self._pause_us << min(self._attempts, 6) if failed else 0)
        self._in_force = view.version
        self._deciders = deciders(view)

    def linked(self, node: str, newest: int) -> None:
        """Note the version of a node whose link came up; 0 = it broke."""
        self._newest[node] = newest

    def reads(self, node: str, view: View) -> bool:
        """Return whether a node can read a view, as far as its link shows."""
        return not 0 < self._newest.get(node, 0) < view.version

    @property
    def wanted(self) -> bool:
        """Whether all deciders are linked, and speak a version beyond the one in force."""
        if self._newest[self._own] <= self._in_force:
            return False
        return min(self._newest.get(node, 0) for node in self._deciders) > self._in_force

    def may(self, responders: set[str], now: int) -> bool:
        """Return whether an attempt would raise it now, as far as is known."""
        return now >= self.at and self.wanted and self._deciders <= responders


def raised(before: View, candidate: View, spoken: Mapping[NodeId, int], proposer: NodeId) -> int:
    """Return the version in force after a decision.

    Args:
        before: View of the epoch that ends.
        candidate: The next one.
        spoken: Newest version of each node that promised.  A vote of a node that does not know
            the field would lose it, so a node that did not promise keeps the version as it is.
        proposer: Node that writes the candidate; it may have no vote, and lose its place by it.
    """
    voters = {seat.node_id for seat in before.roster if seat.weight > 0}
    wanted = voters | deciders(candidate) | {proposer}
    return max(before.version, min(spoken.get(node, 0) for node in wanted))
