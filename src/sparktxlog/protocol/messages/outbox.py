"""Collects the actions of the core; `Master.handle_all` returns them once."""

from __future__ import annotations

from collections.abc import Iterable

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.actions import Action, SendEpochMessage, SendPost
from sparktxlog.protocol.messages.balloting import EpochMessage


class Outbox:
    """Actions of one batch: those that must be durable come before all others.

    Only a message that depends on nothing durable of this batch may come before them.
    """

    __slots__ = ("_firsts", "_others", "_persists")

    def __init__(self) -> None:
        self._firsts: list[Action] = []
        self._persists: list[Action] = []
        self._others: list[Action] = []

    def persist(self, action: Action) -> None:
        """Make something durable, after earlier actions."""
        self._persists.append(action)

    def persist_first(self, action: Action) -> None:
        """Make something durable before all others of the batch."""
        self._persists.insert(0, action)

    def tell_first(self, action: Action) -> None:
        """Send at once what does not depend on later actions.

        Earlier actions of this batch that must be durable still come before it.
        """
        (self._others if self._persists else self._firsts).append(action)

    def tell(self, action: Action) -> None:
        """Send or report something once everything persisted so far is durable."""
        self._others.append(action)

    def send(self, peer: NodeId, message: EpochMessage) -> None:
        """Send a part of an epoch decision once everything persisted so far is durable."""
        self._others.append(SendEpochMessage(peer=peer, message=message))

    def tell_all(self, actions: Iterable[Action]) -> None:
        """Send or report several things."""
        self._others.extend(actions)

    @property
    def persists(self) -> bool:
        """Whether something of this batch is made durable."""
        return bool(self._persists)

    def drop_posts(self) -> None:
        """Send no posts of this batch: their content is outdated."""
        self._others = [a for a in self._others if not isinstance(a, SendPost)]

    def take(self) -> list[Action]:
        """Return everything in execution order and start a new batch."""
        actions = self._firsts + self._persists + self._others
        self._firsts, self._persists, self._others = [], [], []
        return actions
