"""What a node says in epoch decisions, under its name and the epoch that it is in (P13–P17)."""

from __future__ import annotations

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.outcomes import CurrentEpoch
from sparktxlog.protocol.epoch.proposer import Proposer, Stage
from sparktxlog.protocol.words.actions import SendEpochMessage
from sparktxlog.protocol.words.balloting import (
    Accept,
    Accepted,
    Decide,
    EpochMessage,
    Flush,
    Flushed,
    MemberState,
    Prepare,
    Probe,
    ProbeAnswer,
    Promise,
    Refusal,
    Vote,
)
from sparktxlog.protocol.words.outbox import Outbox
from sparktxlog.protocol.words.recovery import MasterConfig
from sparktxlog.protocol.words.view import Ballot, View, Voided


class Letters:
    """Writes messages, and sends them."""

    __slots__ = ("_current", "_incarnation", "_newest", "_outbox", "_own")

    def __init__(self, current: CurrentEpoch, config: MasterConfig, outbox: Outbox) -> None:
        self._current = current
        self._own = config.node_id
        self._incarnation = config.incarnation
        self._newest = config.newest
        self._outbox = outbox

    def send(self, peer: NodeId, message: EpochMessage) -> None:
        """Send a message to another node."""
        self._outbox.tell(SendEpochMessage(peer=peer, message=message))

    def probe(self, number: int, suspects: tuple[NodeId, ...]) -> Probe:
        """Ask whether somebody is there, and tell whom this node suspects."""
        view = self._current.view
        return Probe(
            lineage=view.lineage, epoch=view.epoch, sender=self._own,
            incarnation=self._incarnation, number=number, suspects=suspects,
        )  # fmt: skip

    def probe_answer(self, number: int, hears: tuple[NodeId, ...]) -> ProbeAnswer:
        """Answer a probe."""
        view = self._current.view
        return ProbeAnswer(
            lineage=view.lineage, epoch=view.epoch, sender=self._own,
            incarnation=self._incarnation, number=number, hears=hears,
        )  # fmt: skip

    def promise(
        self,
        ballot: Ballot,
        accepted: Vote | None,
        state: MemberState | None,
        voids: tuple[Voided, ...],
    ) -> Promise:
        """Promise a ballot, and say what is accepted, held and wished here."""
        view = self._current.view
        return Promise(
            lineage=view.lineage, epoch=view.epoch, sender=self._own,
            incarnation=self._incarnation, ballot=ballot, accepted=accepted, state=state,
            newest=self._newest,
            voids=voids,
        )  # fmt: skip

    def refusal(self, ballot: Ballot, promised: Ballot) -> Refusal:
        """Refuse a ballot for a higher one."""
        view = self._current.view
        return Refusal(
            lineage=view.lineage, epoch=view.epoch, sender=self._own,
            incarnation=self._incarnation, ballot=ballot, promised=promised,
        )  # fmt: skip

    def flushed(self, flush: Flush, missing: int, whole: tuple[bytes, ...]) -> Flushed:
        """Say how far this node is with a flush."""
        return Flushed(
            lineage=flush.view.lineage, epoch=flush.view.epoch, sender=self._own,
            incarnation=self._incarnation, ballot=flush.ballot, missing=missing,
            whole=whole,
        )  # fmt: skip

    def accepted(self, ballot: Ballot) -> Accepted:
        """Vote for the candidate of a ballot."""
        view = self._current.view
        return Accepted(
            lineage=view.lineage, epoch=view.epoch, sender=self._own,
            incarnation=self._incarnation, ballot=ballot,
        )  # fmt: skip

    def decide(self, view: View) -> Decide:
        """Tell a decided view."""
        return Decide(sender=self._own, view=view)

    def view_in_force(self) -> Decide:
        """Tell the view of this node's epoch; what it began with, no member repeats."""
        return self.decide(self._in_force(self._current.view))

    def _in_force(self, view: View) -> View:
        return view.settled if self._current.is_member else view

    def question(self, proposer: Proposer) -> EpochMessage:
        """Ask what an own ballot asks in its present stage."""
        own, incarnation = self._own, self._incarnation
        ballot, candidate = proposer.ballot, proposer.candidate
        view = self._in_force(proposer.view)
        if proposer.stage is Stage.PREPARE:
            return Prepare(sender=own, incarnation=incarnation, view=view, ballot=ballot)
        if proposer.stage is Stage.FLUSH:
            return self.flush(proposer)
        assert candidate is not None
        return Accept(
            sender=own, incarnation=incarnation, view=view, ballot=ballot, candidate=candidate
        )

    def flush(self, proposer: Proposer) -> Flush:
        """Ask for a flush of an own ballot's candidate."""
        assert proposer.candidate is not None
        return Flush(
            sender=self._own, incarnation=self._incarnation,
            view=self._in_force(proposer.view),
            ballot=proposer.ballot, candidate=proposer.candidate, holder=proposer.holder,
        )  # fmt: skip
