"""When to post and what: rounds, heartbeats and delta headers (protocol P3, P8).

A post is self-contained: its headers are those the *receiver reported* not to hold, so
a newer post can replace one that still waits.  A post that would carry too many headers is cut; it
then makes a second promise that reaches only as far as its headers, so that it is of use at once.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from sparktxlog.protocol.messages.posts import Ahead, MergeBase, Post, RunHeader
from sparktxlog.protocol.messages.recovery import MasterConfig


class Rounds:
    """Post counter and heartbeat (P8): at once with news, else at growing intervals."""

    __slots__ = ("_idle_max_us", "_idle_min_us", "_pause_us", "_retry_us", "heartbeat_at", "number")

    def __init__(self, config: MasterConfig, now: int) -> None:
        #: Rounds posted since the start.
        self.number = 0
        #: Shell's time of the next post without news, microseconds.
        self.heartbeat_at = now
        self._idle_min_us = config.idle_round_min_us
        self._idle_max_us = config.idle_round_max_us
        # While transactions wait, posts are repeated sooner: an important one may be lost.
        self._retry_us = min(config.retry_us, config.idle_round_min_us)
        self._pause_us = 0

    def plan(self, now: int, *, news: bool, busy: bool) -> None:
        """Plan the next heartbeat; the pause doubles while nothing is new."""
        least = self._retry_us if busy else self._idle_min_us
        most = self._idle_min_us if busy else self._idle_max_us
        self._pause_us = least if news else min(max(2 * self._pause_us, least), most)
        self.heartbeat_at = now + self._pause_us

    def wake(self, now: int) -> None:
        """Leave the idle rhythm: a peer has waiting transactions."""
        self._pause_us = 0
        self.heartbeat_at = min(self.heartbeat_at, now + self._retry_us)


class OwnHeaders:
    """Own headers that peers may still need: all incoming ones and a bounded number before."""

    __slots__ = ("_headers", "_keep", "floor")

    def __init__(self, watermark: int, keep: int) -> None:
        #: Headers after this sequence number are here.
        self.floor = watermark
        self._headers: deque[RunHeader] = deque()
        self._keep = keep

    def append(self, header: RunHeader) -> None:
        """Keep a new own header."""
        self._headers.append(header)

    def trim(self, watermark: int, reported: int) -> None:
        """Drop headers that are synchronized, and reported by all peers or over the bound."""
        headers = self._headers
        while headers and headers[0].last <= watermark:
            if headers[0].last > reported and len(headers) <= self._keep:
                break
            self.floor = headers.popleft().last

    def after(self, seq: int, limit: int) -> tuple[tuple[RunHeader, ...], RunHeader | None]:
        """Return up to `limit` headers after `seq`, and the first one left out."""
        headers = self._headers
        if not headers or seq >= headers[-1].last:
            return (), None
        # The receiver usually lacks the last few: count them from the end.
        count = 0
        for header in reversed(headers):
            if header.seq <= seq:
                break
            count += 1
        start = len(headers) - count
        if count > limit:
            return tuple(islice(headers, start, start + limit)), headers[start + limit]
        return tuple(islice(headers, start, None)), None


class RoundPosts:
    """The common part of all posts of one round."""

    __slots__ = (
        "_bare", "acquired", "ahead", "base", "busy", "counter", "held", "known", "last_seq",
        "round", "wall",
    )  # fmt: skip

    def __init__(
        self,
        *,
        round_number: int,
        base: MergeBase,
        counter: int,
        last_seq: int,
        known: dict[str, int],
        acquired: dict[str, int],
        held: tuple[bytes, ...],
        wall: int,
        busy: bool,
        ahead: Ahead | None,
    ) -> None:
        self.round = round_number
        self.base = base
        self.counter = counter
        self.last_seq = last_seq
        self.known = known
        self.acquired = acquired
        self.held = held
        self.wall = wall
        self.busy = busy
        self.ahead = ahead
        #: The post without headers, the same for every peer.
        self._bare: Post | None = None

    def post(
        self,
        config: MasterConfig,
        start: int,
        headers: tuple[RunHeader, ...],
        left_out: RunHeader | None,
    ) -> Post:
        """Return the post for one peer; `left_out` is the first header it has no room for."""
        if headers or left_out is not None:
            return self._make(config, start, headers, left_out)
        if self._bare is None:
            self._bare = self._make(config, start, (), None)
        return self._bare

    def _make(
        self,
        config: MasterConfig,
        start: int,
        headers: tuple[RunHeader, ...],
        left_out: RunHeader | None,
    ) -> Post:
        cut = None if left_out is None else (left_out.ts - 1, left_out.seq - 1)
        return Post(
            log_id=config.log_id,
            epoch=config.epoch,
            sender=config.node_id,
            round=self.round,
            base=self.base,
            counter=self.counter,
            last_seq=self.last_seq,
            headers=headers,
            cut=cut,
            known=self.known,
            acquired=self.acquired,
            held=self.held,
            wall=self.wall,
            busy=self.busy,
            start=start,
            ahead=self.ahead,
        )
