"""A link with a suspected peer goes on at another address if the peer answers only there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from tests.support.greetings import make_greeter

from sparktxlog.codec import wire
from sparktxlog.codec.wire import Hello
from sparktxlog.errors import PeerTimeoutError, TransportError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.balloting import Probe, Standing
from sparktxlog.protocol.messages.posts import MergeBase, Post
from sparktxlog.transport import peer_link as peers_module
from sparktxlog.transport.exchange import PeerAnswer
from sparktxlog.transport.peer_link import PeerLink
from sparktxlog.transport.signing import Signer

ONE, TWO = "http://b", "http://b2"


def hello(node: str, url: str, instance: str) -> Hello:
    return Hello(node_id=node, url=url, instance=instance, boot="1", log_id="l", config_hash="c")


class Bench:
    """A link that is up at the first of its addresses, and a network that does as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, urls: str = f"{ONE},{TWO}") -> None:
        own = hello("A", "http://a", "ia")
        self.greeter = make_greeter(own, {"B": urls}, {"B": "ib"}, lambda *_: None)
        self.changes: list[bool] = []
        self.link = PeerLink(
            "B",
            urls,
            greeter=self.greeter,
            signer=Signer("secret", "A", "1"),
            on_link=lambda _, up: self.changes.append(up),
        )
        #: (address, path) in the order asked, and answered.
        self.asked: list[tuple[str, str]] = []
        self.answered: list[tuple[str, str]] = []
        #: Addresses where nothing is answered, and where everything fails.
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        monkeypatch.setattr(peers_module, "ask", self._ask)

    async def _ask(
        self,
        connections: Any,
        signer: Any,
        url: str,
        method: str,
        target: str,
        body: bytes,
        *,
        to: str,
        patience: Any,
        peer: str,
    ) -> PeerAnswer:
        assert peer == "B"
        self.asked.append((url, target))
        if url in self.refusing:
            raise TransportError(f"{url}: refused")
        if url in self.silent:
            await asyncio.Event().wait()
        self.answered.append((url, target))
        answer = wire.encode(hello("B", ONE, "ib")) if target.endswith("/hello") else b""
        return PeerAnswer(url=url, status=200, body=answer, boot="1", sealed=True)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    def suspect(self, *suspects: str) -> None:
        self.link.epoch(
            Probe(
                log_id="l",
                epoch=1,
                sender=NodeId("A"),
                incarnation=1,
                number=1,
                suspects=tuple(NodeId(node) for node in suspects),
            )
        )

    async def looked(self) -> None:
        """Wait until the link has looked elsewhere."""
        task = self.link._doubting
        assert task is not None
        await asyncio.wait_for(task, 10)

    def run(self, act: Callable[[], Awaitable[None]]) -> None:
        """Let the link come up and act."""

        async def main() -> None:
            connections: Any = object()
            self.link.start(connections)
            await self.until(lambda: self.link.up)
            try:
                await act()
            finally:
                await self.link.close()

        asyncio.run(main())


def a_post() -> Post:
    return Post(
        log_id="l", epoch=1, sender=NodeId("A"), round=1, base=MergeBase(), counter=1, last_seq=0
    )


def test_it_goes_on_where_the_peer_answers_and_waits_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.silent.add(ONE)
        bench.link.posts.post(a_post())
        await bench.until(lambda: (ONE, "/peer/v1/posts") in bench.asked)
        bench.suspect("B")
        await bench.looked()
        await bench.until(lambda: bench.link.up)
        assert (bench.link.url, bench.changes) == (TWO, [True, False, True])
        # The same post, at once: the first address is not waited for any more.
        await bench.until(lambda: (TWO, "/peer/v1/posts") in bench.answered)
        assert bench.link.up and bench.link.ups == 2
        assert not bench.link._under_way

    bench.run(act)


@pytest.mark.parametrize(
    ("silent", "refusing"), [((), ()), ((TWO,), ()), ((), (TWO,)), ((ONE,), (TWO,))]
)
def test_it_stays_while_the_peer_answers_there_too_or_nowhere_else(
    silent: tuple[str, ...], refusing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.silent.update(silent)
        bench.refusing.update(refusing)
        bench.suspect("B")
        if TWO in silent:
            await bench.until(lambda: (TWO, "/peer/v1/hello") in bench.asked)
            await bench.until(lambda: bench.answered.count((ONE, "/peer/v1/hello")) == 2)
        else:
            await bench.looked()
        assert (bench.link.url, bench.changes) == (ONE, [True])

    bench.run(act)


@pytest.mark.parametrize(("urls", "suspects"), [(ONE, "B"), (f"{ONE},{TWO}", "C")])
def test_nothing_is_looked_for_at_one_address_or_without_a_suspicion(
    urls: str, suspects: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(monkeypatch, urls)

    async def act() -> None:
        bench.suspect(suspects)
        await bench.until(lambda: (ONE, "/peer/v1/epochs") in bench.answered)
        assert bench.link._doubting is None

    bench.run(act)


def test_what_waited_at_the_address_that_was_left_fails_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def act() -> None:
        bench.silent.add(ONE)
        summary = asyncio.create_task(bench.link.summary_offer("x"))
        await bench.until(lambda: (ONE, "/peer/v1/summaries/x") in bench.asked)
        bench.suspect("B")
        with pytest.raises(PeerTimeoutError, match="another address of the node does"):
            await asyncio.wait_for(summary, 10)

    bench.run(act)


def test_a_greeting_that_is_repeated_shows_what_the_node_shows_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one may come late, and its node may have promised more since (P30)."""
    bench, counters = Bench(monkeypatch, ONE), count(5)
    bench.greeter = bench.link._greeter = make_greeter(
        hello("A", "http://a", "ia"),
        {"B": ONE},
        {"B": "ib"},
        lambda *_: None,
        standing=lambda: Standing(counter_now=next(counters)),
    )
    shown: list[int] = []

    async def ask(*arguments: Any, **_: Any) -> PeerAnswer:
        _, _, url, _, _, body = arguments
        standing = wire.decode(Hello, body).standing
        assert standing is not None
        shown.append(standing.counter_now)
        if len(shown) == 1:
            return PeerAnswer(url=url, status=409, body=b"", boot="1.1", sealed=True)
        answer = wire.encode(hello("B", ONE, "ib"))
        return PeerAnswer(url=url, status=200, body=answer, boot="1", sealed=True)

    async def main() -> None:
        monkeypatch.setattr(peers_module, "ask", ask)
        bench.link._connections = object()  # type: ignore[assignment]
        await bench.link._introduce(ONE)

    asyncio.run(main())
    assert shown == [5, 6]
