"""Pushes and messages to one peer, side by side (P3a, P9, P14–P17).

One request with pushes is under way at a time, so that many small ones travel together, and a few
with messages: none of these waits for the answer to an earlier one.  One at a time is large: it may
take long, and the small ones go on beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparktxlog.codec import wire
from sparktxlog.protocol.words.messages import RunHeader
from sparktxlog.transport.link_outbox import LARGE_BYTES, LinkOutbox

#: Messages under way at once, small and large ones.
_MESSAGES, _LARGE_MESSAGES = 4, 1


class Telling:
    """Sends what the outbox of a link holds, while the link is up.

    Args:
        outbox: Where pushes and messages wait.
        greeted: Set while the link is up.
        send: Sends a body to a path; deals with failures itself.
    """

    def __init__(
        self,
        outbox: LinkOutbox,
        greeted: asyncio.Event,
        send: Callable[[str, bytes], Awaitable[None]],
    ) -> None:
        self._outbox = outbox
        self._greeted = greeted
        self._send = send
        self._push_ready = asyncio.Event()
        #: By whether they are large: something waits, and how many may leave.
        self._message_ready = {False: asyncio.Event(), True: asyncio.Event()}
        self._free = {
            False: asyncio.Semaphore(_MESSAGES), True: asyncio.Semaphore(_LARGE_MESSAGES)
        }  # fmt: skip
        #: Messages under way.
        self._under_way = 0
        #: Set whenever less waits to be sent, or is under way.
        self._progress = asyncio.Event()

    def push(self, header: RunHeader, payload: bytes) -> bool:
        """Send a run; False = too much waits."""
        if not self._outbox.put_push(header, payload):
            return False
        self._push_ready.set()
        return True

    def message(self, target: str, body: bytes) -> None:
        """Send a message, unless too many wait."""
        if self._outbox.put_message(target, body):
            self._message_ready[len(body) > LARGE_BYTES].set()

    @property
    def is_done(self) -> bool:
        """Whether everything was sent and answered."""
        ready = (self._push_ready, *self._message_ready.values())
        waits = any(event.is_set() for event in ready)
        return not waits and self._under_way == 0

    async def progress(self) -> None:
        """Wait until something was sent and answered."""
        self._progress.clear()
        await self._progress.wait()

    async def pushing(self) -> None:
        """Send pushes until cancelled."""
        box = self._outbox
        while True:
            await self._push_ready.wait()
            await self._greeted.wait()
            pushes = box.take_pushes()
            if not pushes:
                self._push_ready.clear()
                self._progress.set()
                continue
            # One may have waited for these to go.
            for large, lane in ((False, box.messages), (True, box.large)):
                if lane:
                    self._message_ready[large].set()
            await self._send("/peer/v1/pushes", wire.encode_pushes(pushes))

    async def messaging(self) -> None:
        """Send messages until cancelled."""
        async with asyncio.TaskGroup() as group:
            for large in self._free:
                group.create_task(self._lane(group, large))

    async def _lane(self, group: asyncio.TaskGroup, large: bool) -> None:
        ready, free = self._message_ready[large], self._free[large]
        while True:
            await ready.wait()
            await self._greeted.wait()
            await free.acquire()
            message = self._outbox.take_message(large=large)
            if message is None:
                free.release()
                ready.clear()
                self._progress.set()
            else:
                self._under_way += 1
                group.create_task(self._send_beside(free, *message))

    async def _send_beside(self, free: asyncio.Semaphore, target: str, body: bytes) -> None:
        sending = self._outbox.sending
        sending.append(body)
        try:
            await self._send(target, body)
        finally:
            sending.remove(body)
            self._under_way -= 1
            free.release()
            self._progress.set()
