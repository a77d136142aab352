"""Bounded queues of messages to one peer, and their sending (P3a, P9, P14–P17).

Posts go by themselves (`link_posts`).  Pushes and messages beyond their bounds are refused:
the peer fetches runs that were not pushed to it (P3a), and the core repeats messages that matter.
One request with pushes is under way at a time, so that many small ones are sent together; a few
small ones travel with a post that goes at the same time.  A few requests with messages are under
way; none waits for the answer to an earlier one.

A message waits for the pushes before it if they are few, so that peers which hold a node's last
runs answer its request for promises; it overtakes many.  Large messages have a separate lane, so
that small ones do not wait for them on a slow link.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sparktxlog.codec import wire
from sparktxlog.protocol.messages.posts import RunHeader

#: Most bytes of waiting pushes to one peer; further ones are dropped and fetched later.
_OUTBOX_BYTES = 32 << 20
#: Most bytes of pushes in one request.
_PUSH_BATCH_BYTES = 1 << 20
_MAX_MESSAGES = 256
#: Larger messages use the lane of large ones; most bytes of waiting ones.
_LARGE_BYTES = 64 << 10
_LARGE_LANE_BYTES = 32 << 20
#: A message overtakes waiting pushes of so many bytes.
_OVERTAKEN_BYTES = 64 << 10
#: Pushes of so many bytes travel with a post.
_RIDING_BYTES = 64 << 10


@dataclass(slots=True)
class Traffic:
    """Bytes exchanged with one peer since the start."""

    sent_bytes: int = 0
    received_bytes: int = 0
    #: Payloads and files got from this peer on request.
    fetched_bytes: int = 0
    posts: int = 0
    post_bytes_max: int = 0
    pushes_dropped: int = 0


@dataclass(slots=True)
class _Lane:
    """Messages of one size class."""

    #: How many more may be under way.
    free: asyncio.Semaphore
    #: (Number of pushes before it, path, body).
    waiting: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class LinkOutbox:
    """Outgoing messages to one peer; `pushing` and `messaging` send them while the link is up.

    Args:
        greeted: Set while the link is up.
        send: Sends a body to a path; deals with failures itself.
    """

    def __init__(
        self, greeted: asyncio.Event, send: Callable[[str, bytes], Awaitable[None]]
    ) -> None:
        self._greeted = greeted
        self._send = send
        self._pushes: deque[tuple[RunHeader, bytes]] = deque()
        self._push_bytes = 0
        #: Pushes that no longer wait.
        self._pushes_taken = 0
        self._push_ready = asyncio.Event()
        #: Returns whether a post waits that is sent at once, and takes pushes along.
        self.rides: Callable[[], bool] = lambda: False
        self._small, self._large = _Lane(asyncio.Semaphore(4)), _Lane(asyncio.Semaphore(1))
        #: Bodies of messages under way.
        self._sending: list[bytes] = []
        #: Set whenever something was sent or answered.
        self._progress = asyncio.Event()

    def push(self, header: RunHeader, payload: bytes) -> bool:
        """Send a run; False = too many bytes wait."""
        if self._push_bytes + len(payload) > _OUTBOX_BYTES:
            return False
        self._pushes.append((header, payload))
        self._push_bytes += len(payload)
        self._push_ready.set()
        return True

    def message(self, target: str, body: bytes) -> None:
        """Send a message, unless too many wait or the same one is being sent."""
        is_large = len(body) > _LARGE_BYTES
        lane = self._large if is_large else self._small
        if len(lane.waiting) >= _MAX_MESSAGES:
            return
        if is_large:
            waiting = [other for _, _, other in lane.waiting]
            # The core repeats unanswered messages; this one is unanswered because it still waits.
            if body in waiting or body in self._sending:
                return
            if waiting and sum(map(len, waiting)) + len(body) > _LARGE_LANE_BYTES:
                return
        lane.waiting.append((self._pushes_taken + len(self._pushes), target, body))
        lane.ready.set()

    def drop(self) -> None:
        """Drop pushes and messages: the link broke, and they will be fetched or repeated."""
        self._pushes_taken += len(self._pushes)
        self._pushes.clear()
        self._push_bytes = 0
        self._small.waiting.clear()
        self._large.waiting.clear()

    @property
    def is_done(self) -> bool:
        """Whether all pushes and messages were sent and answered."""
        ready = (self._push_ready, self._small.ready, self._large.ready)
        return not self._sending and not any(event.is_set() for event in ready)

    async def progress(self) -> None:
        """Wait until something was sent and answered."""
        self._progress.clear()
        await self._progress.wait()

    async def pushing(self) -> None:
        """Send pushes until cancelled."""
        while True:
            await self._push_ready.wait()
            await self._greeted.wait()
            if self.may_ride() and self.rides():
                self._push_ready.clear()
                continue
            pushes = self._take_pushes()
            if not pushes:
                self._push_ready.clear()
                self._progress.set()
                continue
            await self._send("/peer/v1/pushes", wire.encode_pushes(pushes))

    def may_ride(self) -> bool:
        """Return whether runs wait that may travel with a post."""
        return 0 < self._push_bytes <= _RIDING_BYTES

    def riding_pushes(self) -> bytes:
        """Take the pushes that travel with a post, as a body; empty = none do."""
        return wire.encode_pushes(self._take_pushes()) if self.may_ride() else b""

    def _take_pushes(self) -> list[tuple[RunHeader, bytes]]:
        """Take the runs of the next request: one, or more up to a bound of bytes."""
        batch: list[tuple[RunHeader, bytes]] = []
        size = 0
        while self._pushes and (not batch or size + len(self._pushes[0][1]) <= _PUSH_BATCH_BYTES):
            batch.append(self._pushes.popleft())
            size += len(batch[-1][1])
        self._push_bytes -= size
        self._pushes_taken += len(batch)
        for lane in (self._small, self._large):
            if lane.waiting:  # a message may have waited for these
                lane.ready.set()
        return batch

    async def messaging(self) -> None:
        """Send messages until cancelled."""
        async with asyncio.TaskGroup() as group:
            for lane in (self._small, self._large):
                group.create_task(self._send_lane(group, lane))

    async def _send_lane(self, group: asyncio.TaskGroup, lane: _Lane) -> None:
        while True:
            await lane.ready.wait()
            await self._greeted.wait()
            await lane.free.acquire()
            if lane.waiting and self._may_go(lane.waiting[0][0]):
                _, target, body = lane.waiting.popleft()
                self._sending.append(body)
                group.create_task(self._send_beside(lane, target, body))
            else:
                lane.free.release()
                lane.ready.clear()
                self._progress.set()

    def _may_go(self, behind: int) -> bool:
        """Return whether a message may be sent that came after so many pushes."""
        return behind <= self._pushes_taken or self._push_bytes > _OVERTAKEN_BYTES

    async def _send_beside(self, lane: _Lane, target: str, body: bytes) -> None:
        try:
            await self._send(target, body)
        finally:
            self._sending.remove(body)
            lane.free.release()
            self._progress.set()
