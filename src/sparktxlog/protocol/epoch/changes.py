"""Changes requested by an operator: roster, quorum, void runs (protocol P11, P32).

A decision that changes the quorum belongs to the epoch before: its answers are counted by the rule
in force there, so together they hold everything that was acquired (P12).
"""

from __future__ import annotations

from dataclasses import replace

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.transactions.synchro_holders import check_expression
from sparktxlog.protocol.messages.actions import TellChange
from sparktxlog.protocol.messages.events import ChangeRequested
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.view import Seat, View, Voided, is_rule

#: Most runs that wait to be voided at one node.
_MOST_VOIDS = 64


class Changes:
    """At most one change at a time, apart from void runs; a change is done when a view has it."""

    __slots__ = ("_outbox", "_request", "_voids")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._request: tuple[ChangeRequested, View] | None = None
        #: Ticket → run to be voided; several may block each other.
        self._voids: dict[int, Voided] = {}

    @property
    def pending(self) -> bool:
        """Whether a change waits for a decision."""
        return self._request is not None or bool(self._voids)

    @property
    def roster(self) -> tuple[Seat, ...] | None:
        """Roster to propose, None = as it is."""
        return None if self._request is None else self._request[0].roster

    @property
    def quorum_rule(self) -> str:
        """Quorum to propose, empty = as it is."""
        return "" if self._request is None else self._request[0].quorum_rule

    @property
    def synchro_rule(self) -> str:
        """Rule of the holders of synchronous runs to propose, empty = as it is (P34)."""
        return "" if self._request is None else self._request[0].synchro_rule

    @property
    def voids(self) -> tuple[Voided, ...]:
        """Runs that operators want to be void."""
        return tuple(self._voids.values())

    def request(self, event: ChangeRequested, view: View) -> None:
        """Accept a request, or refuse it with the reason; then nothing changed (definite)."""
        reason = "another change is being decided"
        if event.void is not None:
            reason = "" if len(self._voids) < _MOST_VOIDS else "too many runs are to be void"
        elif self._request is None:
            reason = unsafe(view, event.roster, event.quorum_rule, event.synchro_rule)
        if reason:
            self.refuse(event.ticket, reason)
        elif event.void is not None:
            self._voids[event.ticket] = event.void
        else:
            self._request = (event, view)

    def allow(self, view: View, present: set[str]) -> bool:
        """Return whether the answering nodes could still decide after the waiting change."""
        return self.roster is None or replace(view, roster=self.roster).elects(present)

    def refuse(self, ticket: int, reason: str) -> None:
        """Answer a request that cannot be accepted (definite)."""
        self._outbox.tell(TellChange(ticket=ticket, epoch=None, text=reason))

    def forced(self, ticket: int, view: View) -> None:
        """Answer a forced view; the waiting change does not happen."""
        self.fail("the node was forced to go on alone")
        self._outbox.tell(TellChange(ticket=ticket, epoch=view.epoch))

    def entered(self, view: View) -> None:
        """Answer a request whose outcome the new view shows; otherwise it is proposed again."""
        for void in self.voids:
            if void in view.voided:
                self._end_void(void, TellChange(ticket=0, epoch=view.epoch))
            else:
                reason = f"epoch {view.epoch} came without it: look whether the run waits still"
                self.refuse_void(void, reason)
        if self._request is None:
            return
        event, asked = self._request
        wanted = (
            _places(event.roster),
            event.quorum_rule or asked.quorum_rule,
            event.synchro_rule or asked.synchro_rule,
        )
        if _shape(view) == wanted:
            self._request = None
            self._outbox.tell(TellChange(ticket=event.ticket, epoch=view.epoch))
        elif _shape(view) != _shape(asked):
            what = "quorum" if _places(view.roster) == _places(asked.roster) else "roster"
            self._fail_change(f"the {what} changed meanwhile, in epoch {view.epoch}")

    def fail(self, reason: str) -> None:
        """Answer all pending requests: they did not happen."""
        for void in self.voids:
            self.refuse_void(void, reason)
        self._fail_change(reason)

    def refuse_void(self, void: Voided, reason: str) -> None:
        """Answer the request to void a run, if it was made here: nothing changed."""
        self._end_void(void, TellChange(ticket=0, epoch=None, text=reason))

    def _end_void(self, void: Voided, outcome: TellChange) -> None:
        for ticket in [ticket for ticket, one in self._voids.items() if one == void]:
            del self._voids[ticket]
            self._outbox.tell(replace(outcome, ticket=ticket))

    def _fail_change(self, reason: str) -> None:
        if self._request is not None:
            ticket = self._request[0].ticket
            self._request = None
            self.refuse(ticket, reason)


def unsafe(
    view: View, roster: tuple[Seat, ...], quorum_rule: str = "", synchro_rule: str = ""
) -> str:
    """Return why a roster and quorums (empty = unchanged) must not follow a view; empty = may."""
    names = [seat.node_id for seat in roster]
    if len(set(names)) != len(names):
        return "a node id stands twice in the roster"
    if not any(seat.weight > 0 for seat in roster):
        return "no node would have a vote"
    if any(seat.weight < 0 for seat in roster):
        return "a weight is negative"
    for seat in roster:
        if seat.follower and (seat.weight or seat.witness):
            return f"{seat.node_id} cannot be a follower and vote"
    witnesses = [seat.node_id for seat in roster if seat.witness and seat.node_id in view.members]
    if witnesses:
        return f"{witnesses[0]} is a member and cannot become a witness before it is removed"
    if not any(seat.node_id in view.members and seat.may_be_member for seat in roster):
        return "no member would be left"
    for seat in roster:
        before = view.seat(seat.node_id)
        if before is not None and before.incarnation != seat.incarnation:
            return f"the incarnation of {seat.node_id} is not an operator's to change"
    if quorum_rule and not is_rule(quorum_rule):
        return f"{quorum_rule[:40]!r} is no quorum"
    masters = sum(seat.may_be_member for seat in roster)
    if quorum_rule.isdigit() and int(quorum_rule) > masters:
        return f"a quorum of {quorum_rule} cannot be reached by {masters} masters"
    if synchro_rule and (reason := _no_expression(synchro_rule)):
        return reason
    same = quorum_rule in ("", view.quorum_rule) and synchro_rule in ("", view.synchro_rule)
    if same and _places(roster) == _places(view.roster):
        return f"the {'quorum' if quorum_rule or synchro_rule else 'roster'} is so already"
    return ""


def _no_expression(rule: str) -> str:
    try:
        check_expression(rule)
    except InvalidRequestError as error:
        return error.message
    return ""


def _shape(view: View) -> tuple[object, str, str]:
    """Return the parts of a view that operators may change."""
    return _places(view.roster), view.quorum_rule, view.synchro_rule


def _places(roster: tuple[Seat, ...]) -> tuple[Seat, ...]:
    """Return the roster without incarnations, which change by themselves."""
    return tuple(replace(seat, incarnation=1) for seat in roster)
