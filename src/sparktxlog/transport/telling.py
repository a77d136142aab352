"""Pushes and messages to one peer, side by side (P3a, P9, P14–P17).

One request with pushes is under way at a time, so that many small ones travel together, and a few
with messages: none of these waits for the answer to an earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparktxlog.codec import wire
from sparktxlog.protocol.messages import RunHeader
from sparktxlog.transport.outbox import Outbox

#: Messages under way at once.
_MESSAGES = 4


class Telling:
    """Sends what the outbox of a link holds, while the link is up.

    Args:
        outbox: Where pushes and messages wait.
        greeted: Set while the link is up.
        send: Sends a body to a path; deals with failures itself.
    """

    def __init__(
        self, outbox: Outbox, greeted: asyncio.Event, send: Callable[[str, bytes], Awaitable[None]]
    ) -> None:
        self._outbox = outbox
        self._greeted = greeted
        self._send = send
        self._push_ready = asyncio.Event()
        self._message_ready = asyncio.Event()
        self._free = asyncio.Semaphore(_MESSAGES)
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
            self._message_ready.set()

    @property
    def is_done(self) -> bool:
        """Whether everything was sent and answered."""
        waits = self._push_ready.is_set() or self._message_ready.is_set()
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
            if box.messages:
                self._message_ready.set()  # one may have waited for these to go
            await self._send("/peer/v1/pushes", wire.encode_pushes(pushes))

    async def messaging(self) -> None:
        """Send messages until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._message_ready.wait()
                await self._greeted.wait()
                await self._free.acquire()
                message = self._outbox.take_message()
                if message is None:
                    self._free.release()
                    self._message_ready.clear()
                    self._progress.set()
                else:
                    self._under_way += 1
                    group.create_task(self._send_beside(*message))

    async def _send_beside(self, target: str, body: bytes) -> None:
        try:
            await self._send(target, body)
        finally:
            self._under_way -= 1
            self._free.release()
            self._progress.set()
