"""One core, fed by hand: what directed traces are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from tests.verification.model.disk import CoreDisk

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    PERSISTS,
    Action,
    PersistQueue,
    PersistView,
    SendEpochMessage,
)
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Accepted,
    Decide,
    EpochMessage,
    Flushed,
    MemberState,
    Prepare,
    Probe,
    ProbeAnswer,
    Promise,
    Refusal,
    Standing,
    Vote,
)
from sparktxlog.protocol.messages.events import (
    ChangeRequested,
    EpochMessageReceived,
    Event,
    PayloadArrived,
    Rested,
    RunSubmitted,
    TailReceived,
    Tick,
)
from sparktxlog.protocol.messages.posts import (
    MergeBase,
    Post,
    QueueEntry,
    RunHeader,
    Tail,
    chain_hash,
)
from sparktxlog.protocol.messages.recovery import MasterConfig, first_view
from sparktxlog.protocol.messages.view import Ballot, Seat, View

_Message = TypeVar("_Message")
LOG_ID = "traced"
SECOND_US = 1_000_000


class Lone:
    """A core and its disk; the trace plays all others.

    Args:
        core: The core under test, or a mutant of it.
        own: Its node id.
        votes: Masters and their votes; `w…` are witnesses, `f…` and `g…` followers without any.
        incarnation: Of this node.
        suspect_us: Patience with the others; 0 = endless.
        epoch: Where it begins; 0 = it was told to join.
        follow: Nodes that it follows, if it is a follower.
    """

    def __init__(
        self,
        core: type[Master],
        own: str = "a",
        votes: dict[str, int] | None = None,
        *,
        incarnation: int = 1,
        suspect_us: int = 0,
        epoch: int = 1,
        follow: tuple[str, ...] = (),
    ) -> None:
        votes = votes or {"a": 1, "b": 1, "c": 1}
        roster = tuple(
            Seat(
                node_id=NodeId(name),
                weight=weight,
                witness=name.startswith("w"),
                follower=name.startswith(("f", "g")),
            )
            for name, weight in votes.items()
        )
        members = tuple(seat.node_id for seat in roster if seat.may_be_member)
        self.config = MasterConfig(
            node_id=NodeId(own),
            members=members,
            quorum=1,
            quorum_rule="default",
            roster=roster,
            log_id=LOG_ID,
            incarnation=incarnation,
            epoch=epoch,
            id_window=256,
            max_run=64,
            suspect_timeout_us=suspect_us,
            start_timeout_us=suspect_us,
            follow=tuple(map(NodeId, follow)),
        )
        self.core = core
        self.view = first_view(self.config)
        self.now = 10 * SECOND_US
        #: How far its wall clock is ahead, microseconds.
        self.off_us = 0
        self.facts: dict[bytes, RunFacts] = {}
        self.disk = CoreDisk(own, self.facts)
        self.disk.standings = {name: Standing() for name in votes if name != own}
        self.submits: dict[int, RunSubmitted] = {}
        self.master: Master
        self.start()

    @property
    def wall(self) -> int:
        """Wall clock of this node, microseconds."""
        return self.now + self.off_us

    # -- the core ----------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """Start (again) from the disk."""
        state = self.disk.load(self.config.id_window)
        self.master = self.core(self.config, state, self.now, self.wall)
        return self.feed(Tick())

    def feed(self, *events: Event) -> list[Action]:
        """Let the core handle events; what it wants durable is durable at once, so it may rest."""
        actions = self.master.handle_all(events, self.now, self.wall)
        if self.master.wants_rest:
            actions += self.master.handle_all([Rested()], self.now, self.wall)
        self.disk.write([a for a in actions if isinstance(a, PERSISTS)], self.submits)
        return actions

    def hear(self, *messages: EpochMessage) -> list[Action]:
        """Let messages of an epoch decision arrive together."""
        return self.feed(*(EpochMessageReceived(message=message) for message in messages))

    def wait(self, microseconds: int) -> list[Action]:
        """Let time pass in small steps."""
        actions: list[Action] = []
        for _ in range(10):
            self.now += microseconds // 10
            actions += self.feed(Tick())
        return actions

    def submit(
        self,
        n: int = 1,
        staged_bytes: int = 0,
        session: str | None = None,
        *,
        stands_alone: bool = False,
        **more: Any,
    ) -> list[Action]:
        """Submit a run of its clients; `more` are other facts of it."""
        ticket = len(self.submits) + 1
        ids = b"".join(_id(ticket, index) for index in range(n))
        facts = RunFacts(**{"n": n, "ids": ids, **more})
        digest = ticket.to_bytes(32, "big")
        self.facts[digest] = facts
        event = RunSubmitted(
            ticket=ticket,
            digest=digest,
            size_bytes=100,
            staged_bytes=staged_bytes,
            facts=facts,
            session=session,
            submitted_at=self.wall,
            stands_alone=stands_alone,
        )
        self.submits[ticket] = event
        return self.feed(event)

    # -- what the others say -----------------------------------------------------------------------

    def run_of(self, origin: str, seq: int, ts: int, n: int = 1, **more: Any) -> RunHeader:
        """Return the header of a run that another node stamped; `more` are facts of it."""
        digest = b"%s-%d" % (origin.encode(), seq)
        ids = b"".join(_id(ts, index) for index in range(n))
        facts = RunFacts(**{"n": n, "ids": ids, **more})
        self.facts[digest] = facts
        return RunHeader(
            epoch=1,
            ts=ts,
            origin=NodeId(origin),
            incarnation=1,
            seq=seq,
            n=facts.n,
            digest=digest,
            size_bytes=100,
        )

    def push(self, header: RunHeader) -> list[Action]:
        """Let a pushed run arrive."""
        return self.feed(PayloadArrived(header=header, facts=self.facts[header.digest]))

    def post_of(self, sender: str, counter: int, *headers: RunHeader, last_seq: int = 0) -> Post:
        """Return a post of another node, which hears this one."""
        known = {str(self.config.node_id): self.master.standing.seq_now}
        return Post(
            log_id=LOG_ID,
            epoch=1,
            sender=NodeId(sender),
            round=counter,
            base=MergeBase(),
            counter=counter,
            last_seq=headers[-1].last if headers else last_seq,
            headers=headers,
            known=known,
        )

    def prepare(self, sender: str, number: int) -> Prepare:
        """Return a ballot's start."""
        ballot = Ballot(number=number, node=sender)
        return Prepare(sender=NodeId(sender), incarnation=1, view=self.view, ballot=ballot)

    def accept(self, sender: str, number: int, candidate: View) -> Accept:
        """Return a ballot's end."""
        return Accept(
            sender=NodeId(sender),
            incarnation=1,
            view=self.view,
            ballot=Ballot(number=number, node=sender),
            candidate=candidate,
        )

    def promise(
        self,
        sender: str,
        ballot: Ballot,
        *acquired: RunHeader,
        accepted: Vote | None = None,
        incarnation: int = 1,
    ) -> Promise:
        """Return another member's promise; its queue is empty."""
        state = MemberState(base=MergeBase(), key=(0, 0, "", 0), watermarks={}, acquired=acquired)
        member = sender in self.view.members
        return Promise(
            log_id=LOG_ID,
            epoch=1,
            sender=NodeId(sender),
            incarnation=incarnation,
            ballot=ballot,
            accepted=accepted,
            state=state if member else None,
        )

    def letter_of_decision(self, sender: str, view: View) -> Decide:
        """Return another node's word on a decided view."""
        return Decide(sender=NodeId(sender), view=view)

    def accepted(self, sender: str, ballot: Ballot) -> Accepted:
        """Return another node's vote."""
        return Accepted(log_id=LOG_ID, epoch=1, sender=NodeId(sender), incarnation=1, ballot=ballot)

    def flushed(self, sender: str, ballot: Ballot, missing: int, incarnation: int = 1) -> Flushed:
        """Return how far another member-to-be is."""
        return Flushed(
            log_id=LOG_ID,
            epoch=1,
            sender=NodeId(sender),
            incarnation=incarnation,
            ballot=ballot,
            missing=missing,
        )

    def refusal(self, sender: str, ballot: Ballot, promised: Ballot) -> Refusal:
        """Return another voter's refusal."""
        return Refusal(
            log_id=LOG_ID,
            epoch=1,
            sender=NodeId(sender),
            incarnation=1,
            ballot=ballot,
            promised=promised,
        )

    def answer(self, sender: str, number: int, hears: tuple[str, ...] = ()) -> ProbeAnswer:
        """Return the answer to a probe."""
        return ProbeAnswer(
            log_id=LOG_ID,
            epoch=1,
            sender=NodeId(sender),
            incarnation=1,
            number=number,
            hears=tuple(NodeId(name) for name in hears),
        )


def sent(actions: list[Action], kind: type[_Message]) -> list[_Message]:
    """Return the epoch messages of a kind among actions."""
    messages = [a.message for a in actions if isinstance(a, SendEpochMessage)]
    return [message for message in messages if isinstance(message, kind)]


def views(actions: list[Action]) -> list[View]:
    """Return the views that came into force."""
    return [action.view for action in actions if isinstance(action, PersistView)]


def next_view(view: View, *members: str) -> View:
    """Return a view of the next epoch whose final queue is empty."""
    return replace(view, epoch=view.epoch + 1, members=tuple(NodeId(m) for m in members))


def proposing(node: Lone, number: int = 1) -> Ballot:
    """Let a node propose by itself, behind a ballot of `b` that came to nothing."""
    node.hear(node.prepare("b", number))
    return next_ballot(node)


def next_ballot(node: Lone) -> Ballot:
    """Let a wedged node try by itself."""
    for _ in range(100):
        started = sent(node.wait(SECOND_US // 10), Prepare)
        if started:
            return started[0].ballot
    raise AssertionError("a wedged node does not try by itself")


def changing(
    node: Lone, roster: tuple[Seat, ...], quorum_rule: str = "", synchro_rule: str = ""
) -> Ballot:
    """Let a node propose a roster and quorums, `b` and `c` answering its probes."""
    wanted = ChangeRequested(
        ticket=1, roster=roster, quorum_rule=quorum_rule, synchro_rule=synchro_rule
    )
    probes = sent(node.feed(wanted), Probe)
    assert probes
    actions = node.hear(*(node.answer(peer, probes[-1].number, ("a", "b", "c")) for peer in "bc"))
    started = sent(actions + node.wait(SECOND_US // 10), Prepare)
    assert started, "no ballot is started behind the answers"
    return started[-1].ballot


def entry_of(header: RunHeader, position: int, previous: bytes) -> QueueEntry:
    """Return a queue entry."""
    return QueueEntry(
        position=position,
        header=header,
        previous_hash=previous,
        chain_hash=chain_hash(previous, header),
    )


def tail_of(log_id: str, *entries: QueueEntry, sender: str = "b") -> TailReceived:
    """Return a tail that another node sends."""
    return TailReceived(
        tail=Tail(
            log_id=log_id,
            epoch=1,
            sender=NodeId(sender),
            previous_hash=entries[0].previous_hash,
            entries=entries,
            end=entries[-1].end,
        )
    )


def queued(actions: list[Action]) -> list[PersistQueue]:
    """Return what was appended to the queue."""
    return [action for action in actions if isinstance(action, PersistQueue)]


def _id(ticket: int, index: int) -> bytes:
    return (ticket * 1_000 + index).to_bytes(16, "big")
