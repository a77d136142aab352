"""Whether a node can order: not while a member is missing and the others cannot decide without it.

Such a node goes on by itself when others return.  Until then it takes transactions at level
`accepted`, and answers reads.  Transactions of higher levels are taken too during the first
`suspect-timeout`, because many broken links last a moment only.  Then they are refused,
definitely.  Accepted transactions are never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from sparktxlog.errors import MembersMissingError, NoQuorumError
from sparktxlog.model.answers import ShownRestriction
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Level
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.view import Phase

_log = structlog.get_logger("sparktxlog.restriction")

_MEMBER = (Phase.NORMAL, Phase.SUSPECT, Phase.WEDGED)


class Restriction:
    """Knows whether this node and its linked peers can order, and since when they cannot."""

    def __init__(
        self,
        master: Master,
        node_id: NodeId,
        links_up: Callable[[], Iterable[str]],
        now: Callable[[], int],
    ) -> None:
        self._master = master
        self._node_id = node_id
        self._links_up = links_up
        self._now = now
        #: Since when there is no quorum, None = there is one.
        self._since: int | None = None
        self._told = False
        #: Nodes with a vote or the queue that are not heard, in precedence order.
        self._absent: list[str] = []
        #: Highest level that a transaction can reach at the moment.
        self._reachable = Level.APPLIED
        self.look()

    def look(self) -> None:
        """Check again; called at each question, and after news that may change the answer."""
        phase = self._master.phase
        if phase not in _MEMBER or self._is_quorum(phase):
            self._since, self._absent, self._reachable = None, [], Level.APPLIED
            if self._told:
                self._told = False
                _log.info("orders again", node=self._node_id)
        elif self._since is None:
            self._since = self._now()

    def _is_quorum(self, phase: Phase) -> bool:
        view = self._master.view
        present = {str(self._node_id), *self._links_up()}
        if phase is not Phase.NORMAL:  # in NORMAL nobody is suspected
            present.difference_update(self._master.status().suspects)
        if view.elects(present) and view.preserves(present):
            return True
        if phase is not Phase.WEDGED and present.issuperset(view.members):
            return True  # no decision is needed: the epoch goes on
        self._absent = [
            str(seat.node_id)
            for seat in view.roster
            if seat.node_id not in present and (seat.weight or seat.node_id in view.members)
        ]
        held = phase is not Phase.WEDGED and len(present.intersection(view.members)) >= view.quorum
        self._reachable = Level.ACQUIRED if held else Level.ACCEPTED
        return False

    def shown(self) -> ShownRestriction | None:
        """Return the missing nodes, since when, and the reachable levels; None = no restriction."""
        self.look()
        if self._since is None:
            return None
        return {
            "waits_for": list(self._absent),
            "since_us": max(0, self._now() - self._since),
            "levels": [
                level.value for level in Level if LEVEL_RANK[level] <= LEVEL_RANK[self._reachable]
            ],
        }

    def check_whole(self, size_bytes: int, limit_bytes: int) -> None:
        """Refuse a transaction above a size while a site is missing, or no member.

        Witnesses have no data, and nobody waits for a follower (P38).

        Raises:
            MembersMissingError: It was not accepted (definite).
        """
        view, up = self._master.view, {str(self._node_id), *self._links_up()}
        if self._master.phase is not Phase.NORMAL:  # in NORMAL nobody is suspected
            up.difference_update(self._master.status().suspects)
        there = up.intersection(view.members)
        missing = [
            str(seat.node_id)
            for seat in view.roster
            if seat.may_be_member and seat.node_id not in there
        ]
        if missing:
            raise MembersMissingError(
                f"the transaction has {size_bytes:,} bytes, and {', '.join(missing)} would have to "
                f"catch up with it; above {limit_bytes:,} all sites must be there",
                waits_for=missing,
                size_bytes=size_bytes,
                limit_bytes=limit_bytes,
            )

    def check(self, level: Level, patience_s: float) -> None:
        """Refuse a new transaction that cannot reach its level before others return.

        Args:
            level: The level that it must reach.
            patience_s: Refuse only after others were missing so long, seconds; 0 = never.

        Raises:
            NoQuorumError: The transaction was not accepted (definite).
        """
        if level is Level.ACCEPTED:
            return
        self.look()
        if self._since is None or LEVEL_RANK[level] <= LEVEL_RANK[self._reachable]:
            return
        lasts_s = (self._now() - self._since) / 1e6
        if not 0 < patience_s <= lasts_s:
            return
        if not self._told:
            self._told = True
            _log.warning("orders nothing", node=self._node_id, waits_for=self._absent)
        names = ", ".join(self._absent)
        raise NoQuorumError(
            f"too few nodes answer to order anything, for {lasts_s:,.0f} s: this one waits for "
            f"{names}",
            waits_for=list(self._absent),
            levels=[self._reachable.value],
        )
