"""How one epoch follows another: suspicion, ballots, joining, changes (protocol P11–P22).

It handles the messages of `balloting`.  It yields each change of the epoch or its queue as an
outcome, which the master applies before the method goes on: to freeze, to suspect nodes, to fetch a
final queue, to learn a decided view.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import assert_never

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.changes import Changes
from sparktxlog.protocol.epoch.joining import Admission
from sparktxlog.protocol.epoch.outcomes import (
    CurrentEpoch,
    Learn,
    Outcome,
    Outcomes,
    StartFlush,
    SuspectNodes,
    Wedge,
)
from sparktxlog.protocol.epoch.proposer import Intent, Proposer, Stage
from sparktxlog.protocol.epoch.quiet_moment import Rest
from sparktxlog.protocol.epoch.standing import Standings
from sparktxlog.protocol.epoch.suspicion import Suspicion
from sparktxlog.protocol.epoch.tails import TailRequests
from sparktxlog.protocol.epoch.voter import Voter
from sparktxlog.protocol.messages.actions import Alarm, PersistBallot, SendEpochMessage
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Accepted,
    BallotQuestion,
    BallotState,
    Decide,
    EpochMessage,
    Flush,
    Flushed,
    JoinRequest,
    Prepare,
    Probe,
    ProbeAnswer,
    Promise,
    Refusal,
    TailRequest,
    epoch_of,
)
from sparktxlog.protocol.messages.bounds import misfit
from sparktxlog.protocol.messages.events import earliest
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.messages.versions import Raising
from sparktxlog.protocol.messages.view import NO_MAJORITY, Ballot, Phase, View, same_decision
from sparktxlog.protocol.order.counter import TimestampCounter
from sparktxlog.protocol.order.synchronized import SynchronizedQueue

#: Patience when nobody is ever suspected, microseconds.
_PATIENCE_US = 1_000_000
_MAX_BACKOFF = 8
#: Most warnings about refused messages in one epoch.
_MOST_REFUSED = 64
#: The words of a follower: it has no vote, and makes no promise (P38).
_FOLLOWERS_WORDS = (Probe, ProbeAnswer, JoinRequest, TailRequest)
#: Phases in which a node checks whether an epoch change is needed.
_AT_WORK = (Phase.NORMAL, Phase.SUSPECT)


class Succession:
    """This node's role in epoch decisions.

    Args:
        current: Epoch that this node is in.
        outbox: Takes the actions.
        queue: End of this node's queue.
        counter: What this node stamps and promises.
        standings: Durable state that other nodes showed.
        voter: The durable state of this node's votes.
        now: Shell's time, microseconds.
    """

    def __init__(
        self,
        current: CurrentEpoch,
        config: MasterConfig,
        outbox: Outbox,
        *,
        queue: SynchronizedQueue,
        counter: TimestampCounter,
        standings: Standings,
        voter: Voter,
        now: int,
    ) -> None:
        self._current = current
        self._config = config
        self._outbox = outbox
        self._queue = queue
        self._counter = counter
        self._standings = standings
        self.patience_us = config.suspect_timeout_us or _PATIENCE_US
        self.suspicion = Suspicion(
            config.node_id,
            config.suspect_timeout_us,
            config.start_timeout_us,
            self.patience_us,
            now,
        )
        self._name_carriers()
        self.voter = voter
        self.proposer: Proposer | None = None
        self.admission = Admission(self.patience_us)
        self.changes = Changes(outbox)
        #: Highest ballot number seen for this decision.
        self._seen = voter.promised.number
        #: Members that were silent in a flush of this decision (P16).
        self._excluded: frozenset[str] = frozenset()
        #: Digests of runs that some member holds: they are not void in this epoch (P32).
        self._vetoed: frozenset[bytes] = frozenset()
        self._attempts = 0
        #: When this node may start a ballot, after another one; a wedged node starts it then.
        self._retry_at = now + self.patience_us if voter.promised.number else now
        #: Since when a decision is needed; None = none is.
        self._need_at: int | None = None
        #: When this node starts a needed ballot at the latest.
        self._begin_at = now
        self.rest = Rest(self.patience_us // 4)
        self.raising = Raising(
            config.node_id, config.newest, 8 * self.patience_us, current.view, now
        )
        #: Node → when the view was last sent to it, or its view was asked for.
        self._answered_at: dict[str, int] = {}
        self.tails = TailRequests(outbox, 2 * self.patience_us)
        #: Nodes of which a message was refused in this epoch, and why: each is reported once.
        self._refused: set[tuple[NodeId, str]] = set()

    def _name_carriers(self) -> None:
        """Members carry each other's words; a witness has no queue, and carries none (P39)."""
        members = self._current.view.members if self._config.keeps_heard else ()
        self.suspicion.carriers = frozenset(members)

    def entered(self, now: int) -> None:
        """Begin a new epoch."""
        view = self._current.view
        self._name_carriers()
        self.voter = Voter(view.epoch)
        self.proposer = None
        self._seen = 0
        self._excluded = frozenset()
        self._vetoed = frozenset()
        self._attempts = 0
        self._retry_at = now
        self._need_at = None
        self.rest.entered()
        self.raising.entered(view, now)
        self._refused.clear()
        self.suspicion.forget()
        self.admission.entered(view, now)
        self.changes.entered(view)

    # -- messages ----------------------------------------------------------------------------------

    def on_message(self, message: EpochMessage, now: int) -> Outcomes:
        """Handle a message of any epoch."""
        view = self._current.view
        log_id, epoch = epoch_of(message)
        if wrong := self._misfit(message):
            self.tell_refused(message.sender, wrong)
            return
        self.suspicion.heard(message.sender, now)
        if isinstance(message, Decide):
            if self._follows(message.view):
                yield Learn(self._in_full(message.view))
            else:
                self._check_agrees(message)
            return
        if log_id != view.log_id:
            if view.continues(log_id, epoch):
                self.tell_view(message.sender, now)
            return
        if isinstance(message, BallotQuestion) and epoch > view.epoch:
            yield Learn(message.view)
            view = self._current.view
        if epoch < view.epoch and not (
            # It asks to be admitted as well, and learns the epoch then.
            isinstance(message, TailRequest) and not view.follows(message.sender)
        ):
            self.tell_view(message.sender, now)
        elif epoch > view.epoch:
            self.ask_view(message.sender, now)
            return
        says_more = not isinstance(message, _FOLLOWERS_WORDS)
        if says_more and epoch == view.epoch and view.follows(message.sender):
            what = f"{type(message).__name__}, and is a follower without a vote"
            self.tell_refused(message.sender, what)
            return
        if epoch == view.epoch or isinstance(message, (JoinRequest, TailRequest)):
            yield from self._dispatch(message, now)

    def _misfit(self, message: EpochMessage) -> str:
        """Return what is impossible in a message, empty = nothing (C3)."""
        limit = self._counter.clock.limit if self._current.is_member else None
        accepted = self.voter.accepted
        if isinstance(message, (BallotQuestion, Decide)) and (
            message.view.version > self._config.newest
        ):
            return f"a view of wire version {message.view.version}: install a newer release here"
        if isinstance(message, Accept) and accepted and message.candidate == accepted.view:
            limit = None  # it votes again for what it voted for
        return misfit(message, max(self._seen, self.voter.promised.number), limit)

    def tell_refused(self, node: NodeId, wrong: str) -> None:
        """Warn the operator once about an impossible message of a node."""
        if (node, wrong) not in self._refused and len(self._refused) < _MOST_REFUSED:
            self._refused.add((node, wrong))
            text = f"{node} sent {wrong}: refused"
            self._outbox.tell(Alarm(code="protocol-remote", text=text))

    def _follows(self, view: View) -> bool:
        """Return whether a decided view continues what this node knows (P23)."""
        mine = self._current.view
        if view.log_id == mine.log_id:
            return view.epoch > mine.epoch
        return view.continues(mine.log_id, mine.epoch)

    def _check_agrees(self, decide: Decide) -> None:
        """Halt on another decision for this node's epoch: there are two histories (I5).

        The first epoch is not decided but configured; greetings compare that.
        """
        mine, other = self._current.view, decide.view
        if (other.log_id, other.epoch) != (mine.log_id, mine.epoch):
            return
        if mine.epoch > self._config.epoch and not same_decision(other, mine):
            raise InvariantViolation(
                f"{decide.sender} has another decision for epoch {mine.epoch}: members "
                f"{', '.join(other.members)} after position {other.end.position}, here "
                f"{', '.join(mine.members)} after position {mine.end.position}"
            )

    def _in_full(self, view: View) -> View:
        """Return a decided view with the tail before it, if this node voted for it."""
        vote = self.voter.accepted
        return vote.view if vote is not None and same_decision(vote.view, view) else view

    def tell_view(self, node: NodeId, now: int) -> None:
        """Send this node's view to a node in an older epoch that can read it."""
        view = self._current.told_view
        if self.raising.reads(node, view) and self._may_answer(node, now):
            self._outbox.send(node, self._decide(view))

    def ask_view(self, node: NodeId, now: int) -> None:
        """Ask a node in a later epoch for its view: it answers messages of older epochs."""
        if self._may_answer(node, now):
            self._probe(node, ())

    def _may_answer(self, node: NodeId, now: int) -> bool:
        """Bound how often one node is answered: duplicates of old messages may be many."""
        at = self._answered_at.get(node)
        if at is not None and now < at + self.patience_us // 8:
            return False
        self._answered_at[node] = now
        return True

    def _probe(self, node: NodeId, suspects: tuple[NodeId, ...]) -> None:
        probe = Probe(**self._current.head, number=self.suspicion.number, suspects=suspects)
        self._outbox.send(node, probe)

    def _dispatch(self, message: EpochMessage, now: int) -> Outcomes:
        match message:
            case Probe():
                self._on_probe(message, now)
            case ProbeAnswer():
                view = self._current.view
                if view.is_current(message.sender, message.incarnation):
                    # Nobody is kept because only a follower hears it.
                    hears = () if view.follows(message.sender) else message.hears
                    self.suspicion.answered(message.sender, message.number, hears, now)
            case Prepare():
                yield from self._on_prepare(message, now)
            case Promise():
                self._on_promise(message, now)
            case Refusal():
                self._on_refusal(message, now)
            case Flush():
                yield from self._on_flush(message, now)
            case Flushed():
                if self.proposer and self.proposer.is_to_be(message):
                    yield from self._flushed(
                        message.sender, message.ballot, message.missing, now, message.whole
                    )
            case Accept():
                yield from self._on_accept(message, now)
            case Accepted():
                yield from self._on_accepted(message, now)
            case JoinRequest():
                self._on_join(message, now)
            case TailRequest():
                self.tails.put(message, now)
            case Decide():
                raise AssertionError("handled before")
            case _:
                assert_never(message)

    def _on_join(self, request: JoinRequest, now: int) -> None:
        """Accept a request to join, unless no node could use the joiner's promise (C3)."""
        current, counter, queue = self._current, self._counter, self._queue
        if not current.is_member:
            return None  # it admits nobody, and a witness keeps no time of its own
        lead = request.counter - counter.clock.limit
        if lead > 0:
            return self.tell_refused(
                request.sender,
                f"a wish to join with timestamps {lead // 3_600_000_000} h later than may be; set "
                "its clock, and if it gave such timestamps, let `sparktxlog peer quarantine "
                "--rejoin` bring it back",
            )
        return self.admission.requested(request, queue.base, queue.key[1], counter.value, now)

    def _on_probe(self, probe: Probe, now: int) -> None:
        # A complaint: this node tries the suspects itself.  A follower has none.
        if not self._current.view.follows(probe.sender):
            self.suspicion.complaint(probe.suspects, now)
            self.suspicion.missed_by(probe.sender, probe.suspects, now)
        hears = self.suspicion.hears(now)
        answer = ProbeAnswer(**self._current.head, number=probe.number, hears=hears)
        self._outbox.send(probe.sender, answer)

    # -- voting ------------------------------------------------------------------------------------

    @property
    def _eligible(self) -> bool:
        """Whether this node may vote in its view: an amnesiac may not (P21), nor a follower."""
        view, own = self._current.view, self._config
        return view.is_current(own.node_id, own.incarnation) and not view.follows(own.node_id)

    def _on_prepare(self, prepare: Prepare, now: int) -> Outcomes:
        if not self._eligible:
            return
        self._note_ballot(prepare.ballot, now)
        if self._promise(prepare.ballot):
            promise = yield from self._promised(prepare.ballot)
            self._outbox.send(prepare.sender, promise)
        else:
            self._refuse(prepare.sender, prepare.ballot)

    def _promise(self, ballot: Ballot) -> bool:
        """Promise a ballot durably, or return False (P14)."""
        before = self.voter.state
        if not self.voter.promise(ballot):
            return False
        self._keep_vote(before)
        return True

    def _keep_vote(self, before: BallotState) -> None:
        if self.voter.state != before:
            self._outbox.persist(PersistBallot(state=self.voter.state))

    def _promised(self, ballot: Ballot) -> Generator[Outcome, None, Promise]:
        """Wedge, and return what to answer (P14)."""
        current = self._current
        if current.is_member:
            yield Wedge(f"{ballot.node} decides on the epoch after {current.view.epoch}")
        return Promise(
            **current.head,
            ballot=ballot,
            accepted=self.voter.accepted,
            state=current.state(),
            newest=self._config.newest,
            voids=self.changes.voids,
        )

    def _refuse(self, node: NodeId, ballot: Ballot) -> None:
        refusal = Refusal(**self._current.head, ballot=ballot, promised=self.voter.promised)
        self._outbox.send(node, refusal)

    def _note_ballot(self, ballot: Ballot, now: int) -> None:
        """Give a running ballot time, and remember its number."""
        self._seen = max(self._seen, ballot.number)
        self._plan_retry(now)
        if self.proposer is not None and self.proposer.ballot < ballot:
            self.proposer = None

    def _plan_retry(self, now: int) -> None:
        self._retry_at = now + 2 * self.patience_us + self._rank(now) * self.patience_us // 2

    def _rank(self, now: int) -> int:
        """Return how many members try before this one; all if it misses one that others hear."""
        view = self._current.view
        carried = self.suspicion.carried(view.members, now)
        return len(view.members) if carried else view.rank(self._config.node_id)

    def _on_flush(self, flush: Flush, now: int) -> Outcomes:
        self._note_ballot(flush.ballot, now)
        if flush.ballot < self.voter.promised:
            self._refuse(flush.sender, flush.ballot)
        else:
            self.admission.trying(self._current.view.joining(flush.candidate))
            yield StartFlush(flush)

    def _on_accept(self, accept: Accept, now: int) -> Outcomes:
        if not self._eligible:
            return
        self._note_ballot(accept.ballot, now)
        if (yield from self._accept(accept.ballot, accept.candidate)):
            answer = Accepted(**self._current.head, ballot=accept.ballot)
            self._outbox.send(accept.sender, answer)
        else:
            self._refuse(accept.sender, accept.ballot)

    def _accept(self, ballot: Ballot, candidate: View) -> Generator[Outcome, None, bool]:
        before = self.voter.state
        if not self.voter.accept(ballot, candidate):
            return False
        if self._current.is_member:
            yield Wedge(f"{ballot.node} decides on epoch {candidate.epoch}")
        self._keep_vote(before)
        return True

    # -- proposing ---------------------------------------------------------------------------------

    def _propose(self, intent: Intent, now: int) -> Outcomes:
        """Start a ballot: stop ordering, so that nothing follows the others' promises, and ask."""
        view = self._current.view
        self._seen, self._attempts = self._seen + 1, self._attempts + 1
        ballot = Ballot(number=self._seen, node=self._config.node_id)
        yield Wedge(f"{ballot.node} decides on the epoch after {view.epoch}")
        latest = self._counter.clock.limit
        self.proposer = Proposer(view, ballot, intent, now, self.patience_us, latest)
        self._ask(self.proposer)
        # The own promise becomes durable while the question travels.  If a crash comes before, the
        # number may be used again: nobody was asked for more than promises, and these stay true.
        if self._promise(ballot):
            yield from self._drive(self.proposer, now)
        else:
            self._give_up(now)

    def _ask(self, proposer: Proposer) -> None:
        """Send this stage's question to all nodes that have not answered."""
        done_too = proposer.stage is Stage.FLUSH  # else they think that it got stuck
        self._ask_of(proposer, proposer.asked() if done_too else proposer.unanswered())

    def _ask_of(self, proposer: Proposer, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            if node != self._config.node_id:
                question = self._question(proposer)
                self._outbox.tell_first(SendEpochMessage(peer=node, message=question))

    def _question(self, proposer: Proposer) -> EpochMessage:
        """Return the question of an own ballot in its present stage."""
        own, view = self._config, self._current.told_view
        if proposer.stage is Stage.FLUSH:
            return self._flush(proposer)
        if proposer.stage is Stage.PREPARE:
            return Prepare(
                sender=own.node_id,
                incarnation=own.incarnation,
                view=view,
                ballot=proposer.ballot,
            )
        assert proposer.candidate is not None
        return Accept(
            sender=own.node_id,
            incarnation=own.incarnation,
            view=view,
            ballot=proposer.ballot,
            candidate=proposer.candidate,
        )

    def _flush(self, proposer: Proposer) -> Flush:
        """Ask for a flush of an own ballot's candidate."""
        assert proposer.candidate is not None
        return Flush(
            sender=self._config.node_id,
            incarnation=self._config.incarnation,
            view=self._current.told_view,
            ballot=proposer.ballot,
            candidate=proposer.candidate,
            holder=proposer.holder,
        )

    def _decide(self, view: View) -> Decide:
        return Decide(sender=self._config.node_id, view=view)

    def _on_promise(self, promise: Promise, now: int) -> None:
        proposer = self.proposer
        if proposer is None or promise.ballot != proposer.ballot:
            return
        if not self._current.view.is_current(promise.sender, promise.incarnation):
            return
        if proposer.stage is Stage.PREPARE:
            proposer.take_promise(promise)
            if proposer.is_late(promise.sender):
                wrong = "a promise with runs stamped later than may be: it votes only"
                self.tell_refused(promise.sender, wrong)

    def _on_refusal(self, refusal: Refusal, now: int) -> None:
        self._seen = max(self._seen, refusal.promised.number)
        if self.proposer is not None and refusal.ballot == self.proposer.ballot:
            self._give_up(now)

    def _give_up(self, now: int) -> None:
        """End the own attempt; the next one comes later, after those of nodes with precedence."""
        self.proposer = None
        waits = 1 + self._rank(now)
        pause = self.patience_us // 4 * waits * min(1 << self._attempts, _MAX_BACKOFF)
        self._retry_at = now + pause

    def tell_flushed(
        self, flush: Flush, missing: int, whole: tuple[bytes, ...], now: int
    ) -> Outcomes:
        """Answer a flush: how many runs this node lacks, and which void ones it holds."""
        own = self._config.node_id
        if flush.sender == own:
            yield from self._flushed(own, flush.ballot, missing, now, whole)
        else:
            head, ballot = self._current.head, flush.ballot
            answer = Flushed(**head, ballot=ballot, missing=missing, whole=whole)
            self._outbox.send(flush.sender, answer)

    def _flushed(
        self, node: NodeId, ballot: Ballot, missing: int, now: int, whole: tuple[bytes, ...]
    ) -> Outcomes:
        """Note how far a member-to-be is with the final queue (P16), and what it may veto (P32)."""
        proposer = self.proposer
        if proposer is None or ballot != proposer.ballot or proposer.stage is not Stage.FLUSH:
            return
        if whole:
            self._vetoed |= set(whole)
            for void in proposer.voids:
                if void.digest in whole:
                    reason = f"{node} holds the run: it can be delivered"
                    self.changes.refuse_void(void, reason)
            self._give_up(now)
        elif proposer.take_flushed(node, missing, now):
            yield from self._start_accept(proposer, now)

    def _start_accept(self, proposer: Proposer, now: int) -> Outcomes:
        """Ask for votes, and vote: the own one becomes durable while the question travels."""
        assert proposer.candidate is not None
        self._ask(proposer)
        own = self._config.node_id
        voted = yield from self._accept(proposer.ballot, proposer.candidate)
        if voted and self._current.view.weight(own) and proposer.take_accepted(own):
            yield from self._decided(proposer, now)

    def _on_accepted(self, accepted: Accepted, now: int) -> Outcomes:
        proposer = self.proposer
        if proposer is None or accepted.ballot != proposer.ballot:
            return
        if not self._current.view.is_current(accepted.sender, accepted.incarnation):
            return
        if proposer.stage is Stage.ACCEPT and proposer.take_accepted(accepted.sender):
            yield from self._decided(proposer, now)

    def _decided(self, proposer: Proposer, now: int) -> Outcomes:
        """Send the decision to all nodes that can read it, after the votes, and adopt it.

        An older release would lose what it does not know of the view (P31).  It has no vote and is
        no member, and hears of the view once it is upgraded.
        """
        candidate, own = proposer.candidate, self._config.node_id
        assert candidate is not None
        receivers = {seat.node_id for seat in (*proposer.view.roster, *candidate.roster)}
        for node in sorted(
            node for node in receivers - {own} if self.raising.reads(node, candidate)
        ):
            # A node that voted for it has it.
            decide = self._decide(candidate.settled if node in proposer.accepted else candidate)
            self._outbox.tell_first(SendEpochMessage(peer=node, message=decide))
            self._answered_at[node] = now  # votes on their way need no answer
        self.proposer = None
        yield Learn(candidate)

    def _drive(self, proposer: Proposer, now: int) -> Outcomes:
        """Advance the own ballot as far as answers and time allow."""
        if proposer.stage is Stage.PREPARE and proposer.is_ripe(self._config.node_id, now):
            # What came outside its streams since it asked is in the own promise, too.
            promise = yield from self._promised(proposer.ballot)
            proposer.take_promise(promise)
            chosen = proposer.choose(now)
            for node in sorted(proposer.outvoted):
                wrong = "a promise with another run than more members hold: it votes only"
                self.tell_refused(node, wrong)
            if chosen:
                for void, reason in proposer.objections:
                    self.changes.refuse_void(void, reason)
                yield from self._chosen(proposer, now)
                return
        if proposer.failed(now):
            silent = proposer.silent(now)
            self._excluded |= silent
            joiners = silent.intersection(proposer.intent.joiners)
            self.admission.bar(joiners, now)
            self._give_up(now)
            if joiners and joiners == silent:
                self._retry_at = now  # nobody else is in the way: the members have waited enough
        elif now >= proposer.repeat_at:
            proposer.repeat_at = now + self.patience_us // 4
            self._ask(proposer)
            if proposer.stage is Stage.FLUSH and proposer.voids:
                yield StartFlush(self._flush(proposer))  # it looks at its files

    def asked(self, now: int) -> None:
        """Restart the ballot for a void run: the present one may wait for that run (P32)."""
        if self.changes.voids and self._current.phase is Phase.WEDGED:
            self.proposer, self._retry_at = None, now

    def _chosen(self, proposer: Proposer, now: int) -> Outcomes:
        """Continue with the value; that of a vote was flushed in its own ballot (P16)."""
        if proposer.stage is Stage.ACCEPT:
            yield from self._start_accept(proposer, now)
            return
        assert proposer.candidate is not None
        self.admission.trying(self._current.view.joining(proposer.candidate))
        if self._config.node_id in proposer.unanswered():
            # What it lacked when it promised may have come since: then nobody need be asked.
            yield StartFlush(self._flush(proposer))
        if self.proposer is proposer and proposer.stage is Stage.FLUSH:
            self._ask_of(proposer, proposer.unanswered())

    # -- once per batch ----------------------------------------------------------------------------

    def work(self, now: int) -> Outcomes:
        """Do what is due: advance the own ballot, retry, or check whether one is needed."""
        phase, self.rest.wanted = self._current.phase, False
        if self.proposer is not None:
            yield from self._drive(self.proposer, now)
        elif phase is Phase.WEDGED:
            if now >= self._retry_at:
                overdue = self.suspicion.overdue(self._current.view.members, now)
                ready = self._ready(now)
                # Nobody answers probes now, so nobody knows whether a change of the roster would
                # leave a majority: it is proposed again in the next epoch.
                intent = self._intent(overdue, ready, now)
                intent = replace(intent, roster=None, quorum_rule="", synchro_rule="")
                yield from self._propose(intent, now)
        elif phase in _AT_WORK:
            yield from self._consider(now)
        self.rest.over()

    def _consider(self, now: int) -> Outcomes:
        """Start a ballot if it is needed and safe, and no node with precedence does (P13)."""
        view, suspicion = self._current.view, self.suspicion
        suspects = suspicion.suspects(view.members, now)
        if bool(suspects) is not (self._current.phase is Phase.SUSPECT):
            yield SuspectNodes(suspects)
        ready, leaving = self._ready(now), self._leaving()
        raising = self.raising.wanted and now >= self.raising.at
        if not (suspects or ready or leaving or self.changes.pending or raising):
            self._need_at = None
            suspicion.calm(now)
            return
        if now >= suspicion.probe_at:
            suspicion.next_probe(now)
            for seat in view.roster:
                if seat.node_id != self._config.node_id:
                    self._probe(seat.node_id, suspects)
        overdue = suspicion.overdue(view.members, now) if self._config.auto_evict else frozenset()
        intent = self._intent(overdue, ready, now)
        raising = self.raising.may(suspicion.responders(now), now)
        if not (overdue or leaving or intent.joiners or self.changes.pending or raising):
            self._need_at = None
            return
        if self._need_at is None:
            self._need_at = now
        rank = 0 if self.changes.pending else view.rank(self._config.node_id, (*suspects, *leaving))
        self._begin_at = max(self._need_at + rank * self.patience_us // 4, self._retry_at)
        if now >= self._begin_at and not overdue:
            self._begin_at = self.rest.until(self._current.ordering.busy, now)
        if now < self._begin_at:
            return
        unheard, carried = self._unheard(now), suspicion.carried(view.members, now)
        roster = view.roster if intent.roster is None else intent.roster
        there = suspicion.responders(now) - (overdue - suspicion.useless(overdue, now))
        if carried:
            self._give_up_change(
                now, 4, f"{', '.join(carried)} is heard by others and not here: ask one of those"
            )
        elif not intent.guarded(view, there, roster):
            self._give_up_change(now, 4, "no set of the eviction guard answers as a whole")
        elif unheard:
            self._give_up_change(
                now, 1, f"{', '.join(unheard)} was never heard: start it, or remove its place"
            )
        elif not suspicion.allows(
            view, overdue | leaving, now, voting=self._left_out(overdue, now)
        ):
            self._give_up_change(now, 4, "too few nodes answer to decide it")
        elif not self.changes.allow(view, suspicion.responders(now)):
            self._give_up_change(now, 1, NO_MAJORITY)
        else:
            yield from self._propose(intent, now)

    def _ready(self, now: int) -> dict[NodeId, int]:
        """Return the nodes that may be admitted: node → incarnation."""
        ready, spared = self.admission.ready(self._current.view, now), self._current.spared()
        return {node: ready[node] for node in ready if node not in spared}

    def _leaving(self) -> frozenset[NodeId]:
        """Return the members that are left out although they answer: their disks are slow (P37)."""
        leaving = self._current.spared().intersection(self._current.view.members)
        return leaving if self._config.auto_evict else frozenset()

    def _left_out(self, overdue: frozenset[NodeId], now: int) -> frozenset[NodeId]:
        """Return the members left out that vote on it: of no use, and an operator acts on them.

        Without an operator its votes decide nothing: of two it may be the one that is right (C3).
        """
        return self.suspicion.useless(overdue, now) if self.changes.pending else frozenset()

    def _unheard(self, now: int) -> list[NodeId]:
        """Return the places of the configured first epoch that keep the log from going on (P29).

        A node that was never heard may be the one that has the log, and this node one that lost its
        disk.  Only an operator can say that it is not so, by taking its place away; or the node
        itself can, if it asks to be admitted again, and has no queue either.
        """
        position = self._queue.position
        view, roster = self._current.view, self.changes.roster
        if view.epoch != self._config.epoch:
            return []
        kept = {seat.node_id for seat in (view.roster if roster is None else roster)}
        return [
            seat.node_id
            for seat in view.roster
            if seat.node_id != self._config.node_id
            and not seat.follower
            and seat.node_id in kept
            and not self._standings.heard(seat.node_id, view.epoch, position)
            and not self.admission.has_no_older_log(seat.node_id, view, position, now)
        ]

    def _give_up_change(self, now: int, patience: int, reason: str) -> None:
        """Answer a change that cannot be decided, after answers had time to arrive."""
        if self._need_at is not None and now >= self._need_at + patience * self.patience_us:
            self.changes.fail(reason)
            self._need_at = None

    def _intent(self, overdue: frozenset[NodeId], ready: dict[NodeId, int], now: int) -> Intent:
        # A member that asks to join returns without its memory: nothing of it is waited for.
        leaving = self._leaving()
        present = set(self._current.view.members) - overdue - leaving - ready.keys()
        heard = self.suspicion.heard_by_all(present, now) if ready else set[str]()
        # It answers, and would be taken for a member that is there.
        evicts = self._config.auto_evict
        useless = self.suspicion.useless(overdue, now) if evicts else frozenset[NodeId]()
        return Intent(
            absent=frozenset(overdue | leaving | ready.keys()),
            excluded=self._excluded | useless | leaving,
            joiners={n: i for n, i in ready.items() if n in heard},
            roster=self.changes.roster,
            quorum_rule=self.changes.quorum_rule,
            synchro_rule=self.changes.synchro_rule,
            vetoed=self._vetoed,
            raises=self.raising.wanted,
            aside=leaving,
            guard=self._config.guard,
        )

    def next_deadline(self, now: int) -> int | None:
        """Return when something is due, None = nothing."""
        if self.proposer is not None:
            return self.proposer.next_deadline()
        phase, view = self._current.phase, self._current.view
        if phase is Phase.WEDGED:
            return self._retry_at
        if phase not in _AT_WORK:
            return None
        times = [self.suspicion.next_deadline(view.members, now)]
        raising = self.raising.wanted
        if raising:
            times.append(self.raising.at)
        if self.changes.pending or raising or self._leaving() or self._ready(now):
            times.append(self.suspicion.probe_at)
        if self._need_at is not None:
            times.append(self._begin_at)
        return earliest(times, after=now)
