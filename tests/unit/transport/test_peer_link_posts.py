"""A post that says what came with a request goes with the answer to that request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.greetings import make_greeter
from tests.unit.transport.test_link_outbox import header
from tests.unit.transport.test_peer_link_addresses import ONE, hello

from sparktxlog.codec import wire
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import MergeBase, Post
from sparktxlog.transport import peer_link as peers_module
from sparktxlog.transport.exchange import PeerAnswer
from sparktxlog.transport.peer_link import PeerLink
from sparktxlog.transport.signing import Signer

POSTS, PUSHES = "/peer/v1/posts", "/peer/v1/pushes"


def post(number: int, sender: str = "A") -> Post:
    return Post(
        log_id="l",
        epoch=1,
        sender=NodeId(sender),
        round=number,
        base=MergeBase(),
        counter=number,
        last_seq=0,
    )


class Bench:
    """A link to B that is up; B answers posts with what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = hello("A", "http://a", "ia")
        self.answers: list[wire.PostAnswer] = []
        self.link = PeerLink(
            "B",
            ONE,
            greeter=make_greeter(own, {"B": ONE}, {"B": "ib"}, lambda *_: None),
            signer=Signer("secret", "A", "1"),
            on_link=lambda *_: None,
            on_answer=self.answers.append,
        )
        #: (path, round of the post, runs) of each request but greetings and watches.
        self.sent: list[tuple[str, int | None, int]] = []
        self.answer, self.sealed = b"", True
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        monkeypatch.setattr(peers_module, "ask", self._ask)

    async def _ask(self, *arguments: Any, **_: Any) -> PeerAnswer:
        _, _, url, _, target, body = arguments
        answer = b""
        if target == "/peer/v1/hello":
            answer = wire.encode(hello("B", ONE, "ib"))
        elif target == "/peer/v1/watch":
            await asyncio.Event().wait()
        elif target == PUSHES:
            self.sent.append((target, None, len(list(wire.decode_pushes(body)))))
        else:
            envelope = wire.decode(wire.Envelope, body)
            number = None if envelope.post is None else envelope.post.round
            self.sent.append((target, number, len(list(wire.decode_pushes(envelope.pushes)))))
            await self.may_answer.wait()
            answer = self.answer
        return PeerAnswer(url=url, status=200, body=answer, boot="1", sealed=self.sealed)

    async def settled(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def run(self, act: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            connections: Any = object()
            self.link.start(connections)
            while not self.link.up:
                await asyncio.sleep(0)
            await self.settled()
            try:
                await asyncio.wait_for(act(), 10)
            finally:
                await self.link.close()

        asyncio.run(main())


def test_the_next_post_goes_with_the_answer_and_with_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        waits = asyncio.create_task(bench.link.next_post())
        await bench.settled()
        bench.link.post(post(1))
        assert await waits == post(1)
        bench.link.post(post(2))
        await bench.settled()
        assert bench.sent == [(POSTS, 2, 0)]

    bench.run(act)


def test_a_post_that_takes_a_run_along_goes_with_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.link.post(post(1))
        await bench.settled()
        waits = asyncio.create_task(bench.link.next_post())
        await bench.settled()
        bench.link.push(header(1), b"run")
        bench.link.post(post(2))
        assert await waits is None
        await bench.settled()
        assert bench.sent == [(POSTS, 1, 0), (POSTS, 2, 1)]
        # While a post is under way a run goes by itself, and the next post with the answer.
        bench.may_answer.clear()
        bench.link.post(post(3))
        await bench.settled()
        waits = asyncio.create_task(bench.link.next_post())
        await bench.settled()
        bench.link.push(header(2), b"run")
        bench.link.post(post(4))
        assert await waits == post(4)
        await bench.settled()
        assert bench.sent[2:] == [(POSTS, 3, 0), (PUSHES, None, 1)]

    bench.run(act)


def test_an_older_post_that_waits_is_not_sent_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.may_answer.clear()
        bench.link.post(post(1))
        await bench.settled()
        bench.link.post(post(2))
        waits = asyncio.create_task(bench.link.next_post())
        await bench.settled()
        bench.link.post(post(3))
        assert await waits == post(3)
        bench.may_answer.set()
        await bench.settled()
        assert [number for _, number, _ in bench.sent if number] == [1]

    bench.run(act)


def test_an_answer_waits_for_a_post_for_a_moment_and_only_while_the_link_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        monkeypatch.setattr(peers_module, "_ANSWER_S", 0.001)
        assert await bench.link.next_post() is None
        monkeypatch.setattr(peers_module, "_ANSWER_S", 60.0)
        waits = asyncio.create_task(bench.link.next_post())
        await bench.settled()
        bench.link.greet_again()
        assert not bench.link.up
        assert await bench.link.next_post() is None
        assert await waits is None

    bench.run(act)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_post_in_an_answer_counts_if_it_is_proved_to_be_the_peers(
    sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(monkeypatch)
    answer = wire.PostAnswer(post=post(7, "B"), hears=("A",))

    async def act() -> None:
        bench.answer, bench.sealed = wire.encode(answer), sealed
        bench.link.post(post(1))
        await bench.settled()
        assert bench.answers == ([answer] if sealed else [])

    bench.run(act)
