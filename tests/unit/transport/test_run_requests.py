"""Small runs asked for together: one request each time, in order, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from sparktxlog.errors import RemoteProtocolError, TransportError, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.transport.run_requests import MAX_RUNS, RunRequests

Answering = Callable[[Sequence[RunHeader]], Awaitable[list[bytes | None]]]


def header(seq: int, size_bytes: int = 100) -> RunHeader:
    return RunHeader(
        epoch=1,
        ts=seq,
        origin=NodeId("B"),
        incarnation=1,
        seq=seq,
        n=1,
        digest=bytes(32),
        size_bytes=size_bytes,
    )


def content(run: RunHeader) -> bytes:
    return b"run %d" % run.seq


def gathered(answering: Answering, headers: Sequence[RunHeader]) -> list[Any]:
    async def main() -> list[Any]:
        requests = RunRequests(answering)
        try:
            each = (requests.get(run) for run in headers)
            return await asyncio.wait_for(asyncio.gather(*each, return_exceptions=True), 10)
        finally:
            await requests.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("count", "size_bytes", "asked"),
    [
        (1, 100, [1]),
        (MAX_RUNS + 3, 100, [MAX_RUNS, 3]),
        (5, 1 << 20, [2, 2, 1]),
        (2, 9 << 20, [1, 1]),
    ],
)
def test_what_waits_goes_out_together(count: int, size_bytes: int, asked: list[int]) -> None:
    sizes = []

    async def answering(headers: Sequence[RunHeader]) -> list[bytes | None]:
        sizes.append(len(headers))
        await asyncio.sleep(0)  # the event loop turns, as it does for a request
        return [content(run) for run in headers]

    headers = [header(seq, size_bytes) for seq in range(1, count + 1)]
    assert gathered(answering, headers) == [content(run) for run in headers]
    assert sizes == asked


def test_a_run_that_the_peer_does_not_hold_fails_alone() -> None:
    async def answering(headers: Sequence[RunHeader]) -> list[bytes | None]:
        return [None if run.seq == 2 else content(run) for run in headers]

    first, second, third = gathered(answering, [header(1), header(2), header(3)])
    assert (first, third) == (b"run 1", b"run 3")
    assert isinstance(second, TransportError)
    assert second.fields["status"] == 404


@pytest.mark.parametrize("error", [TransportError("no link"), RemoteProtocolError("torn")])
def test_a_failed_request_fails_all_of_it(error: TxLogError) -> None:
    async def answering(headers: Sequence[RunHeader]) -> list[bytes | None]:
        raise error

    assert gathered(answering, [header(1), header(2)]) == [error, error]


def test_an_answer_of_another_length_is_refused() -> None:
    async def answering(headers: Sequence[RunHeader]) -> list[bytes | None]:
        return [b"only one"]

    found = gathered(answering, [header(1), header(2)])
    assert [type(error) for error in found] == [RemoteProtocolError, RemoteProtocolError]


def test_who_waits_is_told_when_the_link_closes() -> None:
    async def main() -> list[Any]:
        asked = asyncio.Event()

        async def answering(headers: Sequence[RunHeader]) -> list[bytes | None]:
            asked.set()
            await asyncio.Event().wait()
            return []

        requests = RunRequests(answering)
        waiting = [asyncio.ensure_future(requests.get(header(seq, 2 << 20))) for seq in range(4)]
        await asked.wait()
        await requests.close()
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)

    assert [type(error) for error in asyncio.run(main())] == 4 * [TransportError]


def test_what_is_asked_while_a_request_ends_is_not_forgotten() -> None:
    async def main() -> int:
        async def answering(headers: Sequence[RunHeader]) -> list[bytes | None]:
            await asyncio.sleep(0)
            return [content(run) for run in headers]

        requests = RunRequests(answering)

        async def one_after_the_other() -> int:
            return len([await requests.get(header(seq, 2 << 20)) for seq in range(20)])

        each = (one_after_the_other() for _ in range(3))
        return sum(await asyncio.wait_for(asyncio.gather(*each), 10))

    assert asyncio.run(main()) == 60


def test_a_closed_link_is_asked_nothing() -> None:
    async def main() -> None:
        async def answering(headers: Sequence[RunHeader]) -> list[bytes | None]:
            raise AssertionError("it is closed")

        requests = RunRequests(answering)
        await requests.close()
        with pytest.raises(TransportError, match="closed"):
            await requests.get(header(1))

    asyncio.run(main())
