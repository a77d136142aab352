"""What waits to be sent to one peer, and how much went there: bounded.

A newer post replaces one that still waits.  Pushes and messages beyond their bounds are refused:
the peer fetches what it was not pushed (P3a), and the core repeats what matters.  A message goes
behind the few pushes that stood before it, so that a node which asks for promises is answered by
peers that hold its last runs; it overtakes many.  Large messages have a lane of their own: on a
slow link one takes long, and no small one shall wait for it.
"""

from __future__ import annotations

from collections import deque
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
LARGE_BYTES = 64 << 10
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
class LinkOutbox:
    """What waits for one peer."""

    post: Post | None = None
    #: Latest changed report of each worker.
    reports: dict[str, WorkerReport] = field(default_factory=dict)
    #: Which addresses answer; None = told.
    addresses: wire.FoundAddresses | None = None
    pushes: deque[tuple[RunHeader, bytes]] = field(default_factory=deque)
    push_bytes: int = 0
    #: Small messages and large ones: (number of pushes that stood before it, path, body).
    messages: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    large: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    #: Bodies under way.
    sending: list[bytes] = field(default_factory=list)
    #: Pushes that no longer wait.
    pushes_taken: int = 0

    def put_push(self, header: RunHeader, payload: bytes) -> bool:
        """Let a run wait; False = there is no room."""
        if self.push_bytes + len(payload) > _OUTBOX_BYTES:
            return False
        self.pushes.append((header, payload))
        self.push_bytes += len(payload)
        return True

    def take_pushes(self) -> list[tuple[RunHeader, bytes]]:
        """Take what travels in one request: one run, or more up to a bound of bytes."""
        batch: list[tuple[RunHeader, bytes]] = []
        size = 0
        while self.pushes and (not batch or size + len(self.pushes[0][1]) <= _PUSH_BATCH_BYTES):
            batch.append(self.pushes.popleft())
            size += len(batch[-1][1])
        self.push_bytes -= size
        self.pushes_taken += len(batch)
        return batch

    def put_message(self, target: str, body: bytes) -> bool:
        """Let a message wait; False = there is no room, or the same one is on its way."""
        large = len(body) > LARGE_BYTES
        lane = self.large if large else self.messages
        if len(lane) >= _MAX_MESSAGES:
            return False
        if large:
            waiting = [other for _, _, other in lane]
            # The core repeats what was not answered yet: it is not answered for it is not there.
            if body in waiting or body in self.sending:
                return False
            if sum(map(len, waiting)) + len(body) > _LARGE_LANE_BYTES and waiting:
                return False
        lane.append((self.pushes_taken + len(self.pushes), target, body))
        return True

    def take_message(self, *, large: bool) -> tuple[str, bytes] | None:
        """Take the next message; None = there is none, or it waits for a push to be taken."""
        lane = self.large if large else self.messages
        if not lane:
            return None
        behind, target, body = lane[0]
        if behind > self.pushes_taken and self.push_bytes <= _OVERTAKEN_BYTES:
            return None
        lane.popleft()
        return target, body

    def drop(self) -> None:
        """Forget pushes and messages: the link broke, and who needs them asks, or says it again."""
        self.pushes_taken += len(self.pushes)
        self.pushes.clear()
        self.push_bytes = 0
        self.messages.clear()
        self.large.clear()
