"""Checks of addresses: which, what counts as an answer, and that they disturb nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.greetings import make_greeter

from sparktxlog.codec import wire
from sparktxlog.codec.wire import Hello
from sparktxlog.errors import PeerTimeoutError, TxLogError
from sparktxlog.transport import addresses as addresses_module
from sparktxlog.transport.addresses import AddressCheck, check_interval_s, found_addresses
from sparktxlog.transport.exchange import PeerAnswer
from sparktxlog.transport.greeting import Joiner, Place
from sparktxlog.transport.peer_link import PeerLink
from sparktxlog.transport.signing import Signer, StaleSessionError

A = Hello(node_id="A", url="http://a", instance="ia", boot="1", log_id="l", config_hash="c")
B = replace(A, node_id="B", url="http://b", instance="ib", boot="2")
URLS = ("http://b", "http://b2", "http://b3")

Ask = Callable[[str, str], Awaitable[PeerAnswer]]


def good(url: str, hello: Hello = B, **fields: Any) -> PeerAnswer:
    made = PeerAnswer(url=url, status=200, body=wire.encode(hello), boot=hello.boot, sealed=True)
    return replace(made, **fields)


class Bench:
    """One link, its check, and a network that answers as it is told."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, urls: tuple[str, ...] = URLS, which: str = "all"
    ) -> None:
        self.greeter = make_greeter(A, {"B": ",".join(urls)}, {"B": "ib"}, lambda *_: None)
        signer = Signer("secret", "A", "1")
        self.link = PeerLink(
            "B", ",".join(urls), greeter=self.greeter, signer=signer, on_link=lambda *_: None
        )
        self.link.up, self.link._to = True, "2"
        self.asked: list[tuple[str, str]] = []
        #: Address → what happens there.
        self.at: dict[str, Callable[[str], Awaitable[PeerAnswer]]] = {}
        self.check = AddressCheck(
            links={"B": self.link}, greeter=self.greeter, signer=signer, which=which, interval_s=60
        )
        monkeypatch.setattr(addresses_module, "ask", self._ask)

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
        assert (method, target) == ("POST", "/peer/v1/hello")
        assert wire.decode(Hello, body) == A
        assert patience.total_s
        self.asked.append((url, to))
        if url in self.at:
            return await self.at[url](to)
        return good(url)

    def answers(self, url: str, answer: PeerAnswer | Exception) -> None:
        async def act(to: str) -> PeerAnswer:
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.at[url] = act

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    async def once(self) -> None:
        """Check one round and stop."""
        self.check.start()
        await self.until(lambda: self.check._told)
        await self.check.close()


@pytest.mark.parametrize(
    ("which", "at", "expected"),
    [
        ("all", "http://b", ["http://b2", "http://b3"]),
        ("all", "http://b2", ["http://b", "http://b3"]),
        ("first", "http://b2", ["http://b"]),
        ("first", "http://b", []),
        ("second", "http://b", ["http://b2"]),
        ("second", "http://b2", []),
        ("all", "", list(URLS)),
    ],
)
def test_what_is_not_in_use_is_checked(
    which: str, at: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(monkeypatch, which=which)
    bench.link.up = bool(at)
    bench.link.url = at or URLS[0]
    asyncio.run(bench.once())
    assert [url for url, _ in bench.asked] == expected
    known = {url: True for url in URLS if url in expected or url == at}
    assert bench.link.addresses() == known
    assert list(bench.link.addresses()) == [url for url in URLS if url in known]
    assert found_addresses({"B": bench.link}) == tuple(("B", url, True) for url in known)
    assert bench.link.posts.addresses == found_addresses({"B": bench.link})


@pytest.mark.parametrize(("urls", "which"), [(URLS[:1], "all"), (URLS, "none")])
def test_nothing_is_done_for_one_address_or_when_it_is_off(
    urls: tuple[str, ...], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, urls, which)
        bench.check.start()
        for _ in range(20):
            bench.check.look_again()
            await asyncio.sleep(0)
        await bench.check.close()
        assert bench.asked == []
        assert bench.link.posts.addresses is None
        assert not bench.link.posts.ready.is_set()

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        PeerTimeoutError("http://b2 did not answer in time"),
        good("http://b2", sealed=False),
        good("http://b2", replace(B, node_id="C")),
        good("http://b2", replace(B, instance="another data directory")),
        good("http://b2", status=403),
        good("http://b2", status=409),
        good("http://b2", body=b"\xc1"),
    ],
    ids=["silent", "unsealed", "another node", "another instance", "refused", "stale", "garbage"],
)
def test_what_is_no_answer(answer: PeerAnswer | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.answers("http://b2", answer)
    asyncio.run(bench.once())
    assert bench.link.addresses() == {"http://b": True, "http://b2": False, "http://b3": True}
    assert bench.link.up and bench.link.boot == "2" and bench.link.url == "http://b"


def test_a_restarted_peer_answers_though_the_link_has_not_learnt_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    async def restarted(to: str) -> PeerAnswer:
        if to == "9":
            return good("http://b2", replace(B, boot="9"))
        return good("http://b2", status=409, boot="9", sealed=False)

    bench.at["http://b2"] = restarted
    asyncio.run(bench.once())
    assert [to for url, to in bench.asked if url == "http://b2"] == ["2", "9"]
    assert bench.link.addresses()["http://b2"]
    assert bench.link.boot == "2"  # the link greets the new start itself


def test_a_silent_address_holds_up_no_other_and_ends_with_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch)
        waiting = asyncio.Event()

        async def silent(to: str) -> PeerAnswer:
            waiting.set()
            await asyncio.Event().wait()
            raise AssertionError

        bench.at["http://b2"] = silent
        bench.check.start()
        await waiting.wait()
        await bench.until(lambda: "http://b3" in bench.link.addresses())
        assert "http://b2" not in bench.link.addresses()
        bench.check.look_again()
        await bench.check.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_changes_are_found_at_once_and_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench(monkeypatch, URLS[:2])
        link, refused = bench.link, PeerTimeoutError("no")
        bench.check.start()
        await bench.until(lambda: link.posts.addresses)
        # The link breaks and comes up at the other address.
        bench.answers("http://b", refused)
        link.url = "http://b2"
        link._answers.pop("http://b2")
        assert link.addresses() == {"http://b2": True}  # of the other one nothing is known
        bench.check.look_again()
        told = (("B", "http://b", False), ("B", "http://b2", True))
        await bench.until(lambda: link.posts.addresses == told)
        # With one address left, peers are told once more: nothing.
        link.move(("http://b2",))
        bench.check.look_again()
        await bench.until(lambda: link.posts.addresses == ())
        await bench.check.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "found", "expected"),
    [
        (PeerTimeoutError("silent"), {"http://b2": True}, "http://b2"),
        (PeerTimeoutError("silent"), {"http://b2": False, "http://b3": True}, "http://b3"),
        (PeerTimeoutError("silent"), {"http://b2": False}, "http://b"),
        (PeerTimeoutError("silent"), {}, "http://b"),
        (StaleSessionError("restarted"), {"http://b2": True}, "http://b"),
    ],
)
def test_a_link_that_breaks_goes_on_where_the_peer_answers(
    error: TxLogError, found: dict[str, bool], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Bench(monkeypatch).link
    for url, answers in found.items():
        link.note_address(url, answers)
    link._went_down(error)
    assert (link.up, link.url) == (False, expected)
    for url in URLS:
        link.note_address(url, False)
    turns = []
    for _ in URLS:  # where nothing is known to answer all are tried in turn
        link._turn_to_next()
        turns.append(link.url)
    assert sorted(turns) == list(URLS)


def test_a_request_of_the_former_address_that_fails_late_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Bench(monkeypatch).link
    before = link.ups
    link.ups += 1
    link.failed(PeerTimeoutError("silent"), before)
    assert link.up
    link.failed(PeerTimeoutError("silent"), link.ups)
    assert not link.up


def test_only_news_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Bench(monkeypatch).link
    steps = [(True, False), (False, True), (False, False), (True, True), (True, False)]
    assert [link.note_address("http://b2", found) for found, _ in steps] == [n for _, n in steps]
    assert link.note_address("http://b3", False)  # never seen to answer
    assert not link.note_address("http://b", False)  # in use
    assert not link.note_address("http://elsewhere", False)
    assert link.addresses() == {"http://b": True, "http://b2": True, "http://b3": False}


def test_who_is_recognized_changes_nothing() -> None:
    kept: list[str] = []
    judge = make_greeter(
        A, {"B": "http://b", "C": "http://c"}, {"B": "ib"}, lambda n, i: kept.append(i)
    )
    other = replace(B, instance="other", incarnation=2)
    assert judge.recognizes(B, "B")
    assert not judge.recognizes(B, "C")
    assert not judge.recognizes(other, "B")
    assert judge.recognizes(replace(B, node_id="C"), "C")  # never seen before
    assert kept == [] and not judge.is_joiner("B")
    judge._joiners["B"] = Joiner(instance="other", incarnation=2)
    assert judge.recognizes(other, "B") and judge.recognizes(B, "B")
    judge.set_places({"B": Place(urls=("http://b",))})
    assert judge.recognizes(B, "B")


def test_checks_come_as_often_as_a_member_may_be_silent() -> None:
    assert [check_interval_s(timeout) for timeout in (0, 0.1, 2, 10, 3_600)] == [10, 1, 2, 10, 60]
