"""What this node knows of each other member (protocol P2, P5, P9, C3)."""

from __future__ import annotations

from bisect import insort

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import Ahead, MergeBase, Post

#: Promises kept for later per peer; a further one is made again with the next post (P3b).
_MAX_PENDING = 64
#: Clock offsets kept per peer.
_CLOCK_SAMPLES = 4


class Peer:
    """One other member.

    Promise and acquired vector only grow, whatever order posts arrive in (P5).  What a peer says
    of itself at the moment (`known_of_me`, `held`, `base`, `busy`) is taken from its newest post;
    (start, round) orders the posts of a peer, its restarts included.
    """

    __slots__ = (
        "_offsets", "acquired", "ahead", "base", "base_since", "busy", "clock_at",
        "clock_offset_us", "counter", "held", "known_of_me", "last_post_at", "last_seq",
        "linked", "more", "newest", "node_id", "owed", "pending", "refused", "tail_at",
        "tail_position",
    )  # fmt: skip

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        #: Usable promise (c, n): all own headers up to n are held here.
        self.counter = -1
        self.last_seq = 0
        #: Promises whose headers are not all held yet, ascending; usable later (P5).
        self.pending: list[tuple[int, int]] = []
        #: Per origin: durable there up to this sequence number.  Never shrinks.
        self.acquired: dict[str, int] = {}
        #: My sequence numbers whose headers it holds; None = it has not said yet.
        self.known_of_me: int | None = None
        self.held: frozenset[bytes] = frozenset()
        self.base = MergeBase()
        self.base_since = 0
        #: What it has of a tail after that.
        self.ahead: Ahead | None = None
        self.busy = False
        #: (start, round) of the newest post.
        self.newest = (-1, -1)
        self.linked = True
        self.last_post_at: int | None = None
        #: It must get a post of mine at once (link came up, it restarted, a post was cut).
        self.owed = False
        #: My last post to it was cut to the configured size.
        self.more = False
        #: A post of it was refused for its clock.
        self.refused = False
        #: Position and time of the last tail sent to it.
        self.tail_position = -1
        self.tail_at = 0
        #: Its wall clock minus this node's, microseconds; None = not measured twice.
        self.clock_offset_us: int | None = None
        #: When it was measured last, shell's time.
        self.clock_at = 0
        self._offsets: tuple[int, ...] = ()

    def is_newest(self, post: Post) -> bool:
        """Return whether the post is newer than all before."""
        return (post.start, post.round) > self.newest

    def note_newest(self, post: Post, reader: NodeId, now: int) -> bool:
        """Take the peer's present state from its newest post; return whether `held` changed."""
        if post.start != self.newest[0]:
            self.owed = True
        known_of_me = post.known.get(reader, 0)
        if self.more and known_of_me != self.known_of_me:
            self.owed = True
        self.newest = (post.start, post.round)
        self.known_of_me = known_of_me
        self.last_post_at = now
        self.busy = post.busy
        if post.base.position != self.base.position:
            self.base_since = now
        self.base, self.ahead = post.base, post.ahead
        if not post.held and not self.held:
            return False
        held = frozenset(post.held)
        changed = held != self.held
        self.held = held
        return changed

    def measure_clock(self, offset_us: int, now: int) -> None:
        """Note how far its wall clock was ahead of this node's when a post came."""
        self._offsets = (*self._offsets[1 - _CLOCK_SAMPLES :], offset_us)
        self.clock_at = now
        # Of several measured offsets the largest one had the least delay.
        self.clock_offset_us = max(self._offsets) if len(self._offsets) > 1 else None

    def forget_clock(self) -> None:
        """Forget what was measured: this node's clock was set."""
        self._offsets, self.clock_offset_us = (), None

    def record_promise(self, counter: int, last_seq: int, known: int) -> None:
        """Keep a promise: usable if its headers are held, else for later; the largest counts."""
        if counter <= self.counter:
            return
        if last_seq > known:
            # Of several promises with the same headers the largest says all; repeats say nothing.
            if any(n == last_seq and c >= counter for c, n in self.pending):
                return
            self.pending = [promise for promise in self.pending if promise[1] != last_seq]
            if len(self.pending) < _MAX_PENDING:
                insort(self.pending, (counter, last_seq))
            return
        self.counter, self.last_seq = counter, last_seq
        if self.pending:
            self.pending = [promise for promise in self.pending if promise[0] > counter]

    def settle_promise(self, known: int) -> None:
        """Make pending promises usable whose headers are held by now."""
        while self.pending and self.pending[0][1] <= known:
            self.counter, self.last_seq = self.pending.pop(0)

    def record_acquired(self, vector: dict[str, int]) -> None:
        """Merge an acquired vector: elementwise maximum (P5)."""
        mine = self.acquired
        for origin, seq in vector.items():
            if seq > mine.get(origin, 0):
                mine[origin] = seq


def distance_from_median(offsets: list[int]) -> int:
    """Return how far this node's clock is from the members' median, microseconds (C3).

    Args:
        offsets: The peers' clocks minus this node's.
    """
    clocks = sorted([0, *offsets])
    middle = len(clocks) // 2
    low, high = clocks[(len(clocks) - 1) // 2], clocks[middle]
    return max(abs(low), abs(high))
