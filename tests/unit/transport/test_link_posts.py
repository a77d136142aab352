"""Posts wait for no answer, and one that says what came with a request goes with its answer."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.greetings import make_greeter
from tests.unit.transport.test_link_outbox import header
from tests.unit.transport.test_peer_link_addresses import ONE, hello

from sparktxlog.codec import wire
from sparktxlog.errors import PeerTimeoutError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import MergeBase, Post
from sparktxlog.transport import link_posts
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
    """A link to B that is up; B answers posts with what it is told to.

    Args:
        gap_s: Between posts under way; by default longer than a test.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gap_s: float = 60.0) -> None:
        monkeypatch.setattr(link_posts, "_GAP_S", gap_s)
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
        self.envelopes: list[wire.Envelope] = []
        #: Posts, by round, that are refused once, because they are for a start that is gone.
        self.stale: set[int | None] = set()
        self.may_refuse: defaultdict[int | None, asyncio.Event] = defaultdict(asyncio.Event)
        #: Posts, by round, that break the link.
        self.broken: set[int | None] = set()
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
            self.envelopes.append(envelope)
            await self.may_answer.wait()
            if number in self.stale:
                self.stale.remove(number)
                await self.may_refuse[number].wait()
                return PeerAnswer(url=url, status=409, body=b"", boot="2.0", sealed=False)
            if number in self.broken:
                raise PeerTimeoutError(f"post {number} is lost")
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
        waits = asyncio.create_task(bench.link.posts.next_post())
        await bench.settled()
        bench.link.posts.post(post(1))
        assert await waits == post(1)
        bench.link.posts.post(post(2))
        await bench.settled()
        assert bench.sent == [(POSTS, 2, 0)]

    bench.run(act)


def test_a_post_that_takes_a_run_along_goes_with_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.link.posts.post(post(1))
        await bench.settled()
        waits = asyncio.create_task(bench.link.posts.next_post())
        await bench.settled()
        bench.link.push(header(1), b"run")
        bench.link.posts.post(post(2))
        assert await waits is None
        await bench.settled()
        assert bench.sent == [(POSTS, 1, 0), (POSTS, 2, 1)]
        # While a post is under way a run goes by itself, and the next post with the answer.
        bench.may_answer.clear()
        bench.link.posts.post(post(3))
        await bench.settled()
        waits = asyncio.create_task(bench.link.posts.next_post())
        await bench.settled()
        bench.link.push(header(2), b"run")
        bench.link.posts.post(post(4))
        assert await waits == post(4)
        await bench.settled()
        assert bench.sent[2:] == [(POSTS, 3, 0), (PUSHES, None, 1)]

    bench.run(act)


def test_an_older_post_that_waits_is_not_sent_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.may_answer.clear()
        bench.link.posts.post(post(1))
        await bench.settled()
        bench.link.posts.post(post(2))
        waits = asyncio.create_task(bench.link.posts.next_post())
        await bench.settled()
        bench.link.posts.post(post(3))
        assert await waits == post(3)
        bench.may_answer.set()
        await bench.settled()
        assert bench.sent == [(POSTS, 1, 0)]

    bench.run(act)


def test_an_answer_waits_for_a_post_for_a_moment_and_only_while_the_link_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        monkeypatch.setattr(link_posts, "_ANSWER_S", 0.001)
        assert await bench.link.posts.next_post() is None
        monkeypatch.setattr(link_posts, "_ANSWER_S", 60.0)
        waits = asyncio.create_task(bench.link.posts.next_post())
        await bench.settled()
        bench.link.greet_again()
        assert not bench.link.up
        assert await bench.link.posts.next_post() is None
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
        bench.link.posts.post(post(1))
        await bench.settled()
        assert bench.answers == ([answer] if sealed else [])

    bench.run(act)


def test_a_few_posts_are_under_way_and_the_newest_one_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, gap_s=0.0)

    async def act() -> None:
        bench.may_answer.clear()
        for number in range(1, 8):
            bench.link.posts.post(post(number))
            await bench.settled()
        assert bench.sent == [(POSTS, number, 0) for number in (1, 2, 3, 4)]
        bench.may_answer.set()
        await bench.settled()
        assert bench.sent[4:] == [(POSTS, 7, 0)]
        numbers = [envelope.number for envelope in bench.envelopes]
        assert numbers == sorted(set(numbers)), "each says which one is newer"

    bench.run(act)


def test_posts_of_one_moment_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap before a further post is twice as long as the one before."""
    bench = Bench(monkeypatch, gap_s=1.0)

    async def act() -> None:
        bench.may_answer.clear()
        now = asyncio.get_running_loop().time()
        posts, pauses = bench.link.posts, []
        for number in range(1, 4):
            posts.post(post(10 * number))
            posts.post(post(10 * number + 1))
            posts._left_at = now - 60.0
            posts._answered.set()
            await bench.settled()
            monkeypatch.setattr(posts, "_left_at", now)
            pauses.append(round(posts._pause_s()))
        assert [number for _, number, _ in bench.sent] == [11, 21, 31]
        assert pauses == [1, 2, 4]

    bench.run(act)


def test_on_a_slow_line_a_post_waits_for_the_bytes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, gap_s=0.0)
    monkeypatch.setattr(link_posts, "_BESIDE_BYTES", 50_000)

    async def act() -> None:
        bench.may_answer.clear()
        bench.link.push(header(1), bytes(60_000))
        bench.link.posts.post(post(1))
        await bench.settled()
        for number in (2, 3):
            bench.link.posts.post(post(number))
            await bench.settled()
        assert bench.sent == [(POSTS, 1, 1)]
        bench.may_answer.set()
        await bench.settled()
        assert bench.sent[1:] == [(POSTS, 3, 0)]

    bench.run(act)


def test_of_reports_and_addresses_one_envelope_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They replace each other at the receiver, and have no order of their own."""
    bench = Bench(monkeypatch, gap_s=0.0)

    async def act() -> None:
        posts = bench.link.posts
        bench.may_answer.clear()
        posts.tell_addresses((("C", "http://c", True),))
        await bench.settled()
        posts.tell_addresses((("C", "http://c", False),))
        posts.post(post(1))
        posts.tell()
        await bench.settled()
        assert [one.addresses is not None for one in bench.envelopes] == [True, False]
        assert bench.sent[1:] == [(POSTS, 1, 0)]
        bench.may_answer.set()
        await bench.settled()
        assert [one.addresses for one in bench.envelopes[2:]] == [(("C", "http://c", False),)]

    bench.run(act)


@pytest.mark.parametrize(("lost", "again"), [({1}, []), ({2}, [2]), ({1, 2}, [2])])
def test_a_post_that_is_lost_goes_again_unless_a_newer_one_left(
    lost: set[int | None], again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(monkeypatch, gap_s=0.0)

    async def act() -> None:
        bench.may_answer.clear()
        for number in (1, 2):
            bench.link.posts.post(post(number))
            await bench.settled()
        bench.broken, ups = lost, bench.link.ups
        bench.may_answer.set()
        await asyncio.sleep(0)
        bench.broken = set()
        while bench.link.ups == ups:
            await asyncio.sleep(0)
        await bench.settled()
        assert bench.link.ups == ups + 1, "one break, however many were under way"
        assert [number for _, number, _ in bench.sent[2:]] == again

    bench.run(act)


def test_no_post_goes_again_after_a_newer_one_went_with_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.may_answer.clear()
        bench.link.posts.post(post(1))
        await bench.settled()
        waits = asyncio.create_task(bench.link.posts.next_post())
        await bench.settled()
        bench.link.posts.post(post(2))
        assert await waits == post(2)
        bench.broken, ups = {1}, bench.link.ups
        bench.may_answer.set()
        while bench.link.ups == ups:
            await asyncio.sleep(0)
        await bench.settled()
        assert bench.sent == [(POSTS, 1, 0)]

    bench.run(act)


def test_a_restarted_peer_is_greeted_once_however_many_requests_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, gap_s=0.0)

    async def act() -> None:
        bench.stale, ups = {1, 2, 3}, bench.link.ups
        for number in (1, 2, 3):
            bench.link.posts.post(post(number))
            await bench.settled()
        for number in (1, 2, 3):
            bench.may_refuse[number].set()
            await bench.settled()
            assert (bench.link.up, bench.link.ups) == (True, ups + 1)
        # They are for the new start now.
        assert [number for _, number, _ in bench.sent] == [1, 2, 3, 1, 2, 3]

    bench.run(act)
