"""Normal operation within one epoch: rounds, streams, ADD (protocol P1–P10).

Each event only changes state and notes what is new.  Then, once per batch, `flush` stamps and adds
runs, requests missing ones and posts if there is news.  So many events cost one round.

`freeze` stops all that for an epoch change (P14).  A frozen ordering still accepts runs of other
nodes' synchronized queues (P9), and those that a flush requests (P16).  The ordering of a node that
is not a member is frozen from the start.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from itertools import islice

from sparktxlog.errors import SessionRolledBackError
from sparktxlog.model.ids import LARGEST, NodeId, transaction_id_to_text
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.actions import (
    Alarm,
    CheckUnstamped,
    FetchPayload,
    PersistAnnouncement,
    PersistForeignRun,
    PersistOwnRun,
    PersistVoid,
    PersistWithdrawal,
    PrefetchFiles,
    SendAnnouncement,
    SendPost,
    SendPush,
    SendTail,
    TellAccepted,
    TellAcquired,
    TellOrdered,
    TellRejected,
    WithdrawnRun,
)
from sparktxlog.protocol.messages.balloting import MemberState
from sparktxlog.protocol.messages.bounds import all_fit
from sparktxlog.protocol.messages.events import FilesHeld, FilesLost, RunSubmitted, earliest
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.posts import Announcement, Post, RunHeader, Tail
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredRun
from sparktxlog.protocol.messages.view import View
from sparktxlog.protocol.order.addition import (
    head_of,
    holders,
    holders_needed,
    least_promise,
    may_add,
)
from sparktxlog.protocol.order.collecting import Collecting
from sparktxlog.protocol.order.counter import TimestampCounter
from sparktxlog.protocol.order.fetching import Fetching
from sparktxlog.protocol.order.final_queue import (
    append_final,
    check_end,
    claims,
    joiner_state,
    member_state,
    want,
)
from sparktxlog.protocol.order.origin_queues import Stream
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.posting import OwnHeaders, RoundPosts, Rounds
from sparktxlog.protocol.order.status import (
    IncomingRun,
    MasterStatus,
    awaited,
    awaited_by,
    peer_status,
    synchronous_status,
)
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.protocol.order.unstamped import (
    Prefetching,
    Staging,
    files_are_held,
    holders_awaited,
    is_late,
    why_given_up,
)

_WARN_CLOCK_US = 1_000_000
_REFUSE_CLOCK_US = 60_000_000
#: A peer that was silent for so long was away: while transactions wait it posts each second.
_AWAY_US = 3_000_000
#: Members that hold what this node took from another one's queue: these two, at least.
_FROM_ANOTHER = 2
#: One part of so many of the bounds on own runs is for those that wait for members (P34).
_HELD_UP_PART = 4


class Ordering:
    """This node's role in the agreed order during one epoch.

    Args:
        config: With members, quorum, epoch and log id of the epoch's view.
        outbox: Takes the actions.
        queue, counter, staging, prefetching: These survive an epoch.
        incarnations: Incarnations of all nodes that may stamp in this epoch.
        incoming: Durable runs after the queue's end.
        start: Orders this node's posts across its restarts.
        frozen: Begin as `freeze` leaves it.
        now: Shell's time, microseconds.

    Raises:
        InvariantViolation: The runs contradict each other: the node must not start.
    """

    def __init__(
        self,
        config: MasterConfig,
        outbox: Outbox,
        *,
        queue: SynchronizedQueue,
        counter: TimestampCounter,
        staging: Staging,
        prefetching: Prefetching,
        incarnations: Mapping[str, int],
        incoming: Sequence[RecoveredRun],
        start: int,
        frozen: bool,
        now: int,
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._queue = queue
        self._counter = counter
        self._staging = staging
        self._prefetching = prefetching
        self._start = start
        self._fetching = Fetching(limit=config.max_fetches, retry_us=config.retry_us)
        self._collecting = Collecting(
            config, counter, self._fetching, queue.watermarks, incarnations
        )
        self._collecting.recover(list(incoming), now)
        self._peers = self._collecting.peer_list
        self._own = self._collecting.streams[config.node_id]
        self._own_headers = OwnHeaders(self._own.watermark, 4 * config.max_post_headers)
        for run in self._own.runs:
            self._own_headers.append(run.header)
        self._rounds = Rounds(config, now)
        #: True: an unstamped run may have become ready.
        self._stamp_check = bool(staging.runs)
        #: Own transactions up to this sequence number were reported as acquired.
        self._told_acquired = self._own.watermark
        self._added_at = now
        #: Position at the last round, and rounds since that added nothing.
        self._round_position = queue.position
        self._empty_rounds = 0
        self._clock_warned = False
        #: Non-members so near the end that runs are pushed to them as to members (P21).
        self.joiners: tuple[NodeId, ...] = ()
        #: Nodes that a follower fetches from (P38), in turn; empty = all members.
        self.sources: tuple[NodeId, ...] = ()
        #: True: nothing is stamped, posted or added (P14).
        self.frozen = False
        if frozen:
            self.freeze(now)

    @property
    def _streams(self) -> Sequence[Stream]:
        return self._collecting.stream_list

    def look_at_clock(self, *, was_set: bool) -> None:
        """Note that time passed, and whether the wall clock was set meanwhile (C3)."""
        if was_set:
            for peer in self._peers:
                peer.forget_clock()
        if not self._peers:
            self._counter.clock.believe()

    # ------------------------------------------------------------------ events

    def on_link(self, node_id: str, now: int, *, up: bool) -> None:
        """Note that the connection to a peer came up or broke."""
        peer = self._collecting.peers.get(node_id)
        if peer is not None:
            peer.owed = peer.owed or (up and not peer.linked)
            peer.linked = up
            if up:
                self._fetching.hurry(now)

    def on_fetch_failed(self, digest: bytes, now: int) -> None:
        """Plan another attempt of a fetch or prefetch."""
        if not self._fetching.failed(digest, now):
            self._prefetching.failed(digest, now)

    def on_files(self, event: FilesHeld | FilesLost, now: int) -> None:
        """Note that the files of an announced run are durable here, or lost (P1a).

        An own unstamped run whose files are lost is rejected: no node could fetch it, and it would
        block all others.  One that was accepted under an earlier incarnation may have had a stamp
        there, so it waits until this node is a member, whose queue says whether it was ordered.
        """
        if isinstance(event, FilesHeld):
            if self._prefetching.holds(event.digest, now):
                self._collecting.news = True
            if self._staging.found_whole(event.digest):
                self._stamp_check = True
            return
        if not (self.frozen and self._staging.may_have_a_stamp(event.digest)):
            lost = self._staging.withdraw(event.digest)
            self._withdraw([(submit, "payload-store", event.text) for submit in lost])

    def _withdraw(self, submits: Sequence[tuple[RunSubmitted, str, str]]) -> None:
        """Forget own unstamped runs durably, and tell their clients why.

        An earlier copy may be ordered: every client that asks gets the outcome of that (P25c).
        Else what its session submitted after a run goes with it, at once: a part would be stamped
        after a crash (P34).
        """
        left = {submit.ticket: submit for submit, *_ in submits}
        for submit, code, text in submits:
            if left.pop(submit.ticket, None) is None:
                continue  # it went with an earlier one of its session
            first = submit.facts.ids[:16]
            resting = f"transaction {transaction_id_to_text(first)} before it in its session was"
            gone = [(submit, code, text, b"")]
            if not self._was_ordered(submit):
                # Several runs of a session may end at once: all waited too long, or lost files.
                also = [one for one in left.values() if one.rests_on(submit)]
                followers = self._staging.take_followers(submit) + also
                for one in also:
                    del left[one.ticket]
                gone += [
                    (follower, SessionRolledBackError.code, f"{resting} withdrawn: {text}", first)
                    for follower in sorted(followers, key=lambda one: one.ticket)
                ]
            runs = tuple(
                WithdrawnRun(ticket=one.ticket, digest=one.digest, code=why, text=words)
                for one, why, words, _ in gone
            )
            self._outbox.persist(PersistWithdrawal(runs=runs))
            for one, why, words, rests_on in gone:
                if self._was_ordered(one):
                    self.reject(one, "duplicate-transaction", f"{words}; it was ordered before")
                else:
                    self.reject(one, why, words, rests_on)
            self._stamp_check = True

    def _was_ordered(self, submit: RunSubmitted) -> bool:
        """Return whether an earlier copy of it is in the queue."""
        return bool(self._queue.effects.locate_all(submit.facts.ids))

    def on_submit(self, submit: RunSubmitted, now: int) -> None:
        """Make an own run durable and stamp it, or let it wait for its stamp (P1, P1a, P3b)."""
        config, staging = self._config, self._staging
        if submit.facts.n > config.max_run:
            return self.reject(
                submit, "oversize", f"{submit.facts.n} transactions in a run of {config.max_run}"
            )
        late = is_late(submit, config.inline_limit_bytes, config.quorum)
        waits = late or self.frozen or staging.must_wait(submit.session)
        waits = waits or holders_awaited(submit) > len(config.members)
        if text := self._no_room(submit, held_up=waits and staging.is_held_up(submit)):
            return self.reject(submit, "busy", text)
        distance = self._collecting.clock_distance(now)
        if distance > _REFUSE_CLOCK_US:
            return self.reject(
                submit,
                "clock-skew",
                f"this node's clock is {distance // 1_000_000} s off the members' median",
            )
        if not waits:
            return self._stamp(submit, now)
        self._outbox.persist(PersistAnnouncement(ticket=submit.ticket, digest=submit.digest))
        self._outbox.tell(TellAccepted(ticket=submit.ticket, header=None))
        staging.add(submit, now, self._counter.clock.wall, late=late)
        self._stamp_check = True
        return None

    def _no_room(self, submit: RunSubmitted, *, held_up: bool) -> str:
        """Return why there is no room for another own run, empty = there is (P3b).

        Runs that wait for members have a part of it, the others have the rest, also while that part
        is empty (P34).  A run has room in an empty part, however large it is.

        Args:
            held_up: Whether it would wait for members.
        """
        config, own, staging = self._config, self._own, self._staging
        runs, size = len(own.runs) + len(staging.runs), own.payload_bytes + staging.payload_bytes
        most_runs, most_bytes = config.max_incoming_runs, config.max_incoming_bytes
        full = runs >= most_runs or size + submit.size_bytes > most_bytes
        if not full:
            part = most_runs // _HELD_UP_PART, most_bytes // _HELD_UP_PART
            if held_up:
                runs, size = staging.held_up_runs, staging.held_up_bytes
                most_runs, most_bytes = part
            else:
                runs, size = runs - staging.held_up_runs, size - staging.held_up_bytes
                most_runs, most_bytes = most_runs - part[0], most_bytes - part[1]
            if not runs or (runs < most_runs and size + submit.size_bytes <= most_bytes):
                return ""
        if full or not held_up:
            return f"{runs} own runs of {size} bytes wait to be ordered already"
        return (
            f"{runs} own runs of {size} bytes wait for members already, and there are "
            f"{len(config.members)}: bring missing nodes back, or lower synchro-quorum"
        )

    def reject(self, submit: RunSubmitted, code: str, text: str, rests_on: bytes = b"") -> None:
        """Report that a submit changed nothing."""
        self._outbox.tell(
            TellRejected(ticket=submit.ticket, code=code, text=text, rests_on=rests_on)
        )

    def _stamp(self, submit: RunSubmitted, now: int) -> None:
        """Give a durable own run its timestamp and sequence numbers (P1, P1b)."""
        config, own = self._config, self._own
        header = RunHeader(
            epoch=config.epoch,
            ts=self._counter.stamp(),
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
        self._outbox.persist(PersistOwnRun(ticket=submit.ticket, header=header))
        self._outbox.tell(TellAccepted(ticket=submit.ticket, header=header))
        if header.staged_bytes == 0 and header.size_bytes <= config.push_limit_bytes:
            pushed = [peer.node_id for peer in self._peers if peer.linked]
            for node in (*pushed, *self.joiners):
                self._outbox.tell(SendPush(peer=node, header=header))
        self._collecting.news = True

    def on_post(self, post: Post, now: int) -> None:
        """Collect a peer's post (P5): any order, any loss, any merge base."""
        if self.frozen:
            return
        peer = self._collecting.take_post(post, now)
        self._check_clock(now)
        if peer is None:
            return
        if peer.is_newest(post):
            if peer.last_post_at is not None and now > peer.last_post_at + _AWAY_US:
                self._fetching.hurry(now)
            if peer.note_newest(post, self._config.node_id, now):
                self._stamp_check = True
            self._queue.check_base(peer.node_id, post.base)
            self._serve_lagger(peer, now)
        if post.busy or post.base.position > self._queue.position:
            self._rounds.wake(now)

    def _serve_lagger(self, peer: Peer, now: int) -> None:
        """Send the tail to a peer whose queue is shorter and cannot grow by headers alone (P9)."""
        base, ahead, retry_us = peer.base, peer.ahead, self._config.retry_us
        position = max(base.position, 0 if ahead is None else ahead.position)
        if position >= self._queue.position or (ahead is not None and not ahead.room):
            return
        lacks_headers = (peer.known_of_me or 0) < self._own_headers.floor
        stuck = now >= peer.base_since + retry_us
        repeated = peer.tail_position == position and now < peer.tail_at + retry_us
        if (lacks_headers or stuck) and not repeated:
            peer.tail_position, peer.tail_at = position, now
            self._outbox.tell(
                SendTail(
                    peer=peer.node_id,
                    position=base.position,
                    chain_hash=base.chain_hash,
                    ahead=ahead,
                )
            )

    def on_payload(self, header: RunHeader, facts: RunFacts, now: int) -> None:
        """Keep a pushed or fetched run (P4); an unwanted one is not persisted."""
        self._fetching.arrived(header)
        acquired = self._acquire_frozen if self.frozen else self._acquire
        if acquired(header, facts, now):
            self._outbox.persist(PersistForeignRun(header=header))
            self._prefetching.forget(header.digest)

    def _acquire(self, header: RunHeader, facts: RunFacts, now: int) -> bool:
        collecting = self._collecting
        peer, stream = collecting.peers.get(header.origin), collecting.streams.get(header.origin)
        if peer is None or stream is None or header.seq <= stream.watermark:
            return False
        if header.epoch != self._config.epoch:
            return False  # sent before the epoch changed: if it still waits, it was stamped again
        if header.seq > stream.known and collecting.is_runaway(peer, header.ts):
            return False
        run = collecting.learn(peer, stream, header, now)
        if run is None:
            return collecting.keep_early(stream, header, facts, now)
        if run.facts is not None:
            return False
        stream.acquire(run, facts)
        tail = self._queue.tail
        # No node waits for a report about a run that is already in another queue.
        if not tail or run.key > tail[-1].header.key:
            collecting.news = True
        return True

    def _acquire_frozen(self, header: RunHeader, facts: RunFacts, now: int) -> bool:
        """Acquire a run that a tail or a flush named; keep others outside their streams (P14, P16).

        Runs outside a stream are durable but do not count as acquired; they need not be fetched
        when a tail or a flush names them.
        """
        stream = self._collecting.streams.get(header.origin)
        if stream is None:
            return False
        run = stream.get(header.seq)
        if run is None:
            return self._collecting.keep_early(stream, header, facts, now)
        if run.facts is not None or run.header != header:
            return False
        stream.acquire(run, facts)
        return True

    def on_tail(self, tail: Tail, now: int) -> None:
        """Process a part of a longer queue (P9); what is ordered in an epoch is final."""
        collecting = self._collecting
        if tail.sender not in collecting.peers and not self.frozen:
            return
        # A non-member, or a stopped node, has no time to compare with that of the queue.
        limit = LARGEST if self.frozen else self._counter.clock.limit
        if not all_fit((entry.header for entry in tail.entries), limit):
            text = f"{tail.sender} sent a tail with a timestamp that cannot be: refused"
            self._collecting.warnings.append(("protocol-remote", text))
            return
        for entry in self._queue.continue_tail(tail, self._config.epoch):
            collecting.learn_ordered(entry.header, now, frozen=self.frozen, settled=True)
            collecting.note_holder(tail.sender, entry.header)
            self._queue.tail.append(entry)

    def on_announcement(self, announcement: Announcement, now: int) -> None:
        """Note the announcement of a run that is stamped later (P1a)."""
        config = self._config
        if (
            announcement.origin in self._collecting.peers
            and announcement.log_id == config.log_id
            and announcement.epoch == config.epoch
        ):
            self._prefetching.announce(announcement, now)

    # ------------------------------------------------------------------ once per batch

    def flush(self, now: int) -> None:
        """Do once per batch what its events made possible."""
        self._give_up(now)
        if self.frozen:
            self._follow(now)
        else:
            self._order(now)
        for run in self._fetching.start(now):
            sources = self.sources or self._collecting.holding(run, anybody=self.frozen)
            self._outbox.tell(FetchPayload(header=run.header, sources=sources))
        for announcement in self._prefetching.start(now):
            self._outbox.tell(PrefetchFiles(announcement=announcement))
        if not self.frozen:
            self._post(now)
        if self._collecting.warnings:
            warnings = self._collecting.warnings
            self._outbox.tell_all(Alarm(code=code, text=text) for code, text in warnings)
            warnings.clear()

    def _give_up(self, now: int) -> None:
        """Withdraw runs that members or a group kept from a stamp, also while frozen (P34, P41)."""
        gone, there = self._staging.give_up(now), len(self._config.members)
        self._withdraw([(s, *why_given_up(s, self._holding(s.digest), there)) for s in gone])

    def _order(self, now: int) -> None:
        if self._staging.runs:
            self._stamp_ready(now)
        self._tell_acquired()
        self._add(now)

    def _follow(self, now: int) -> None:
        """Append runs of other queues once they are durable here (P9)."""
        if self._queue.tail:
            self._queue.append_tail(self._collecting.streams)
            self._drain(now, _FROM_ANOTHER)

    def _stamp_ready(self, now: int) -> None:
        """Stamp announced runs whose files enough members hold, or were found whole here (P1a)."""
        staging, config = self._staging, self._config
        deadline = staging.next_deadline()
        if not self._stamp_check and (deadline is None or now < deadline):
            return
        self._stamp_check = False
        for run in staging.awaited():
            run.ready = files_are_held(run, self._holding(run.submit.digest), config.quorum)
        for submit in staging.take_ready(len(config.members)):
            self._stamp(submit, now)
        for digest in staging.take_overdue(now):
            self._outbox.tell(CheckUnstamped(digest=digest))
        for submit in staging.take_unannounced(now, config.retry_us, config.idle_round_max_us):
            announcement = Announcement(
                log_id=config.log_id,
                epoch=config.epoch,
                origin=config.node_id,
                digest=submit.digest,
                size_bytes=submit.size_bytes,
                staged_bytes=submit.staged_bytes,
            )
            self._outbox.tell_all(
                SendAnnouncement(peer=peer.node_id, announcement=announcement)
                for peer in self._peers
                if submit.digest not in peer.held
            )

    def _holding(self, digest: bytes) -> list[str]:
        """Return the members that hold the files of an own unstamped run durably."""
        return [self._config.node_id, *(p.node_id for p in self._peers if digest in p.held)]

    def _tell_acquired(self) -> None:
        """Report own runs that the acquisition quorum holds (commit level `acquired`)."""
        own = self._own
        if self._told_acquired >= own.known:
            return
        mark = self._collecting.acquired_mark()
        self._told_acquired = max(self._told_acquired, own.watermark)
        peers, quorum = self._peers, self._config.quorum
        while (run := own.get(self._told_acquired + 1)) is not None and run.last <= mark:
            needed = holders_needed(run, peers, quorum)
            if needed > quorum and holders(run, peers) < needed:
                break
            self._told_acquired = run.last
            self._outbox.tell(TellAcquired(header=run.header))

    def _add(self, now: int) -> None:
        """Append what is agreed: the known tail first (P9), then what ADD allows (P7)."""
        queue, streams = self._queue, self._collecting.streams
        if queue.tail:
            queue.append_tail(streams)
            # Its sender may be in a later epoch, and this the final queue of the present one.
            self._drain(now, _FROM_ANOTHER)
            # The peer with the longer queue sends the next part when it learns the new base.
            self._collecting.news = self._collecting.news or not queue.tail
        if self.busy and not queue.tail:
            own = max(self._counter.value, self._counter.log_time)
            least = least_promise(self._peers, own)
            quorum = self._config.quorum
            # The next run of the agreed order, if it may be added now; stop, never skip.
            while (run := head_of(self._streams)) and may_add(run, self._peers, least, quorum):
                queue.append(run, streams[run.header.origin])
        self._drain(now, len(self._config.members))

    def _drain(self, now: int, holders: int) -> None:
        """Persist and report appended runs.

        Args:
            holders: So many members hold each of them, or as many as it needs.
        """
        appended = self._queue.drain()
        if appended is not None:
            self._added_at = now
            self._counter.use(self._queue.key[1])
            self._outbox.persist(appended)
            self._outbox.tell(TellOrdered(entries=appended.entries, holders=holders))

    # ------------------------------------------------------------------ rounds

    def lacking(self, deaf: Container[str] = ()) -> dict[NodeId, int]:
        """Return the members whose usable promise does not reach the first run that waits.

        Each comes with what it promises; if nobody waits for anything, there are none.  This node
        takes nothing from a member that counts too far ahead, so it has only that member's word for
        what waits there.  A member that does not know of an own run which waits first does not hear
        this node, and acquires nothing of it, whatever it promises: it comes with what it knows.
        If it heard of the run before it went deaf, it comes with what it acquired.  A member that
        does not hear this node gives it no payload either: where its own run waits first and is
        lacked here, it comes with that run.

        Args:
            deaf: Nodes that say that they do not hear this one.
        """
        head = head_of(self._collecting.stream_list)
        ts = -1 if head is None else head.header.ts
        seq = head.last if head is not None and head.header.origin == self._own.origin else 0
        lacked = head.header.origin if head is not None and head.facts is None else None
        found: dict[NodeId, int] = {}
        for peer in self._peers:
            if peer.counter < ts or (peer.refused and peer.busy):
                found[peer.node_id] = peer.counter
            elif (known := peer.known_of_me or 0) < seq:
                found[peer.node_id] = known
            elif peer.node_id in deaf and (held := peer.acquired.get(self._own.origin, 0)) < seq:
                found[peer.node_id] = held
            elif peer.node_id in deaf and peer.node_id == lacked:
                found[peer.node_id] = ts
        return found

    @property
    def busy(self) -> bool:
        """Whether unsynchronized transactions wait."""
        return head_of(self._collecting.stream_list) is not None

    def _post(self, now: int) -> None:
        """Post to all if there is news or the heartbeat is due, to single peers if needed (P8)."""
        news = self._collecting.news
        due = now >= self._rounds.heartbeat_at
        if not (news or due):
            owed = [peer for peer in self._peers if peer.owed and peer.linked]
            if owed:
                self._send_posts(owed, now)
            return
        busy, position = self.busy, self._queue.position
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
            self._outbox.tell(SendPost(peer=peer.node_id, post=post))
        reported = min([peer.known_of_me or 0 for peer in self._peers], default=self._own.known)
        own_headers.trim(self._own.watermark, reported)

    def _snapshot(self, now: int) -> RoundPosts:
        streams = self._streams
        return RoundPosts(
            round_number=self._rounds.number,
            base=self._queue.base,
            counter=self._counter.promise(),
            last_seq=self._own.known,
            known={stream.origin: stream.sure for stream in streams},
            acquired={stream.origin: stream.acquired for stream in streams},
            held=self._prefetching.held,
            wall=self._counter.clock.wall,
            busy=self.busy,
            ahead=self._queue.ahead,
        )

    # ------------------------------------------------------------------ faults

    def _check_clock(self, now: int) -> None:
        """Trust a clock that the members agree with; warn once when it differs (C3)."""
        collecting = self._collecting
        distance = collecting.clock_distance(now)
        if distance <= _REFUSE_CLOCK_US and collecting.clocks_suffice(now):
            self._counter.clock.believe()
        off = distance >= _WARN_CLOCK_US
        if off and not self._clock_warned:
            text = f"this node's clock is {distance / 1e6:.1f} s off the members' median"
            self._outbox.tell(Alarm(code="clock-skew", text=text))
        self._clock_warned = off

    # ------------------------------------------------------------------ epoch changes

    def freeze(self, now: int) -> None:
        """Stop for an epoch change (P14): runs not acquired by now are not acquired."""
        self.frozen = True
        self._collecting.truncate()
        self._queue.tail.clear()
        self._fetching.clear()
        self._outbox.drop_posts()

    def member_state(self) -> MemberState:
        """Return what a member's PROMISE says (P14)."""
        return member_state(self._queue, self._streams)

    def joiner_state(self) -> MemberState:
        """Return what the PROMISE of a node that asks to be admitted says (P21)."""
        return joiner_state(self._queue, self._streams)

    def want(self, view: View, now: int) -> int:
        """Request the final queue's runs that this node lacks; errors and result as `want`."""
        missing = want(self._queue, self._collecting, view, now)
        # Each member of the view holds the final queue (P16).  More may have held what comes before
        # its tail, but a view may come without that tail, so nobody knows where it begins.
        self._drain(now, len(view.members))
        return missing

    def claims(self, view: View) -> list[RunHeader]:
        """Return the runs that a view voids and that this node says it holds (P32)."""
        return claims(self._queue, self._collecting, view)

    def finish(self, view: View, now: int) -> list[RecoveredRun]:
        """Append the final queue's tail; return the own runs that are not in it, in order (P18).

        Raises:
            InvariantViolation: This node's queue is no prefix of the final one (I4).
        """
        for voided in append_final(self._queue, self._collecting.streams, view, now):
            self._outbox.persist(PersistVoid(voided=voided))
        # Each member-to-be holds the final queue (P16); those that are left may be fewer.
        self._drain(now, len(view.members))
        check_end(self._queue, view)
        return self.own_incoming()

    def own_incoming(self) -> list[RecoveredRun]:
        """Return the own durable runs after the queue's end, in order."""
        durable = (run if run.facts is not None else run.replaced for run in self._own.runs)
        return [
            RecoveredRun(header=run.header, facts=run.facts)
            for run in durable
            if run and run.facts and run.header.incarnation == self._config.incarnation
        ]

    def loaded(self) -> tuple[int, int]:
        """Return the last own sequence number, and the sum of what is acquired (P30)."""
        return self._own.known, sum(stream.acquired for stream in self._streams)

    def durable_of(self, origin: str) -> int:
        """Return the number up to which all runs of an origin are durable here."""
        stream = self._collecting.streams.get(origin)
        return self._queue.watermarks.get(origin, 0) if stream is None else stream.acquired

    # ------------------------------------------------------------------ display

    def next_deadline(self) -> int | None:
        """Return when something is due, None = nothing."""
        times = [
            self._fetching.next_deadline(),
            self._prefetching.next_deadline(),
            self._staging.overdue_at,
        ]
        if not self.frozen:
            times.append(self._rounds.heartbeat_at)
            if self._staging.runs:
                times.append(self._staging.next_deadline())
        return earliest(times)

    def status(self, now: int) -> MasterStatus:
        """Return the state for display; costs O(members + unstamped runs)."""
        streams, queue = self._streams, self._queue
        return MasterStatus(
            node_id=self._config.node_id,
            epoch=self._config.epoch,
            position=queue.position,
            chain_hash=queue.hash,
            counter=self._counter.value,
            reserved=self._counter.reserved,
            incoming_runs=sum(len(stream.runs) for stream in streams),
            incoming_transactions=sum(s.known - s.watermark for s in streams),
            incoming_bytes=sum(stream.payload_bytes for stream in streams),
            acquired={stream.origin: stream.acquired for stream in streams},
            unstamped_runs=len(self._staging.runs),
            round=self._rounds.number,
            empty_rounds=self._empty_rounds,
            busy=self.busy,
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
                    now=now,
                    silent_after_us=self._config.silent_after_us,
                    busy=self.busy,
                )
                for peer in self._peers
            ),
            clock_distance_us=self._collecting.clock_distance(now),
            synchronous=synchronous_status(
                self._staging, self._own.runs, self._peers, self._config.quorum
            ),
            rows_until=queue.effects.rows_until(),
        )

    def incoming(self, limit: int) -> list[IncomingRun]:
        """Return the first runs of the incoming queue in agreed order, and what each waits for."""
        runs = heapq.merge(*(stream.runs for stream in self._streams), key=lambda run: run.key)
        return [
            IncomingRun(
                header=run.header,
                acquired=run.facts is not None,
                since=run.seen_at,
                waits=awaited_by(
                    run,
                    peers=self._peers,
                    self_id=self._config.node_id,
                    quorum=self._config.quorum,
                    since=run.seen_at,
                ),
            )
            for run in islice(runs, limit)
        ]
