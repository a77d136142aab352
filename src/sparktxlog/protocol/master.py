"""The sans-I/O core of a master: events in, actions out (docs/protocol.md).

    actions = master.handle_all(events, now)    # or handle(event, now) for one
    deadline = master.next_deadline()           # then a Tick, at that time or later

Rules of this room: no clock, no chance, no I/O.  Time is an argument (microseconds of the shell's
log clock, which starts at the wall clock and never falls); whatever must be kept, sent or told is
returned as an action.

The returned actions are one first-in-first-out stream.  All `Persist…` of a batch stand before
everything else in it, so the executor can make a batch durable with one fsync, and the core counts
a persist as done as soon as it is returned: what leaves the node is always behind it (protocol §3).

Each event only changes state and takes notes of what is new; then, once per batch, the core stamps
what may be stamped, adds what may be added, asks for what is missing and posts if there is news.
So many events cost one round.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import assert_never

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.operation import RunFacts
from sparktxlog.model.table import TableDefinition
from sparktxlog.protocol.actions import (
    Action,
    Alarm,
    FetchPayload,
    PersistAnnouncement,
    PersistForeignRun,
    PersistOwnRun,
    PersistQueue,
    PersistReservation,
    PrefetchFiles,
    SendAnnouncement,
    SendPost,
    SendPush,
    SendTail,
    TellAccepted,
    TellAcquired,
    TellOrdered,
    TellRejected,
)
from sparktxlog.protocol.addition import head_of, least_promise, may_add
from sparktxlog.protocol.collecting import Collecting
from sparktxlog.protocol.counter import TimestampCounter
from sparktxlog.protocol.events import (
    AnnouncementReceived,
    Event,
    FetchFailed,
    FilesHeld,
    LinkChanged,
    PayloadArrived,
    PostReceived,
    RunSubmitted,
    TailReceived,
    Tick,
)
from sparktxlog.protocol.fetching import Fetching
from sparktxlog.protocol.messages import Announcement, MergeBase, Post, RunHeader, Tail
from sparktxlog.protocol.peers import Peer
from sparktxlog.protocol.posting import OwnHeaders, Rounds, Snapshot
from sparktxlog.protocol.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.staging import Prefetching, Staging, recovered_submit
from sparktxlog.protocol.status import MasterStatus, peer_status
from sparktxlog.protocol.streams import Run, Stream
from sparktxlog.protocol.synchronized import SynchronizedQueue
from sparktxlog.protocol.waiting import awaited

_WARN_CLOCK_US = 1_000_000
_REFUSE_CLOCK_US = 60_000_000


class Master:
    """One master's part in the sync protocol.

    Args:
        config: Settings; those marked (*) must be equal on all members.
        state: What the front kept; `RecoveredState()` at the very first start.
        now: Shell's time, microseconds.

    Raises:
        InvariantViolation: The recovered state contradicts itself: the node must not start.

    After calling: hand `next_deadline()` to a timer; the first one is due at once.

    **Source:** protocol P1–P10, P25b, C1–C3, S1.
    """

    def __init__(self, config: MasterConfig, state: RecoveredState, now: int) -> None:
        assert config.node_id in config.members and 1 <= config.quorum <= len(config.members)
        self._config = config
        self._now = now
        #: Empty, or why this node takes no more part (P10).
        self._halted = ""
        self._persists: list[Action] = []
        self._others: list[Action] = []
        self._queue = SynchronizedQueue(config, state)
        floor = max((run.header.ts for run in state.incoming), default=0)
        self._counter = TimestampCounter(
            reserved=state.reserved,
            floor=max(floor, state.base_key[1]),
            reserve_us=config.reserve_us,
        )
        #: Orders this node's posts across its restarts.
        self._start = state.reserved
        self._fetching = Fetching(limit=config.max_fetches, retry_us=config.retry_us)
        self._prefetching = Prefetching(
            limit=config.max_fetches,
            retry_us=config.retry_us,
            keep_us=2 * config.stage_timeout_us,
        )
        self._collecting = Collecting(config, self._counter, self._fetching, state.watermarks)
        self._collecting.recover(list(state.incoming), now)
        # The same tuples and streams, nearer at hand.
        self._peers = self._collecting.peer_list
        self._streams = self._collecting.stream_list
        self._own = self._collecting.streams[config.node_id]
        self._own_headers = OwnHeaders(self._own.watermark, 4 * config.max_post_headers)
        for run in self._own.runs:
            self._own_headers.append(run.header)
        self._rounds = Rounds(config, now)
        self._staging = Staging(config.stage_timeout_us)
        #: True: an unstamped run may have become ready.
        self._stamp_check = bool(state.announcements)
        for waiting in state.announcements:
            submit = recovered_submit(waiting)
            self._staging.add(submit, now, late=self._is_late(submit))
        #: Own transactions told as acquired up to this sequence number.
        self._told_acquired = self._own.watermark
        self._added_at = now
        #: Position at the last round, and rounds since that added nothing (G22).
        self._round_position = self._queue.position
        self._empty_rounds = 0
        self._clock_warned = False

    # ------------------------------------------------------------------ the face

    @property
    def catalog(self) -> Mapping[str, TableDefinition]:
        """Tables at this node's position, by name; a snapshot."""
        return self._queue.catalog.tables

    @property
    def base(self) -> MergeBase:
        """Merge base: end of the synchronized queue."""
        return self._queue.base

    def locate(self, transaction_id: bytes) -> int | None:
        """Return the position of a transaction id, None if not among the last `id_window`."""
        return self._queue.catalog.locate(transaction_id)

    def handle(self, event: Event, now: int) -> list[Action]:
        """Handle one event; see `handle_all`."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Sequence[Event], now: int) -> list[Action]:
        """Handle events in order and return what to do, in execution order.

        Args:
            events: Authenticated and decoded; at most one batch of a busy moment.
            now: Shell's time, microseconds; a value below the last one counts as the last one.
        """
        self._now = now = max(now, self._now)
        try:
            for event in events:
                if self._halted:
                    self._refuse_halted(event)
                else:
                    self._dispatch(event, now)
            if not self._halted:
                self._flush(now)
        except InvariantViolation as error:
            self._halt(error.code, str(error))
        actions = self._persists + self._others
        self._persists, self._others = [], []
        return actions

    def next_deadline(self) -> int | None:
        """Return when a Tick is due, shell's time; None once halted."""
        if self._halted:
            return None
        deadline = self._rounds.heartbeat_at
        for other in (
            self._fetching.next_deadline(),
            self._prefetching.next_deadline(),
            self._staging.next_deadline() if self._staging.runs else None,
        ):
            if other is not None and other < deadline:
                deadline = other
        return deadline

    def status(self) -> MasterStatus:
        """Return the state for display; costs O(members + unstamped runs)."""
        streams, base = self._streams, self._queue.base
        return MasterStatus(
            node_id=self._config.node_id,
            epoch=self._config.epoch,
            position=self._queue.position,
            chain_hash=self._queue.hash,
            base_origin=base.origin,
            base_seq=base.seq,
            counter=self._counter.value,
            reserved=self._counter.reserved,
            incoming_runs=sum(len(stream.runs) for stream in streams),
            incoming_transactions=sum(s.known - s.watermark for s in streams),
            incoming_bytes=sum(stream.payload_bytes for stream in streams),
            unstamped_runs=len(self._staging.runs),
            round=self._rounds.number,
            empty_rounds=self._empty_rounds,
            busy=self._busy,
            halted=self._halted,
            waiting_for=awaited(
                head=head_of(streams),
                staging=self._staging,
                peers=self._peers,
                self_id=self._config.node_id,
                quorum=self._config.quorum,
                last_added_at=self._added_at,
            ),
            peers=tuple(
                peer_status(
                    peer,
                    now=self._now,
                    silent_after_us=self._config.silent_after_us,
                    busy=self._busy,
                )
                for peer in self._peers
            ),
            clock_distance_us=self._collecting.clock_distance(self._now),
        )

    def incoming(self, limit: int = 100) -> list[tuple[RunHeader, bool]]:
        """Return the first runs of the incoming queue in agreed order, and whether acquired."""
        runs = heapq.merge(*(stream.runs for stream in self._streams), key=lambda run: run.key)
        return [(run.header, run.facts is not None) for run in islice(runs, limit)]

    # ------------------------------------------------------------------ events

    def _dispatch(self, event: Event, now: int) -> None:
        match event:
            case PostReceived():
                self._on_post(event.post, now)
            case PayloadArrived():
                self._on_payload(event.header, event.facts, now)
            case RunSubmitted():
                self._on_submit(event, now)
            case Tick():
                pass
            case FetchFailed():
                if not self._fetching.failed(event.digest, now):
                    self._prefetching.failed(event.digest, now)
            case FilesHeld():
                if self._prefetching.holds(event.digest, now):
                    self._collecting.news = True
            case TailReceived():
                self._on_tail(event.tail, now)
            case AnnouncementReceived():
                self._on_announcement(event.announcement, now)
            case LinkChanged():
                self._on_link(event)
            case _:
                assert_never(event)

    def _on_link(self, event: LinkChanged) -> None:
        peer = self._collecting.peers.get(event.peer)
        if peer is not None:
            peer.owed = peer.owed or (event.up and not peer.linked)
            peer.linked = event.up

    def _on_submit(self, submit: RunSubmitted, now: int) -> None:
        """Make an own run durable and stamp it, or let it wait for its stamp (P1, P1a, P3b)."""
        config, own, staging = self._config, self._own, self._staging
        if submit.facts.n > config.max_run:
            return self._reject(
                submit, "oversize", f"{submit.facts.n} transactions in a run of {config.max_run}"
            )
        runs = len(own.runs) + len(staging.runs)
        size = own.payload_bytes + staging.payload_bytes + submit.size_bytes
        if runs >= config.max_incoming_runs or size > config.max_incoming_bytes:
            return self._reject(
                submit, "busy", f"{runs} own runs of {size} bytes wait to be ordered already"
            )
        distance = self._collecting.clock_distance(now)
        if distance > _REFUSE_CLOCK_US:
            return self._reject(
                submit,
                "clock-skew",
                f"this node's clock is {distance // 1_000_000} s off the members' median",
            )
        late = self._is_late(submit)
        if not late and not staging.must_wait(submit.session):
            return self._stamp(submit, now)
        self._persists.append(PersistAnnouncement(ticket=submit.ticket, digest=submit.digest))
        self._others.append(TellAccepted(ticket=submit.ticket, header=None))
        staging.add(submit, now, late=late)
        self._stamp_check = True
        return None

    def _is_late(self, submit: RunSubmitted) -> bool:
        """Return whether the run is stamped only when a quorum holds its files (P1a)."""
        return submit.staged_bytes > self._config.inline_limit_bytes and self._config.quorum > 1

    def _reject(self, submit: RunSubmitted, code: str, text: str) -> None:
        self._others.append(TellRejected(ticket=submit.ticket, code=code, text=text))

    def _stamp(self, submit: RunSubmitted, now: int) -> None:
        """Give a durable own run its timestamp and sequence numbers (P1, P1b)."""
        config, own = self._config, self._own
        header = RunHeader(
            epoch=config.epoch,
            ts=self._next_timestamp(now),
            origin=config.node_id,
            incarnation=config.incarnation,
            seq=own.known + 1,
            n=submit.facts.n,
            digest=submit.digest,
            size_bytes=submit.size_bytes,
            staged_bytes=submit.staged_bytes,
        )
        own.acquire(own.register(header, now), submit.facts)
        self._own_headers.append(header)
        self._persists.append(PersistOwnRun(ticket=submit.ticket, header=header))
        self._others.append(TellAccepted(ticket=submit.ticket, header=header))
        if header.staged_bytes == 0 and header.size_bytes <= config.push_limit_bytes:
            for peer in self._peers:
                if peer.linked:
                    self._others.append(SendPush(peer=peer.node_id, header=header))
        self._collecting.news = True

    def _next_timestamp(self, now: int) -> int:
        return self._counter.stamp(now)

    def _on_post(self, post: Post, now: int) -> None:
        """Collect a peer's post (P5): any order, any loss, any merge base."""
        peer = self._collecting.take_post(post, now)
        if peer is None:
            return
        if peer.is_newest(post):
            if peer.note_newest(post, self._config.node_id, now):
                self._stamp_check = True
            self._check_clock(now)
            self._queue.check_base(peer.node_id, post.base)
            self._serve_lagger(peer, now)
        if post.busy or post.base.position > self._queue.position:
            self._rounds.wake(now)

    def _serve_lagger(self, peer: Peer, now: int) -> None:
        """Send the tail to a peer whose queue is shorter and cannot grow by headers alone (P9)."""
        position, retry_us = peer.base.position, self._config.retry_us
        if position >= self._queue.position:
            return
        lacks_headers = (peer.known_of_me or 0) < self._own_headers.floor
        stuck = now >= peer.base_since + retry_us
        repeated = peer.tail_position == position and now < peer.tail_at + retry_us
        if (lacks_headers or stuck) and not repeated:
            peer.tail_position, peer.tail_at = position, now
            self._others.append(
                SendTail(peer=peer.node_id, position=position, chain_hash=peer.base.chain_hash)
            )

    def _on_payload(self, header: RunHeader, facts: RunFacts, now: int) -> None:
        """Keep a pushed or fetched run (P4); what is unwanted is not persisted."""
        collecting = self._collecting
        self._fetching.arrived(header.digest)
        peer, stream = collecting.peers.get(header.origin), collecting.streams.get(header.origin)
        if peer is None or stream is None or header.seq <= stream.watermark:
            return
        if header.seq > stream.known and collecting.is_runaway(peer, header.ts, now):
            return
        run = collecting.learn(peer, stream, header, now)
        if run is None:
            if not collecting.keep_early(stream, header, facts, now):
                return
        elif run.facts is not None:
            return
        else:
            stream.acquire(run, facts)
            tail = self._queue.tail
            # What a forerunner has in its queue already, nobody waits to hear of.
            if not tail or run.key > tail[-1].header.key:
                collecting.news = True
        self._persists.append(PersistForeignRun(header=header))
        self._prefetching.forget(header.digest)

    def _on_tail(self, tail: Tail, now: int) -> None:
        """Take in part of a forerunner's queue (P9)."""
        config = self._config
        known = tail.sender in self._collecting.peers
        if known and tail.lineage == config.lineage and tail.epoch == config.epoch:
            for entry in self._queue.continue_tail(tail):
                self._collecting.learn_ordered(entry.header, now)
                self._queue.tail.append(entry)

    def _on_announcement(self, announcement: Announcement, now: int) -> None:
        config = self._config
        if (
            announcement.origin in self._collecting.peers
            and announcement.lineage == config.lineage
            and announcement.epoch == config.epoch
        ):
            self._prefetching.announce(announcement, now)

    def _refuse_halted(self, event: Event) -> None:
        if isinstance(event, RunSubmitted):
            self._reject(event, "protocol-local", f"this node halted: {self._halted}")

    # ------------------------------------------------------------------ once per batch

    def _flush(self, now: int) -> None:
        if self._staging.runs:
            self._stamp_ready(now)
        self._tell_acquired()
        self._add(now)
        for run in self._fetching.start(now):
            sources = self._collecting.holding(run)
            self._others.append(FetchPayload(header=run.header, sources=sources))
        for announcement in self._prefetching.start(now):
            self._others.append(PrefetchFiles(announcement=announcement))
        self._post(now)
        if self._collecting.warnings:
            self._others.extend(Alarm(code=c, text=t) for c, t in self._collecting.warnings)
            self._collecting.warnings.clear()
        reserved = self._counter.reservation()
        if reserved is not None:
            # In front of all: the batch's queue entries and posts show the counter (P2).
            self._persists.insert(0, PersistReservation(counter=reserved))

    def _stamp_ready(self, now: int) -> None:
        """Stamp announced runs whose files the quorum holds, or that waited long enough (P1a)."""
        staging, config = self._staging, self._config
        deadline = staging.next_deadline()
        if not self._stamp_check and (deadline is None or now < deadline):
            return
        self._stamp_check = False
        for run in staging.awaited():
            digest = run.submit.digest
            if 1 + sum(digest in peer.held for peer in self._peers) >= config.quorum:
                run.ready = True
        for submit in staging.take_ready(now):
            self._stamp(submit, now)
        for submit in staging.take_unannounced(now, config.retry_us, config.idle_round_max_us):
            announcement = Announcement(
                lineage=config.lineage,
                epoch=config.epoch,
                origin=config.node_id,
                digest=submit.digest,
                size_bytes=submit.size_bytes,
                staged_bytes=submit.staged_bytes,
            )
            self._others.extend(
                SendAnnouncement(peer=peer.node_id, announcement=announcement)
                for peer in self._peers
                if submit.digest not in peer.held
            )

    def _tell_acquired(self) -> None:
        """Tell own runs that the acquisition quorum holds (commit level `acquired`)."""
        own = self._own
        if self._told_acquired >= own.known:
            return
        mark = self._collecting.acquired_mark()
        self._told_acquired = max(self._told_acquired, own.watermark)
        while (run := own.get(self._told_acquired + 1)) is not None and run.last <= mark:
            self._told_acquired = run.last
            self._others.append(TellAcquired(header=run.header))

    def _add(self, now: int) -> None:
        """Append what is agreed: the known tail first (P9), then what ADD allows (P7)."""
        queue, streams = self._queue, self._collecting.streams
        if queue.tail:
            queue.append_tail(streams)
            # The forerunner sends the next part when it learns the new base.
            self._collecting.news = self._collecting.news or not queue.tail
        if not queue.tail:
            own = max(self._counter.value, self._counter.log_time(now))
            least = least_promise(self._peers, own)
            while (run := self._next_addable(least)) is not None:
                queue.append(run, streams[run.header.origin])
        entries, tables = queue.drain()
        if entries:
            self._added_at = now
            self._counter.use(queue.key[1])
            self._persists.append(PersistQueue(entries=entries, tables=tables))
            self._others.append(TellOrdered(entries=entries))

    def _next_addable(self, least: int) -> Run | None:
        """Return the next run of the agreed order if ADD may take it now: stop, never skip."""
        head = head_of(self._streams)
        if head is None or not may_add(head, self._peers, least, self._config.quorum):
            return None
        return head

    # ------------------------------------------------------------------ rounds

    @property
    def _busy(self) -> bool:
        return any(stream.runs for stream in self._streams)

    def _post(self, now: int) -> None:
        """Post to all if there is news or the heartbeat is due, to single peers if owed (P8)."""
        news = self._collecting.news
        due = now >= self._rounds.heartbeat_at
        if not (news or due):
            owed = [peer for peer in self._peers if peer.owed and peer.linked]
            if owed:
                self._send_posts(owed, now)
            return
        busy, position = self._busy, self._queue.position
        if not busy or position != self._round_position:
            self._empty_rounds = 0
        else:
            self._empty_rounds += 1
        self._round_position = position
        self._rounds.plan(now, news=news, busy=busy)
        self._collecting.news = False
        self._send_posts([peer for peer in self._peers if due or peer.linked], now)

    def _send_posts(self, peers: Sequence[Peer], now: int) -> None:
        self._rounds.number += 1
        snapshot = self._snapshot(now)
        self._collecting.posted_counter = snapshot.counter
        config, own_headers = self._config, self._own_headers
        for peer in peers:
            known = own_headers.floor if peer.known_of_me is None else peer.known_of_me
            headers: tuple[RunHeader, ...] = ()
            left_out: RunHeader | None = None
            if own_headers.floor <= known < snapshot.last_seq:
                headers, left_out = own_headers.after(known, config.max_post_headers)
            peer.owed = False
            peer.more = left_out is not None
            post = snapshot.post(config, self._start, headers, left_out)
            self._others.append(SendPost(peer=peer.node_id, post=post))
        reported = min((peer.known_of_me or 0 for peer in self._peers), default=self._own.known)
        own_headers.trim(self._own.watermark, reported)

    def _snapshot(self, now: int) -> Snapshot:
        streams = self._streams
        return Snapshot(
            round_number=self._rounds.number,
            base=self._queue.base,
            counter=self._counter.promise(now),
            last_seq=self._own.known,
            known={stream.origin: stream.known for stream in streams},
            acquired={stream.origin: self._claim(stream) for stream in streams},
            held=self._prefetching.held,
            now=now,
            busy=self._busy,
        )

    def _claim(self, stream: Stream) -> int:
        """Return up to which sequence number the stream is durable here (P4)."""
        return stream.acquired

    # ------------------------------------------------------------------ faults

    def _check_clock(self, now: int) -> None:
        """Warn once when this node's clock leaves the members' median (C3)."""
        distance = self._collecting.clock_distance(now)
        off = distance >= _WARN_CLOCK_US
        if off and not self._clock_warned:
            text = f"this node's clock is {distance / 1e6:.1f} s off the members' median"
            self._others.append(Alarm(code="clock-skew", text=text))
        self._clock_warned = off

    def _halt(self, code: str, text: str) -> None:
        """Take no more part; what was persisted and told before stays valid."""
        self._halted = text
        self._others = [a for a in self._others if not isinstance(a, SendPost)]
        self._others.append(Alarm(code=code, text=text, fatal=True))
