"""What one link sends: pushes together, messages side by side, few pushes before a message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sparktxlog.codec import wire
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.transport.link_outbox import LinkOutbox

PUSHES = "/peer/v1/pushes"


def header(seq: int) -> RunHeader:
    return RunHeader(
        epoch=1,
        ts=seq,
        origin=NodeId("B"),
        incarnation=1,
        seq=seq,
        n=1,
        digest=bytes(32),
        size_bytes=100,
    )


class Peer:
    """Takes requests, and answers them when it is told to."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.answers: dict[str, asyncio.Event] = {}
        self.pushed: list[int] = []

    async def send(self, target: str, body: bytes) -> None:
        name = target if target == PUSHES else body.decode()
        self.taken.append(name)
        if target == PUSHES:
            self.pushed.append(len(list(wire.decode_pushes(body))))
        await self.answers.setdefault(name, asyncio.Event()).wait()


async def settled() -> None:
    """Let everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


def told(scenario: Callable[[LinkOutbox, Peer, asyncio.Event], Awaitable[None]]) -> None:
    async def main() -> None:
        peer, greeted = Peer(), asyncio.Event()
        outbox = LinkOutbox(greeted, peer.send)
        tasks = [asyncio.create_task(outbox.pushing()), asyncio.create_task(outbox.messaging())]
        try:
            await asyncio.wait_for(scenario(outbox, peer, greeted), 10)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_a_message_waits_for_no_answer() -> None:
    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        greeted.set()
        outbox.push(header(1), b"x")
        await settled()
        for name in ("one", "two"):
            outbox.message("/", name.encode())
        await settled()
        assert peer.taken == [PUSHES, "one", "two"]
        assert not outbox.is_done

    told(scenario)


def test_a_message_goes_behind_the_pushes_that_stood_before_it() -> None:
    """Who is asked for a promise holds what was pushed to it by then (P14)."""

    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        greeted.set()
        outbox.push(header(1), b"x")
        await settled()
        outbox.push(header(2), b"x")
        outbox.message("/", b"prepare")
        outbox.push(header(3), b"x")
        await settled()
        assert peer.taken == [PUSHES], "its push waits for the request under way"
        peer.answers[PUSHES].set()
        await settled()
        assert peer.taken == [PUSHES, PUSHES, "prepare"]
        assert peer.pushed == [1, 2]

    told(scenario)


def test_a_message_overtakes_many_bytes_of_pushes() -> None:
    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        greeted.set()
        outbox.push(header(1), b"x")
        await settled()
        outbox.push(header(2), bytes(65 << 10))
        outbox.message("/", b"prepare")
        await settled()
        assert peer.taken == [PUSHES, "prepare"]

    told(scenario)


def test_few_messages_are_under_way_at_once() -> None:
    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        greeted.set()
        for name in "abcdef":
            outbox.message("/", name.encode())
        await settled()
        assert peer.taken == list("abcd")
        peer.answers["c"].set()
        await settled()
        assert peer.taken == list("abcde")

    told(scenario)


def test_a_large_message_holds_up_no_small_one_and_is_not_repeated_meanwhile() -> None:
    """A slow link: heartbeats and promises go on beside a long final queue."""

    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        greeted.set()
        large = [letter * ((64 << 10) + 1) for letter in "xyz"]
        for body in (*large, *large, large[0]):
            outbox.message("/", body.encode())
        for name in "abc":
            outbox.message("/", name.encode())
        await settled()
        assert sorted(peer.taken) == ["a", "b", "c", large[0]]
        peer.answers[large[0]].set()
        await settled()
        assert peer.taken[4:] == [large[1]]
        outbox.message("/", large[0].encode())  # it was answered: this is another one
        peer.answers[large[1]].set()
        peer.answers[large[2]] = asyncio.Event()
        peer.answers[large[2]].set()
        await settled()
        assert peer.taken[5:] == [large[2], large[0]]

    told(scenario)


def test_what_waits_goes_when_the_link_is_up_and_is_done_when_answered() -> None:
    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        outbox.message("/", b"a")
        outbox.push(header(1), b"x")
        await settled()
        assert peer.taken == []
        greeted.set()
        await settled()
        assert peer.taken == [PUSHES, "a"]
        peer.answers["a"].set()
        peer.answers[PUSHES].set()
        while not outbox.is_done:
            await outbox.progress()

    told(scenario)


def test_few_small_pushes_travel_with_a_post_that_goes_at_once() -> None:
    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        greeted.set()
        outbox.rides = lambda: True
        outbox.push(header(1), b"x")
        outbox.push(header(2), b"y")
        outbox.message("/", b"after")
        await settled()
        assert peer.taken == []
        riding = wire.decode_pushes(outbox.riding_pushes())
        assert [(run.seq, payload) for run, payload in riding] == [(1, b"x"), (2, b"y")]
        await settled()
        assert peer.taken == ["after"], "a message waits for the pushes before it"
        assert outbox.riding_pushes() == b""
        # A post that is under way takes none along, and nobody waits for its answer.
        outbox.rides = lambda: False
        outbox.push(header(3), b"z")
        await settled()
        assert peer.pushed == [1]

    told(scenario)


def test_large_pushes_go_alone() -> None:
    async def scenario(outbox: LinkOutbox, peer: Peer, greeted: asyncio.Event) -> None:
        greeted.set()
        outbox.rides = lambda: True
        outbox.push(header(1), bytes(100_000))
        await settled()
        assert peer.pushed == [1]
        assert outbox.riding_pushes() == b""

    told(scenario)
