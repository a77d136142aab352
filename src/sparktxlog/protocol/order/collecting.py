"""COLLECT and MERGE: adds peers' posts, pushes and tails to the streams (protocol P5, P6, P10).

Promises and acquired vectors only grow, headers only join at the end of their stream, and a
promise counts only once its headers are held.  So loss, duplication and reordering are harmless,
and posts of any merge base may be used.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparktxlog.errors import ContradictionError, InvariantViolation, OutdatedError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.bounds import fits, post_fits
from sparktxlog.protocol.messages.posts import Post, RunHeader
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredRun
from sparktxlog.protocol.order.counter import TimestampCounter
from sparktxlog.protocol.order.fetching import Fetching
from sparktxlog.protocol.order.origin_queues import Run, Stream, same_run
from sparktxlog.protocol.order.peers import Peer, distance_from_median

#: Runs kept durable after a gap, per origin; further ones are fetched later (P3b).
_MAX_EARLY = 1_024


class Collecting:
    """Streams of all members, and the state that other members reported.

    Args:
        watermarks: Per origin, the last sequence number in the synchronized queue; kept current
            by the queue.
        incarnations: The incarnation with which each origin stamps in this epoch.
    """

    __slots__ = (
        "_config", "_counter", "_fetching", "_incarnations", "_own", "_watermarks", "news",
        "peer_list", "peers", "posted_counter", "stream_list", "streams", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        config: MasterConfig,
        counter: TimestampCounter,
        fetching: Fetching,
        watermarks: Mapping[str, int],
        incarnations: Mapping[str, int],
    ) -> None:
        self._config = config
        self._watermarks = watermarks
        self._incarnations = incarnations
        self._counter = counter
        self._fetching = fetching
        self.streams: dict[str, Stream] = {
            member: Stream(member, watermarks.get(member, 0)) for member in config.members
        }
        self.stream_list = tuple(self.streams.values())
        self._own = self.streams[config.node_id]
        self.peers: dict[str, Peer] = {
            member: Peer(member) for member in config.members if member != config.node_id
        }
        self.peer_list = tuple(self.peers.values())
        #: True: peers must learn of it at once (P8); the master clears it with a post.
        self.news = False
        #: Counter of this node's last post; headers above it need another promise.
        self.posted_counter = -1
        #: Texts for the operator (code `protocol-remote` or `clock-skew`), taken by the master.
        self.warnings: list[tuple[str, str]] = []

    @property
    def epoch(self) -> int:
        """Epoch of this node."""
        return self._config.epoch

    def recover(self, runs: list[RecoveredRun], now: int) -> None:
        """Add the durable runs after the queue's end.

        Raises:
            InvariantViolation: Own runs leave a gap.
        """
        for recovered in sorted(runs, key=lambda r: (r.header.origin, r.header.seq)):
            header = recovered.header
            stream = self.streams.get(header.origin)
            if stream is None or header.seq <= stream.watermark:
                continue
            if header.seq == stream.known + 1:
                stream.acquire(stream.register(header, now), recovered.facts)
            else:
                stream.keep_early(header, recovered.facts, now)
        if self._own.early:
            raise InvariantViolation(
                "own durable runs have a gap",
                sequence_numbers=sorted(self._own.early)[:8],
                known=self._own.known,
            )

    def take_post(self, post: Post, now: int) -> Peer | None:
        """Process a post; return its sender, None if the post was refused.

        Raises:
            ContradictionError: The sender broke a promise, or gave a number twice (P10).
            OutdatedError: The sender holds more of this node's transactions than this node (P30).
        """
        config = self._config
        peer = self.peers.get(post.sender)
        if peer is None or post.log_id != config.log_id or post.epoch != config.epoch:
            return None
        if post.wall and peer.is_newest(post):
            peer.measure_clock(post.wall - self._counter.clock.wall, now)
        if self.is_runaway(peer, post.counter):
            peer.busy = post.busy
            return None
        if not post_fits(post):
            text = f"{peer.node_id} sent a post with numbers that cannot be: refused"
            self.warnings.append(("protocol-remote", text))
            return None
        known_of_me = post.known.get(config.node_id, 0)
        if known_of_me > self._own.known:
            raise OutdatedError(
                f"{post.sender} holds own transactions up to {known_of_me}, "
                f"this node only up to {self._own.known}",
                hint="This node's data directory is not the one it ran with: it must return "
                "under a new incarnation.",
                peer=post.sender,
            )
        stream = self.streams[post.sender]
        for header in post.headers:
            self.learn(peer, stream, header, now)
        if post.cut is not None and post.cut[0] <= post.counter:
            self._take_promise(peer, stream, *post.cut)
        self._take_promise(peer, stream, post.counter, post.last_seq)
        peer.record_acquired(post.acquired)
        return peer

    def learn(self, peer: Peer, stream: Stream, header: RunHeader, now: int) -> Run | None:
        """Register a header of `peer` if it continues its stream; return its run if incoming."""
        config = self._config
        if header.seq <= stream.known:
            run = stream.get(header.seq)
            if run is not None:
                if run.unsure:
                    run = self._name_again(stream, run, header, now)
                same_run(run.header, header)
            return run
        if (
            header.origin != stream.origin
            or not self._may_stamp(header)
            or not 1 <= header.n <= config.max_run
            or not fits(header, self._counter.clock.limit)
        ):
            self.warnings.append(
                ("protocol-remote", f"{peer.node_id} sent a header that cannot be: {header}")
            )
            return None
        self._check_promise(peer, header)
        if header.seq > stream.known + 1 or len(stream.runs) >= config.max_incoming_runs:
            return None
        return self._register(stream, header, now)

    def _name_again(self, stream: Stream, run: Run, header: RunHeader, now: int) -> Run:
        """Note that a run whose payload nobody gave was named again; return what stands there.

        Nothing rests on the former name as long as the payload did not come (P10).
        """
        run.unsure = False
        self.news = True
        if run.header == header or not _only_named(run, header):
            return run
        text = f"{header.origin} named {header.seq} as another run before"
        self.warnings.append(("protocol-remote", text))
        return self._replace(stream, run, header, now)

    def _replace(
        self, stream: Stream, run: Run, header: RunHeader, now: int, *, fetched: bool = True
    ) -> Run:
        """Let another run stand where a run stands."""
        self._fetching.forget(run)
        run = stream.replace(header, now)
        if fetched:
            self._fetching.want(run, now)
        return run

    def _may_stamp(self, header: RunHeader) -> bool:
        """Return whether the origin of a header, as it is named there, stamps in this epoch."""
        incarnation = self._incarnations.get(header.origin, header.incarnation)
        return header.epoch == self._config.epoch and header.incarnation == incarnation

    def keep_early(self, stream: Stream, header: RunHeader, facts: RunFacts, now: int) -> bool:
        """Keep a run outside its stream: its predecessors are missing, or this node is frozen.

        Returns:
            Whether it is to be persisted.
        """
        if header.seq <= stream.known or len(stream.early) >= _MAX_EARLY:
            return False
        if stream is self._own or not self._may_stamp(header):
            return False
        if not fits(header, self._counter.clock.limit):
            return False
        return stream.keep_early(header, facts, now)

    def learn_ordered(
        self,
        header: RunHeader,
        now: int,
        *,
        frozen: bool,
        fetched: bool = True,
        settled: bool = False,
    ) -> None:
        """Register the header of an entry of a longer queue, unless it is known (P9).

        Args:
            frozen: The node is no member, or wedged: entries of any epoch and origin may come.
            fetched: Its payload is wanted.
            settled: It is in a queue, not only in a proposed value.

        Raises:
            InvariantViolation: It cannot continue its stream: the queues differ.
        """
        stream = self._stream_of(header.origin) if frozen else self.streams.get(header.origin)
        if stream is None:
            raise InvariantViolation(f"the tail holds a run of {header.origin}, which is no member")
        run = stream.get(header.seq)
        held = stream.early.get(header.seq) if run is None else run
        if held is not None and held.header.epoch < header.epoch:
            stream.truncate(header.seq - 1)  # its origin stamped it again meanwhile (P20)
            run = None
        elif held is not None and held.header != header:
            if settled and _only_named(held, header):
                text = f"{header.origin} named {header.seq} as another run than the queue has"
                self.warnings.append(("protocol-remote", text))
            else:
                header = _standing(held, header)
            if run is None and held.header != header:
                del stream.early[header.seq]
            elif run is not None and run.header != header:
                run = self._replace(stream, run, header, now, fetched=fetched)
        if run is None:
            run = self._learn_next(stream, header, now, frozen=frozen, fetched=fetched)
        if settled and not run.settled:
            run.settled = True
            if run.facts is None and not run.wanted:
                self._fetching.want(run, now)

    def _learn_next(
        self, stream: Stream, header: RunHeader, now: int, *, frozen: bool, fetched: bool
    ) -> Run:
        if stream is self._own and header.incarnation == self._config.incarnation:
            raise OutdatedError(
                f"the log holds own transactions up to {header.last}, this node only up to "
                f"{stream.known}"
            )
        if header.seq != stream.known + 1:
            raise InvariantViolation(
                f"the tail continues {header.origin} at {header.seq}, this node at "
                f"{stream.known + 1}",
                origin=header.origin,
            )
        peer = self.peers.get(header.origin)
        if peer is not None and not frozen:
            self._check_promise(peer, header)
        return self._register(stream, header, now, ordered=True, frozen=frozen, fetched=fetched)

    def learn_final(self, header: RunHeader, now: int, *, fetched: bool = True) -> Run:
        """Register a run of the final queue, unless it is known, and return it (P16)."""
        self.learn_ordered(header, now, frozen=True, fetched=fetched)
        run = self.streams[header.origin].get(header.seq)
        assert run is not None
        return run

    def learn_void(self, header: RunHeader, now: int) -> Run:
        """Register the void form of a run, and keep the run itself if it is here.

        Until the decision this node still reports that it holds the run (P32).
        """
        stream = self._stream_of(header.origin)
        held = stream.get(header.seq) or stream.early.get(header.seq)
        if held is not None and held.facts is not None and header.voids(held.header):
            return self.learn_final(held.header, now)
        return self.learn_final(header, now, fetched=False)

    def note_holder(self, node: str, header: RunHeader) -> None:
        """Note that a node holds a run that it named in a tail."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.record_acquired({header.origin: header.last})

    def truncate(self) -> None:
        """Forget everything that is not acquired without gap (P14)."""
        for stream in self.stream_list:
            stream.truncate(stream.acquired)

    def _stream_of(self, origin: str) -> Stream:
        """Return the stream of any origin; that of a non-member is made at its first use."""
        stream = self.streams.get(origin)
        if stream is None:
            stream = Stream(origin, self._watermarks.get(origin, 0))
            self.streams[origin] = stream
            self.stream_list = tuple(self.streams.values())
        return stream

    def _register(
        self,
        stream: Stream,
        header: RunHeader,
        now: int,
        *,
        ordered: bool = False,
        frozen: bool = False,
        fetched: bool = True,
    ) -> Run:
        """Register a header, and request its payload.

        Args:
            ordered: Others have it in their queues; else a small one may be on its way (P3a).
            frozen: What was kept outside the stream stays there until it is named itself (P14).
        """
        acquired = stream.acquired
        run = stream.register(header, now)
        if run.facts is None and fetched:
            small = header.staged_bytes == 0 and header.size_bytes <= self._config.push_limit_bytes
            self._fetching.want(run, now if ordered or not small else now + self._config.retry_us)
        # Runs that were pushed ahead of this one bring their headers along.
        while not frozen and (follower := stream.early.get(stream.known + 1)) is not None:
            header = stream.register(follower.header, now).header
        self._counter.learn(header.ts)
        if header.ts > self.posted_counter or stream.acquired != acquired:
            self.news = True
        peer = self.peers.get(stream.origin)
        if peer is not None:
            peer.settle_promise(stream.known)
        return run

    def _take_promise(self, peer: Peer, stream: Stream, counter: int, last_seq: int) -> None:
        if counter <= peer.counter:
            return
        broken = stream.breaks_promise(counter, last_seq)
        if broken is not None:
            raise ContradictionError(
                f"{peer.node_id} promises ({counter}, {last_seq}) after it stamped "
                f"{broken.seq} at {broken.ts} (P10)",
                peer=peer.node_id,
                seq=broken.seq,
            )
        peer.record_promise(counter, last_seq, stream.known)

    def _check_promise(self, peer: Peer, header: RunHeader) -> None:
        """Check a new header against what its origin promised (P10)."""
        for counter, last_seq in ((peer.counter, peer.last_seq), *peer.pending):
            if header.ts <= counter and header.seq > last_seq:
                raise ContradictionError(
                    f"{header.origin} promised ({counter}, {last_seq}) and then stamped "
                    f"{header.seq} at {header.ts} (P10)",
                    peer=header.origin,
                    seq=header.seq,
                )

    def is_runaway(self, peer: Peer, counter: int) -> bool:
        """Return whether a counter is too far ahead to be believed (C3)."""
        clock = self._counter.clock
        if counter <= clock.limit:
            peer.refused = False
            return False
        if not peer.refused:
            peer.refused = True
            hours = (counter - clock.time) // 3_600_000_000
            self.warnings.append(("clock-skew", f"{peer.node_id} counts {hours} h ahead: refused"))
        return True

    def holding(self, run: Run, *, anybody: bool = False) -> tuple[NodeId, ...]:
        """Return the holders of a payload: origin, then members that said so; linked ones first.

        Args:
            anybody: Name all peers: during an epoch change they hold what they do not say.
        """
        origin, last = run.header.origin, run.last
        holders = [
            peer
            for peer in self.peer_list
            if anybody or peer.node_id == origin or peer.acquired.get(origin, 0) >= last
        ]
        holders.sort(key=lambda peer: (not peer.linked, peer.node_id != origin))
        return tuple(peer.node_id for peer in holders)

    def acquired_mark(self) -> int:
        """Return the last own sequence number up to which the acquisition quorum holds all runs."""
        marks = [self._own.known]
        marks.extend(peer.acquired.get(self._own.origin, 0) for peer in self.peer_list)
        marks.sort(reverse=True)
        return marks[self._config.quorum - 1]

    def clock_distance(self, now: int) -> int:
        """Return this node's wall clock against the members' median, from recent posts (C3)."""
        offsets = self._clock_offsets(now)
        return distance_from_median(offsets) if offsets else 0

    def clocks_suffice(self, now: int) -> bool:
        """Return whether the clocks of most members are known."""
        return 2 * (1 + len(self._clock_offsets(now))) > 1 + len(self.peer_list)

    def _clock_offsets(self, now: int) -> list[int]:
        since = now - 2 * self._config.idle_round_max_us
        return [
            peer.clock_offset_us
            for peer in self.peer_list
            if peer.clock_offset_us is not None and peer.clock_at >= since
        ]


def _standing(held: Run, header: RunHeader) -> RunHeader:
    """Return which of two runs with one number counts, of which one is void (P32).

    Raises:
        ContradictionError: None of them is void.
    """
    if header.voids(held.header):
        return header
    if held.header.voids(header):
        # What came of it, or what a queue has, was decided; else it was only proposed.
        return held.header if held.facts is not None or held.settled else header
    same_run(held.header, header)
    return header


def _only_named(held: Run, header: RunHeader) -> bool:
    """Return whether all that speaks for a run is what its origin said to this node alone (P10).

    The run never came, and others have ordered what stands in its place.
    """
    void = header.voids(held.header) or held.header.voids(header)
    is_named = held.facts is None and not held.settled and not void
    return is_named and held.header.place == header.place
