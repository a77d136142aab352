"""Mutations of how a run that nobody can deliver becomes void (P32)."""

from __future__ import annotations

from dataclasses import replace

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.changes import Changes
from sparktxlog.protocol.epoch.proposer import Proposer
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.epoch.union import FinalQueue
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.words.actions import Action, PersistVoid
from sparktxlog.protocol.words.messages import RunHeader
from sparktxlog.protocol.words.outbox import Outbox
from sparktxlog.protocol.words.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.words.view import View, Voided

_objection = Proposer._objection
_persist = Outbox.persist


def not_durable(self: Outbox, action: Action) -> None:
    """Append what is void without keeping it."""
    if not isinstance(action, PersistVoid):
        _persist(self, action)


def claim_nothing(self: Ordering, view: View) -> list[RunHeader]:
    """Say nothing of what is held."""
    return []


def never_silent(self: Proposer, void: Voided, queue: FinalQueue) -> str:
    """Take a member that does not answer for one that holds nothing."""
    return _objection(self, replace(void, without=self.view.members), queue)


def forget_voids(config: MasterConfig, state: RecoveredState) -> RecoveredState:
    """Remember what was voted for, and not which of its runs are void."""
    ballot = state.ballot
    if ballot is None or ballot.accepted is None:
        return state
    view = replace(ballot.accepted.view, voided=())
    vote = replace(ballot.accepted, view=view)
    return replace(state, ballot=replace(ballot, accepted=vote))


def one_wish(self: Proposer, queue: FinalQueue) -> FinalQueue:
    """Void what was asked of the proposer itself, and nothing that others were asked."""
    own = self._promises.get(NodeId(self.ballot.node))
    for void in () if own is None else own.voids:
        self.voids.append(void)
        queue = queue.without(void)
    return queue


def wait_for_the_flush(self: Succession, now: int) -> None:
    """Let what goes on come to its end first."""


def refuse_silently(self: Changes, void: Voided, reason: str) -> None:
    """Forget a wish without an answer."""
    for ticket in [ticket for ticket, one in self._voids.items() if one == void]:
        del self._voids[ticket]


def drop_claims(self: object, header: RunHeader, now: int) -> object:
    """Put what would be void in the run's place before that is decided."""
    return self.learn_final(header, now, fetched=False)  # type: ignore[attr-defined]
