"""What waits to be sent to one peer, and the sending of it: bounded (P3a, P9, P14–P17).

A newer post replaces one that still waits.  Pushes and messages beyond their bounds are refused:
the peer fetches what it was not pushed (P3a), and the core repeats what matters.  One request with
pushes is under way at a time, so that many small ones travel together, and a few with messages:
none of these waits for the answer to an earlier one.

A message goes behind the few pushes that stood before it, so that a node which asks for promises is
answered by peers that hold its last runs; it overtakes many.  Large messages have a lane of their
own: on a slow link one takes long, and no small one shall wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sparktxlog.codec import wire
from sparktxlog.model.report import WorkerReport
from sparktxlog.protocol.words.messages import Post, RunHeader

#: Waiting pushes of one peer, bytes; beyond it new ones are dropped and fetched later.
_OUTBOX_BYTES = 32 << 20
#: Pushes that travel in one request, bytes.
_PUSH_BATCH_BYTES = 1 << 20
_MAX_MESSAGES = 256
#: A larger message goes by the lane of large ones; so many bytes of them may wait.
_LARGE_BYTES = 64 << 10
_LARGE_LANE_BYTES = 32 << 20
#: A message does not wait for pushes if so many bytes of them wait.
_OVERTAKEN_BYTES = 64 << 10


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
    """Messages of one size."""

    #: How many more may be under way.
    free: asyncio.Semaphore
    #: (Number of pushes that stood before it, path, body).
    waiting: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class LinkOutbox:
    """What waits for one peer; `pushing` and `messaging` send it while the link is up.

    Args:
        greeted: Set while the link is up.
        send: Sends a body to a path; deals with failures itself.
    """

    def __init__(
        self, greeted: asyncio.Event, send: Callable[[str, bytes], Awaitable[None]]
    ) -> None:
        self.post: Post | None = None
        #: Latest changed report of each worker.
        self.reports: dict[str, WorkerReport] = {}
        #: Which addresses answer; None = told.
        self.addresses: wire.FoundAddresses | None = None
        self._greeted = greeted
        self._send = send
        self._pushes: deque[tuple[RunHeader, bytes]] = deque()
        self._push_bytes = 0
        #: Pushes that no longer wait.
        self._pushes_taken = 0
        self._push_ready = asyncio.Event()
        self._small, self._large = _Lane(asyncio.Semaphore(4)), _Lane(asyncio.Semaphore(1))
        #: Bodies of messages under way.
        self._sending: list[bytes] = []
        #: Set whenever less waits to be sent, or is under way.
        self._progress = asyncio.Event()

    def push(self, header: RunHeader, payload: bytes) -> bool:
        """Send a run; False = too much waits."""
        if self._push_bytes + len(payload) > _OUTBOX_BYTES:
            return False
        self._pushes.append((header, payload))
        self._push_bytes += len(payload)
        self._push_ready.set()
        return True

    def message(self, target: str, body: bytes) -> None:
        """Send a message, unless too many wait, or the same one is on its way."""
        is_large = len(body) > _LARGE_BYTES
        lane = self._large if is_large else self._small
        if len(lane.waiting) >= _MAX_MESSAGES:
            return
        if is_large:
            waiting = [other for _, _, other in lane.waiting]
            # The core repeats what was not answered yet: it is not answered for it is not there.
            if body in waiting or body in self._sending:
                return
            if waiting and sum(map(len, waiting)) + len(body) > _LARGE_LANE_BYTES:
                return
        lane.waiting.append((self._pushes_taken + len(self._pushes), target, body))
        lane.ready.set()

    def drop(self) -> None:
        """Forget pushes and messages: the link broke, and who needs them asks, or says it again."""
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
            pushes = self._take_pushes()
            if not pushes:
                self._push_ready.clear()
                self._progress.set()
                continue
            for lane in (self._small, self._large):
                if lane.waiting:  # it may have waited for these to go
                    lane.ready.set()
            await self._send("/peer/v1/pushes", wire.encode_pushes(pushes))

    def _take_pushes(self) -> list[tuple[RunHeader, bytes]]:
        """Take what travels in one request: one run, or more up to a bound of bytes."""
        batch: list[tuple[RunHeader, bytes]] = []
        size = 0
        while self._pushes and (not batch or size + len(self._pushes[0][1]) <= _PUSH_BATCH_BYTES):
            batch.append(self._pushes.popleft())
            size += len(batch[-1][1])
        self._push_bytes -= size
        self._pushes_taken += len(batch)
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
        """Return whether a message may leave that stands behind so many pushes."""
        return behind <= self._pushes_taken or self._push_bytes > _OVERTAKEN_BYTES

    async def _send_beside(self, lane: _Lane, target: str, body: bytes) -> None:
        try:
            await self._send(target, body)
        finally:
            self._sending.remove(body)
            lane.free.release()
            self._progress.set()
