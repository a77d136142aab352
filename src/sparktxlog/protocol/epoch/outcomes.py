"""The current epoch as the succession sees it, and the outcomes that the master applies to it.

Methods of the succession yield outcomes.  The master applies each one before the method goes on:
after `yield Wedge(...)` the node is wedged, after `yield Learn(...)` it may be in a later epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.balloting import EpochHead, Flush, MemberState
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.messages.view import Ballot, Phase, View
from sparktxlog.protocol.order.ordering import Ordering


@dataclass(frozen=True, slots=True)
class Wedge:
    """Freeze the normal operation (P14); nothing happens if it is frozen."""

    reason: str


@dataclass(frozen=True, slots=True)
class SuspectNodes:
    """Be in phase SUSPECT, or in NORMAL if there are no suspects (P13)."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class StartFlush:
    """Fetch a candidate's final queue; `tell_flushed` reports the progress of this node (P16)."""

    flush: Flush


@dataclass(frozen=True, slots=True)
class Learn:
    """Adopt a decided view of a later epoch (P18, P19)."""

    view: View


Outcome = Wedge | SuspectNodes | StartFlush | Learn
Outcomes = Iterator[Outcome]


class CurrentEpoch:
    """The epoch that this node is in, and its role in it; only the master changes it.

    Args:
        view: View in force.
        promised: Ballot that this node promised for the decision that ends it.
    """

    __slots__ = ("_config", "aside", "is_member", "ordering", "phase", "view")

    #: Normal operation within the epoch; each epoch has its own.
    ordering: Ordering

    def __init__(self, config: MasterConfig, view: View, promised: Ballot) -> None:
        self._config = config
        self.view = view
        #: Whether this node, as it is, is a member.
        self.is_member = self.has_me(view)
        self.phase = self._first_phase(promised)
        #: Nodes that said that their disks are slow.
        self.aside: frozenset[NodeId] = frozenset()

    def _first_phase(self, promised: Ballot) -> Phase:
        seat = self.view.seat(self._config.node_id)
        if seat is not None and seat.witness:
            return Phase.WITNESS
        if not self.is_member:
            return self.waiting_phase
        return Phase.WEDGED if promised.number else Phase.NORMAL

    @property
    def waiting_phase(self) -> Phase:
        """The phase of this node where the view does not have it as a member."""
        follows = self.view.follows(self._config.node_id)
        return Phase.FOLLOWING if follows else Phase.JOINING

    def has_me(self, view: View) -> bool:
        """Return whether a view has this node, as it is, among its members."""
        node = self._config.node_id
        return node in view.members and view.is_current(node, self._config.incarnation)

    def spared(self) -> frozenset[NodeId]:
        """Return the nodes that nobody waits for because their disks are slow (P37).

        As long as two members are left without them, so that there is a second copy, and as many as
        synchronous runs need (P34).  If most are slow, none is in the others' way.
        """
        if not self.aside:  # as nearly always, and each event asks four times
            return self.aside
        left, least = set(self.view.members) - self.aside, max(2, self.view.synchro_quorum)
        return self.aside if len(left) >= least else frozenset()

    @property
    def wish(self) -> str:
        """What this node, which is no member, wants."""
        if self.view.follows(self._config.node_id):
            return "follows the queue, without vote and promise"
        if self._config.node_id in self.spared():
            return "stands aside until its disk is quick again"
        return "asks to be admitted again"

    @property
    def head(self) -> EpochHead:
        """The head of each message of this node."""
        view, own = self.view, self._config
        return EpochHead(
            log_id=view.log_id,
            epoch=view.epoch,
            sender=own.node_id,
            incarnation=own.incarnation,
        )

    @property
    def told_view(self) -> View:
        """View in the form that others get: no member repeats what the epoch began with."""
        return self.view.settled if self.is_member else self.view

    def state(self) -> MemberState | None:
        """Return what this node holds, for its PROMISE (P14, P21).

        None: it is no member, and does not ask to be admitted.
        """
        if self.is_member:
            return self.ordering.member_state()
        return self.ordering.joiner_state() if self.phase is Phase.JOINING else None
