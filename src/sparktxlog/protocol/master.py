"""The core of a master, without I/O: events in, actions out (docs/protocol.md).

    actions = master.handle_all(events, now)    # or handle(event, now) for one
    deadline = master.next_deadline()           # then a Tick, at that time or later

Rules: no clock, no random numbers, no I/O.  Time is an argument, in microseconds: the node's steady
time, which decides what is due, and the wall clock, which only timestamps follow.  Everything to
keep, send or report is returned as an action.

The returned actions are one first-in-first-out stream.  All `Persist…` of a batch come before
everything else in it, so the executor can make a batch durable with one fsync.  The core counts a
persist as done as soon as it is returned, because messages are always sent after it.

`Ordering` is the normal operation within one epoch, `Succession` the way from one epoch to the
next.  The succession only reads the epoch.  It yields outcomes, and `Master._apply` applies them in
one `match`: to freeze, to suspect nodes, to flush, to learn a decided view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from sparktxlog.errors import (
    QUARANTINE_HINT,
    ContradictionError,
    InvariantViolation,
    OtherQueueError,
)
from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import CommitTables
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import Acceptance
from sparktxlog.protocol.epoch.following import Following
from sparktxlog.protocol.epoch.forcing import forced_view
from sparktxlog.protocol.epoch.outcomes import (
    CurrentEpoch,
    Learn,
    Outcomes,
    StartFlush,
    SuspectNodes,
    Wedge,
)
from sparktxlog.protocol.epoch.pulling import Pulling
from sparktxlog.protocol.epoch.standing import Standings, check_incarnation
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.epoch.voiding import Inspection
from sparktxlog.protocol.epoch.voter import Voter
from sparktxlog.protocol.messages.actions import (
    Action,
    Alarm,
    PersistReservation,
    PersistRestamp,
    PersistStanding,
    PersistView,
    TellDoubt,
    TellPhase,
)
from sparktxlog.protocol.messages.balloting import (
    Decide,
    EpochMessage,
    Flush,
    MemberState,
    Standing,
)
from sparktxlog.protocol.messages.events import (
    AnnouncementReceived,
    ChangeRequested,
    Contradicted,
    EpochMessageReceived,
    Event,
    FetchFailed,
    FilesHeld,
    FilesLost,
    ForceRequested,
    Greeted,
    LinkChanged,
    PayloadArrived,
    PostReceived,
    Rested,
    RunSubmitted,
    StoodAside,
    SynchroTimeoutSet,
    TailReceived,
    Tick,
    earliest,
)
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.posts import MergeBase, Post, RunHeader
from sparktxlog.protocol.messages.recovery import (
    MasterConfig,
    RecoveredRun,
    RecoveredState,
    first_view,
)
from sparktxlog.protocol.messages.view import TAKES_SUBMITS, TRANSITIONS, Ballot, Phase, View
from sparktxlog.protocol.order.counter import TimestampCounter
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.status import Awaited, AwaitReason, IncomingRun, MasterStatus
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.protocol.order.unstamped import Prefetching, Staging, is_late, recovered_submit


class Master:
    """One node's role in the sync protocol.

    Args:
        config: Settings; those marked (*) must be equal on all members.
        state: What the journal kept; `RecoveredState()` at the very first start.
        now: Shell's time, microseconds.
        wall: Wall clock, microseconds since 1970 UTC; None = the same as `now`.

    Raises:
        InvariantViolation: The recovered state contradicts itself: the node must not start.

    After calling: hand `next_deadline()` to a timer; the first one is due at once.

    **Source:** protocol P1–P23, P25b, P25c, C1, C3, S1.
    """

    def __init__(
        self, config: MasterConfig, state: RecoveredState, now: int, wall: int | None = None
    ) -> None:
        self._config = config
        self._now = now
        view = state.view or first_view(config)
        voter = Voter(view.epoch, state.ballot)
        self._current = CurrentEpoch(config, view, voter.promised)
        self._phase_at = now
        self._halted = ""  # or why this node has halted (P10)
        self._outbox = Outbox()
        self._queue = SynchronizedQueue(config, state)
        floor = max(
            (r.header.ts for r in state.incoming if not self._is_former(r.header)), default=0
        )
        self._counter = TimestampCounter(
            reserved=state.reserved,
            floor=max(floor, state.base_key[1]),
            reserve_us=config.reserve_us,
            lead_us=config.max_counter_lead_us,
            now=now,
            wall=now if wall is None else wall,
        )
        self._start = state.reserved
        self._prefetching = Prefetching(
            limit=config.max_fetches,
            retry_us=config.retry_us,
            keep_us=2 * config.stage_timeout_us,
        )
        self._staging = Staging(config.stage_timeout_us, config.synchro_timeout_us)
        for waiting in state.announcements:
            submit = recovered_submit(waiting)
            late = is_late(submit, config.inline_limit_bytes, view.quorum)
            self._staging.add(submit, now, self._counter.clock.wall, late=late)
        self._standings = Standings(state.standings)
        #: Node → incarnation whose messages no longer count, and why (P10).
        self._doubted: dict[str, tuple[int, str]] = {}
        self._differing: set[str] = set()  # members with another queue than this node's (I1)
        self._succession = Succession(
            self._current,
            config,
            self._outbox,
            queue=self._queue,
            counter=self._counter,
            standings=self._standings,
            voter=voter,
            now=now,
        )
        self._following = Following(
            self._current, config, self._outbox, self._queue, self._succession.patience_us, now
        )
        self._pulling = Pulling(
            self._current, config, self._outbox, self._queue, self._succession.patience_us, now
        )
        #: A candidate to hold durably, and the decided view to adopt when it is held.
        self._flush: Flush | None = None
        self._decided: View | None = None
        self._inspection = Inspection(self._outbox)
        #: True: something arrived that a flush or a decided view may have waited for.
        self._progress = False
        self._current.ordering = self._new_ordering(self._restamp(list(state.incoming)), now)
        #: What this node loaded at its start (P30).
        self._standing = self._loaded(voter)

    def _is_former(self, header: RunHeader) -> bool:
        """Return whether a run is of a former incarnation of this node, which has no promises."""
        own = self._config
        return header.origin == own.node_id and header.incarnation != own.incarnation

    def _loaded(self, voter: Voter) -> Standing:
        seq, held = self._ordering.loaded()
        vote = voter.accepted
        return Standing(
            incarnation=self.incarnation,
            start=self._config.start,
            boot=self._config.boot,
            epoch=self.view.epoch,
            promised=voter.promised,
            accepted=Ballot() if vote is None else vote.ballot,
            counter=self._start,
            seq=seq,
            position=self._queue.position,
            held=held,
        )

    @property
    def _ordering(self) -> Ordering:
        return self._current.ordering

    # ------------------------------------------------------------------ the face

    @property
    def tables(self) -> Mapping[str, TableDefinition]:
        """Row tables at this node's position, by name."""
        return self._queue.effects.tables

    def writes(self, table: str) -> TableWrites:
        """Return what was written to a table up to this node's position."""
        return self._queue.writes.of(table)

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """Prepared transactions at this node's position that nobody decided yet (P35)."""
        return self._queue.marking.undecided

    @property
    def commit_tables(self) -> CommitTables:
        """Commit tables at this node's position (P36)."""
        return self._queue.commits.tables

    @property
    def base(self) -> MergeBase:
        """Merge base: end of the synchronized queue."""
        return self._queue.base

    @property
    def next_stamp(self) -> int:
        """Least timestamp that this node would give or promise."""
        return max(self._counter.value, self._counter.log_time)

    @property
    def view(self) -> View:
        """View of this node's epoch."""
        return self._current.view

    @property
    def accepted(self) -> View | None:
        """Value that this node accepted for the next epoch, None = none (P17)."""
        return vote.view if (vote := self._succession.voter.accepted) else None

    @property
    def phase(self) -> Phase:
        """The phase of this node."""
        return self._current.phase

    @property
    def incarnation(self) -> int:
        """Incarnation of this node; a lost disk costs one (P21)."""
        return self._config.incarnation

    @property
    def pulling(self) -> Pulling | None:
        """How this follower gets the queue; None = it is no follower (P38)."""
        return self._pulling if self.phase is Phase.FOLLOWING else None

    def locate(self, transaction_id: bytes) -> int | None:
        """Return the position of a transaction id, None if not among the last `id_window`."""
        return self._queue.effects.locate(transaction_id)

    def unstamped(self, transaction_id: bytes) -> bytes | None:
        """Return the digest of the own unstamped run that has a transaction, None if none has."""
        return self._staging.digest_of(transaction_id)

    def acceptance(self, ids: bytes) -> Acceptance:
        """Return what memory knows of ids."""
        queue = self._queue
        return Acceptance(
            position=queue.position, ts=queue.key[1], repeats=tuple(queue.effects.locate_all(ids))
        )

    def handle(self, event: Event, now: int, wall: int | None = None) -> list[Action]:
        """Handle one event; see `handle_all`."""
        return self.handle_all((event,), now, wall)

    def handle_all(
        self, events: Sequence[Event], now: int, wall: int | None = None
    ) -> list[Action]:
        """Handle events in order and return what to do, in execution order.

        Args:
            events: Authenticated and decoded; at most one batch of a busy moment.
            now: Shell's time, microseconds; a value below the last one counts as the last one.
            wall: Wall clock, microseconds since 1970 UTC, right or wrong; None = the same as `now`.
        """
        self._now = now = max(now, self._now)
        was_set = self._counter.clock.read(now, now if wall is None else wall)
        self._ordering.look_at_clock(was_set=was_set)
        try:
            for event in events:
                if self._halted:
                    self._refuse_halted(event)
                else:
                    self._dispatch(event, now)
            if not self._halted:
                self._work(now)
        except InvariantViolation as error:
            self._halt(error.code, str(error))
        return self._outbox.take()

    @property
    def wants_rest(self) -> bool:
        """Whether the core waits for `Rested`, before all members stop ordering for a moment."""
        return self._succession.rest.wanted and not self._halted

    def next_deadline(self) -> int | None:
        """Return when a Tick is due, shell's time; None once halted."""
        if self._halted:
            return None
        times = [self._ordering.next_deadline(), self._succession.next_deadline(self._now)]
        times.append(self._pulling.next_deadline())
        if self._is_following:
            times.append(self._following.request_at)
        return earliest(times)

    def member_state(self) -> MemberState:
        """Return what this member holds, for its PROMISE (P14)."""
        return self._ordering.member_state()

    def status(self) -> MasterStatus:
        """Return the state for display; costs O(members + unstamped runs)."""
        status = self._ordering.status(self._now)
        return replace(
            status,
            waiting_for=(*status.waiting_for, *self._awaited_holders())
            if self._current.is_member
            else self._awaited_admission(),
            halted=self._halted,
            phase=self.phase,
            log_id=self.view.log_id,
            members=self.view.members,
            roster=self.view.roster,
            quorum=self.view.quorum,
            suspects=self._succession.suspicion.suspects(self.view.members, self._now),
        )

    def _awaited_holders(self) -> tuple[Awaited, ...]:
        """Return the places without a member that synchronous runs wait for (P34)."""
        view, waiting = self.view, self._staging.synchronous()
        since = [run.submitted_at for run in waiting if run.holders > len(view.members)]
        return tuple(
            Awaited(peer=seat.node_id, why=AwaitReason.COPY, since=min(since), key=None)
            for seat in view.roster
            if since and not seat.witness and seat.node_id not in view.members
        )

    def _awaited_admission(self) -> tuple[Awaited, ...]:
        """Return the nodes that a joining node waits for: any of the members."""
        if self.phase is not Phase.JOINING:
            return ()
        return tuple(
            Awaited(peer=member, why=AwaitReason.ADMISSION, since=self._phase_at, key=None)
            for member in self.view.members
            if member != self._config.node_id
        )

    def incoming(self, limit: int = 100) -> list[IncomingRun]:
        """Return the first runs of the incoming queue in agreed order, and what each waits for."""
        return self._ordering.incoming(limit)

    # ------------------------------------------------------------------ events

    def _dispatch(self, event: Event, now: int) -> None:
        ordering = self._ordering
        match event:
            case PostReceived() | PayloadArrived():
                self._take_in(event, now)
            case RunSubmitted():
                self._on_submit(event, now)
            case Tick():
                pass
            case Rested():
                self._succession.rest.here = True
            case StoodAside():
                self._current.aside = event.nodes
            case FetchFailed():
                ordering.on_fetch_failed(event.digest, now)
            case FilesHeld() | FilesLost():
                self._inspection.found(event.digest, whole=isinstance(event, FilesHeld))
                self._progress = True
                ordering.on_files(event, now)
            case TailReceived():
                if event.tail.log_id in self._log_ids:
                    ordering.on_tail(event.tail, now)
                    self._following.source = event.tail.sender
                    self._pulling.heard(event.tail.sender, now, event.tail.end)
                    self._progress = True
            case AnnouncementReceived():
                ordering.on_announcement(event.announcement, now)
            case LinkChanged():
                self._succession.suspicion.link(event.peer, up=event.up, now=now)
                self._succession.raising.linked(event.peer, event.newest if event.up else 0)
                self._pulling.link(event.peer, up=event.up, now=now)
                ordering.on_link(event.peer, now, up=event.up)
            case EpochMessageReceived():
                self._on_epoch_message(event.message, now)
            case Greeted() | Contradicted():
                self._on_greeting(event, now)
            case ChangeRequested() | ForceRequested() | SynchroTimeoutSet():
                self._on_operator(event, now)
            case _:
                assert_never(event)

    @property
    def _log_ids(self) -> set[str]:
        return {self.view.log_id, *(log_id for log_id, _ in self.view.ancestors)}

    # -- which messages count ----------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        """The durable state that this node's greeting shows (P30)."""
        seq, _ = self._ordering.loaded()
        return replace(self._standing, seq_now=seq, counter_now=self._counter.reserved)

    def heard(self, node: str) -> bool:
        """Return whether a node was ever heard, also before a restart (P29)."""
        return self._standings.heard(node, self.view.epoch, self._queue.position)

    def knows_process(self, node: str, boot: str) -> bool:
        """Return whether a process is the last known one of that node."""
        known = self._standings.of(node)
        return known is not None and known.boot == boot

    def is_blank(self, node: str) -> bool:
        """Return whether a node has shown no state yet on which others could rely."""
        known = self._standings.of(node)
        return known is not None and known.binds_nothing

    def judge(self, peer: str, shown: Standing) -> str:
        """Return why a greeting node must rejoin with the next incarnation (P30).

        Empty: it shows everything that it showed before, and everything that this node's own queue
        and streams depend on.
        """
        doubt = self._doubted.get(peer)
        if doubt is not None and shown.incarnation <= doubt[0]:
            return doubt[1]
        held = self._ordering.durable_of(peer)
        return self._standings.judge(peer, shown, self.view, self._queue.key, held)

    def _take_in(self, event: PostReceived | PayloadArrived, now: int) -> None:
        """Handle a peer's message; a peer that contradicts itself no longer counts (P10)."""
        try:
            if isinstance(event, PostReceived):
                self._on_post(event.post, now)
            else:
                self._progress = True
                self._ordering.on_payload(event.header, event.facts, now)
        except OtherQueueError as error:
            self._on_other_queue(error, now)
        except ContradictionError as error:
            if error.peer == self._config.node_id:
                raise
            if self._doubt(error, now):
                self._outbox.tell(TellDoubt(peer=NodeId(error.peer), text=str(error)))

    def _speaks(self, node: str, incarnation: int) -> bool:
        """Return whether a node's messages count: not those of a node that only wants to join.

        It may come back as it was, if its former disk is found.
        """
        seat = self.view.seat(node)
        return seat is None or incarnation <= seat.incarnation

    def _doubt(self, error: ContradictionError, now: int) -> bool:
        """Ignore a node until it rejoins with another incarnation; return whether that is news."""
        if error.peer in self._doubted:
            return False
        seat = self.view.seat(error.peer)
        self._doubted[error.peer] = (0 if seat is None else seat.incarnation, str(error))
        self._succession.suspicion.doubt(error.peer, now)
        self._outbox.tell(Alarm(code=error.code, text=f"nothing of {error.peer} counts: {error}"))
        return True

    def _on_other_queue(self, error: OtherQueueError, now: int) -> None:
        """Stop if at least half of the members have another queue; else the peer is wrong (I1).

        Raises:
            OtherQueueError: So many members contradict this node that they can agree without it.
        """
        members = self.view.members
        self._differing.add(error.peer)
        if 2 * len(self._differing.intersection(members)) >= len(members):
            raise error
        self._doubt(error, now)

    def _on_greeting(self, event: Greeted | Contradicted, now: int) -> None:
        if isinstance(event, Greeted):
            counts = self._speaks(event.peer, event.standing.incarnation)
            self._standings.greeted(event.peer, event.standing, counts=counts)
            self._succession.admission.greeted(event.peer, event.standing.incarnation)
            return
        if event.decision:
            raise InvariantViolation(event.text, hint=QUARANTINE_HINT, peer=event.peer)
        if event.peer in self.view.members:
            self._on_other_queue(OtherQueueError(event.text, peer=event.peer), now)

    def _on_epoch_message(self, message: EpochMessage, now: int) -> None:
        doubt = self._doubted.get(message.sender)
        if doubt is not None and (isinstance(message, Decide) or message.incarnation <= doubt[0]):
            return
        if doubt is not None:  # it has a later incarnation now
            self._succession.suspicion.trust(message.sender)
        self._pulling.heard(message.sender, now)
        if not isinstance(message, Decide) and self._speaks(message.sender, message.incarnation):
            self._standings.said(message, self.view.epoch)
        self._apply(self._succession.on_message(message, now), now)

    def _on_post(self, post: Post, now: int) -> None:
        view = self.view
        if post.sender in self._doubted:
            return
        if post.log_id == view.log_id and post.epoch > view.epoch:
            self._succession.ask_view(post.sender, now)
        elif post.epoch < view.epoch and post.log_id in self._log_ids:
            self._succession.tell_view(post.sender, now)
        elif post.log_id == view.log_id and view.follows(post.sender):
            self._succession.tell_refused(post.sender, "a promise, and is a follower without one")
        elif post.log_id == view.log_id and post.sender in view.members:
            self._succession.suspicion.heard(post.sender, now)
            seat = view.seat(post.sender)
            self._ordering.on_post(post, now)
            self._standings.posted(post, 1 if seat is None else seat.incarnation)

    def _on_submit(self, submit: RunSubmitted, now: int) -> None:
        if self.phase in TAKES_SUBMITS:
            self._ordering.on_submit(submit, now)
        else:
            self._ordering.reject(
                submit, "not-a-member", f"this node is {self.phase}: it takes no transactions"
            )

    def _on_operator(
        self, event: ChangeRequested | ForceRequested | SynchroTimeoutSet, now: int
    ) -> None:
        if isinstance(event, ChangeRequested):
            self._on_change(event, now)
        elif isinstance(event, ForceRequested):
            self._on_force(event, now)
        else:
            self._staging.set_synchro_timeout(event.timeout_us, now)

    def _on_change(self, event: ChangeRequested, now: int) -> None:
        changes = self._succession.changes
        if self.phase in TAKES_SUBMITS:
            changes.request(event, self.view)
            self._succession.asked(now)
        else:
            changes.refuse(event.ticket, f"this node is {self.phase}: ask a member")

    def _on_force(self, event: ForceRequested, now: int) -> None:
        """Go on alone: an operator says that the others are dead (P23)."""
        ordering = self._ordering
        if not self._current.is_member or event.log_id in self._log_ids:
            reason = "only a member can go on alone, under a new log id"
            return self._succession.changes.refuse(event.ticket, reason)
        if not ordering.frozen:
            self._wedge("an operator forces this node to go on alone", now)
        accepted = self._succession.voter.accepted
        state = ordering.member_state()
        view = forced_view(self.view, self._config.node_id, event.log_id, state, accepted)
        if ordering.want(view, now) != 0:
            reason = "this node does not hold all of the accepted final queue yet; try again"
            return self._succession.changes.refuse(event.ticket, reason)
        self._decided = view
        self._succession.changes.forced(event.ticket, view)
        self._take_into_force(now)
        return None

    def _refuse_halted(self, event: Event) -> None:
        if isinstance(event, RunSubmitted):
            self._ordering.reject(event, "protocol-local", f"this node halted: {self._halted}")
        elif isinstance(event, (ChangeRequested, ForceRequested)):
            self._succession.changes.refuse(event.ticket, f"this node halted: {self._halted}")

    # ------------------------------------------------------------------ once per batch

    def _work(self, now: int) -> None:
        self._ordering.flush(now)
        if self._progress:
            self._progress = False
            self._continue_flush(now, asked=False)
            if self._decided is not None:
                self._take_into_force(now)
        self._apply(self._succession.work(now), now)
        self._succession.tails.answer(self._queue.position, now)
        if not self._ordering.frozen:
            self._ordering.joiners = self._succession.admission.pushed(self.view, now)
        if self._is_following:
            self._following.work(self._wanted, self.next_stamp, now)
        self._pulling.work(now)
        if not self._ordering.frozen:
            suspicion = self._succession.suspicion
            # A node whose own clock is ahead waits for promises that no other node can give.
            lacking = {} if self._counter.is_ahead else self._ordering.lacking(suspicion.deaf(now))
            suspicion.promised(lacking, self._queue.position, now)
            if self._ordering.busy:
                suspicion.expect(self.view.members, now)
        for node, standing in self._standings.take(writes=self._outbox.persists):
            self._outbox.persist(PersistStanding(node=NodeId(node), standing=standing))
        # A node that never was a member lets no counter out.  What it reserved would say no time:
        # its counter follows no clock (C3).
        promises = self._current.is_member or self._counter.reserved > 0
        reserved = self._counter.reservation() if promises else None
        if reserved is not None:
            # In front of all: the batch's queue entries and posts show the counter (P2).
            self._outbox.persist_first(PersistReservation(counter=reserved))

    @property
    def _is_following(self) -> bool:
        """Whether this node fetches the queue of others, to be admitted or for a flush."""
        if self._current.is_member and self._wanted is None:
            return False
        if self.phase is Phase.FAULT:
            return False
        # These count again once the others have decided on their new incarnation (P21).
        alone = self.phase in (Phase.WITNESS, Phase.FOLLOWING)
        return not (alone and self.view.is_current(self._config.node_id, self.incarnation))

    @property
    def _wanted(self) -> View | None:
        """The view whose final queue this node must hold."""
        if self._decided is not None:
            return self._decided
        return None if self._flush is None else self._flush.candidate

    # ------------------------------------------------------------------ outcomes of the succession

    def _apply(self, outcomes: Outcomes, now: int) -> None:
        """Apply the outcomes of the succession, each one before it goes on."""
        for outcome in outcomes:
            match outcome:
                case Wedge():
                    self._wedge(outcome.reason, now)
                case SuspectNodes():
                    self._suspect(outcome.nodes)
                case StartFlush():
                    self._flush = outcome.flush
                    self._following.holder = outcome.flush.holder
                    self._continue_flush(now, asked=True)
                case Learn():
                    self._learn(outcome.view, now)
                case _:
                    assert_never(outcome)

    def _wedge(self, reason: str, now: int) -> None:
        if not self._ordering.frozen:
            self._ordering.freeze(now)
        self._enter(Phase.WEDGED, reason)

    def _suspect(self, nodes: tuple[NodeId, ...]) -> None:
        if nodes:
            self._enter(Phase.SUSPECT, f"nothing usable from {', '.join(nodes)}")
        else:
            self._enter(Phase.NORMAL, "all members are there")

    def _continue_flush(self, now: int, *, asked: bool) -> None:
        """Continue a flush; report its progress on request, and its end."""
        flush = self._flush
        if flush is None:
            return
        missing = self._ordering.want(flush.candidate, now)
        claims = self._ordering.claims(flush.candidate) if missing >= 0 else []
        missing, whole = self._inspection.look(flush.ballot, missing, claims)
        if missing and not (asked or whole):
            return
        if missing == 0:
            self._flush = None
        self._apply(self._succession.tell_flushed(flush, missing, whole, now), now)

    def _learn(self, view: View, now: int) -> None:
        """Adopt a decided view of a later epoch, as a member or as another node.

        Raises:
            InvariantViolation: This node's queue is not a prefix of what it continues (I4, P28).
        """
        if self.phase is Phase.FAULT:
            return
        self._queue.check_final(view)
        self._flush = None
        if self._current.has_me(view):
            self._decided = view
            if not self._ordering.frozen:
                self._wedge(f"epoch {view.epoch} is decided", now)
            self._take_into_force(now)
            return
        self._decided = None
        left = self._ordering.own_incoming()
        self._adopt(view)
        self._current.ordering = self._new_ordering(left, now)
        self._succession.entered(now)
        waits = self._current.waiting_phase
        if self.phase is Phase.WITNESS or self.phase is waits is Phase.FOLLOWING:
            reason = f"epoch {view.epoch} is in force"
            self._outbox.tell(TellPhase(phase=self.phase, view=view, reason=reason))
        else:
            self._enter(Phase.IDLE, f"epoch {view.epoch} goes on without this node")
            self._enter(waits, self._current.wish)
        check_incarnation(view, self._config.node_id, self.incarnation)

    def _take_into_force(self, now: int) -> None:
        """Install a decided view after its final queue is durable here (P18)."""
        view = self._decided
        if view is None or self._ordering.want(view, now) != 0:
            return
        self._decided = self._flush = None
        left = self._ordering.finish(view, now)
        if not self._current.is_member:
            self._counter.clock.begin_at(self._queue.key[1])
        self._adopt(view)
        self._counter.use(self._queue.key[1])
        self._enter(Phase.NORMAL, f"epoch {view.epoch} is in force")
        self._current.ordering = self._new_ordering(self._restamp(left), now)
        self._succession.entered(now)

    def _adopt(self, view: View) -> None:
        self._outbox.drop_posts()
        forced = view.log_id != self.view.log_id
        self._outbox.persist(PersistView(view=view, incarnation=self.incarnation, forced=forced))
        self._current.view = view
        self._counter.begin_epoch()
        self._current.is_member = self._current.has_me(view)
        for node, (incarnation, _) in list(self._doubted.items()):
            seat = view.seat(node)
            if seat is None or seat.incarnation > incarnation:
                del self._doubted[node]
                self._succession.suspicion.trust(node)
                self._differing.discard(node)

    def _restamp(self, runs: list[RecoveredRun]) -> list[RecoveredRun]:
        """Give own runs of earlier epochs a new stamp; drop those that others stamped (P18, P20).

        Only the origin restamps, and only as a member of the later epoch.
        """
        epoch, own = self.view.epoch, (self._config.node_id, self.incarnation)
        mine = [run for run in runs if (run.header.origin, run.header.incarnation) == own]
        kept = [run for run in runs if run.header.epoch == epoch]
        if not self._current.is_member:
            # A promise or a flush may have shown what it holds of others (P16).
            return mine + [run for run in kept if run.header.origin != self._config.node_id]
        old = [run for run in mine if run.header.epoch < epoch]
        for run in sorted(old, key=lambda run: run.header.seq):
            header = replace(run.header, epoch=epoch, ts=self._counter.stamp())
            self._outbox.persist(PersistRestamp(header=header))
            kept.append(RecoveredRun(header=header, facts=run.facts))
        return kept

    def _new_ordering(self, incoming: list[RecoveredRun], now: int) -> Ordering:
        view, own = self.view, self._config.node_id
        members = view.members if own in view.members else (*view.members, own)
        config = replace(
            self._config,
            members=members,
            quorum=view.quorum,
            epoch=view.epoch,
            log_id=view.log_id,
        )
        return Ordering(
            config,
            self._outbox,
            queue=self._queue,
            counter=self._counter,
            staging=self._staging,
            prefetching=self._prefetching,
            incarnations={seat.node_id: seat.incarnation for seat in view.roster},
            incoming=incoming,
            start=self._start,
            frozen=self.phase is Phase.WEDGED or not self._current.is_member,
            now=now,
        )

    # ------------------------------------------------------------------ phases

    def _enter(self, phase: Phase, reason: str) -> None:
        if phase is self.phase:
            return
        assert phase in TRANSITIONS[self.phase], f"{self.phase} → {phase}"
        self._current.phase, self._phase_at = phase, self._now
        self._outbox.tell(TellPhase(phase=phase, view=self.view, reason=reason))

    def _halt(self, code: str, text: str) -> None:
        """Take no more part; everything persisted and sent before stays valid."""
        self._halted = text
        self._outbox.drop_posts()
        self._succession.changes.fail(f"this node halted: {text}")
        self._enter(Phase.FAULT, text)
        self._outbox.tell(Alarm(code=code, text=text, fatal=True))
