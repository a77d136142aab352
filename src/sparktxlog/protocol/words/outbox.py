"""Where the parts of the core put their actions; `Master.handle_all` hands them over once."""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.words.actions import Action, SendEpochMessage, SendPost
from sparktxlog.protocol.words.balloting import EpochMessage


class Outbox:
    """Actions of one batch: all that is to be made durable stands before everything else.

    Only what was so before anything of this batch had to be durable may stand in front of that.
    """

    __slots__ = ("_firsts", "_others", "_persists")

    def __init__(self) -> None:
        self._firsts: list[Action] = []
        self._persists: list[Action] = []
        self._others: list[Action] = []

    def persist(self, action: Action) -> None:
        """Make something durable, behind what was asked for before."""
        self._persists.append(action)

    def persist_first(self, action: Action) -> None:
        """Make something durable in front of all others of the batch."""
        self._persists.insert(0, action)

    def tell_first(self, action: Action) -> None:
        """Send at once what rests on nothing that is asked for from here on.

        If anything of this batch is to be durable already, that stands before it.
        """
        (self._others if self._persists else self._firsts).append(action)

    def tell(self, action: Action) -> None:
        """Send or tell something once everything persisted so far is durable."""
        self._others.append(action)

    def send(self, peer: NodeId, message: EpochMessage) -> None:
        """Send a part of an epoch decision once everything persisted so far is durable."""
        self._others.append(SendEpochMessage(peer=peer, message=message))

    def tell_all(self, actions: Iterable[Action]) -> None:
        """Send or tell several things."""
        self._others.extend(actions)

    @property
    def persists(self) -> bool:
        """Whether something of this batch is made durable."""
        return bool(self._persists)

    def drop_posts(self) -> None:
        """Send no posts of this batch: they state what is no longer so."""
        self._others = [a for a in self._others if not isinstance(a, SendPost)]

    def take(self) -> list[Action]:
        """Return everything in execution order and begin anew."""
        actions = self._firsts + self._persists + self._others
        self._firsts, self._persists, self._others = [], [], []
        return actions
