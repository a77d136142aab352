"""Fetches small runs from one peer, many with one request.

A node that lags needs thousands of runs of a few hundred bytes.  Runs that are wanted during a
request go into the next one, so a single run does not wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from sparktxlog.errors import NotFoundError, RemoteProtocolError, TransportError, TxLogError
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.supervision import foreseen

#: Runs up to this size are asked for together, bytes.
SMALL_BYTES = 64 << 10
#: Most runs, and most bytes, of one request.
MAX_RUNS = 512
_MAX_BYTES = 2 << 20
#: Requests under way.
_PARALLEL = 2

_Asked = tuple[RunHeader, "asyncio.Future[bytes]"]


class RunRequests:
    """Combines requests for runs of one peer.

    Args:
        ask: Returns the payloads of runs in their order, None for what the peer does not hold.
    """

    def __init__(self, ask: Callable[[Sequence[RunHeader]], Awaitable[list[bytes | None]]]) -> None:
        self._ask = ask
        self._waiting: deque[_Asked] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Tasks that will still take waiting requests.
        self._working = 0
        self._closed = False

    async def get(self, header: RunHeader) -> bytes:
        """Return a run's payload container, unverified.

        Raises:
            TransportError: The peer cannot be reached or does not hold it.
        """
        if self._closed:
            raise TransportError("the link is closed")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((header, future))
        if self._working < _PARALLEL:
            self._working += 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def close(self) -> None:
        """Stop; waiting requests fail because the peer cannot be reached."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for header, future in self._waiting:
            _fail(future, TransportError(f"the link closed before {header.digest.hex()[:12]} came"))
        self._waiting.clear()

    async def _work(self) -> None:
        try:
            while batch := self._take():
                await self._carry_out(batch)
        finally:
            # At once, not when the task is done: a request in between would wait.
            self._working -= 1

    async def _carry_out(self, batch: list[_Asked]) -> None:
        try:
            answers = await self._ask([header for header, _ in batch])
            if len(answers) != len(batch):
                raise RemoteProtocolError(f"{len(answers)} runs for {len(batch)} asked")
        except Exception as error:  # noqa: BLE001 - nobody must wait for ever
            for _, future in batch:
                _fail(future, foreseen(error))
        except BaseException:
            for _, future in batch:
                _fail(future, TransportError("the link closes"))
            raise
        else:
            for (header, future), payload in zip(batch, answers, strict=True):
                _answer(header, future, payload)

    def _take(self) -> list[_Asked]:
        batch: list[_Asked] = []
        size = 0
        while self._waiting and len(batch) < MAX_RUNS:
            size += self._waiting[0][0].size_bytes
            if batch and size > _MAX_BYTES:
                break
            asked = self._waiting.popleft()
            if not asked[1].done():
                batch.append(asked)
        return batch


def _answer(header: RunHeader, future: asyncio.Future[bytes], payload: bytes | None) -> None:
    if payload is None:
        run = f"{header.origin}/{header.incarnation}/{header.seq}"
        _fail(
            future, TransportError(f"run {run} is not held there", status=NotFoundError.http_status)
        )
    elif not future.done():
        future.set_result(payload)


def _fail(future: asyncio.Future[bytes], error: TxLogError) -> None:
    if not future.done():
        future.set_exception(error)
