"""What peers may send: numbers that a node can keep, and greetings of the only process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.storage_samples import run_of
from tests.unit.transport.test_peer_link_addresses import hello
from tests.verification.mutation.lone import Lone

from sparktxlog.codec.wire import Envelope, PostAnswer, encode_pushes
from sparktxlog.errors import (
    BusyError,
    ForbiddenPeerError,
    PeerTimeoutError,
    RemoteProtocolError,
    TransportError,
)
from sparktxlog.model.site_data import SitePace
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.events import Event, PayloadArrived, PostReceived
from sparktxlog.protocol.messages.posts import Post
from sparktxlog.runtime.membership.strangers import Strangers
from sparktxlog.runtime.peering import Peering
from sparktxlog.transport.signing import BOOT

NO_NUMBER = 1 << 63


@pytest.fixture
def told() -> list[Event]:
    """What the core was told."""
    return []


@pytest.fixture
def peering(told: list[Event]) -> Peering:
    def nothing(*arguments: object) -> None:
        return None

    membership: Any = SimpleNamespace(
        verifier=None,
        strangers=Strangers(),
        greeter=SimpleNamespace(is_joiner=lambda node: False),
        epochs=SimpleNamespace(on_hears=nothing, on_post=nothing, linked_nodes=lambda: ("b",)),
        positions={},
        note_data=nothing,
    )

    def tell(event: Event) -> bool:
        told.append(event)
        return True

    core: Any = SimpleNamespace(
        cycle=SimpleNamespace(tell=tell),
        holdings=SimpleNamespace(put_foreign=lambda header, payload: True),
        rivals=SimpleNamespace(note=nothing),
    )
    unused: Any = None
    base: Any = SimpleNamespace(
        config=SimpleNamespace(data_dir=Path("unused")),
        journal=None,
        published=None,
        run_blocking=None,
        links={},
    )
    return Peering(base, core, membership, unused)


@pytest.mark.parametrize("field", ["counter", "last_seq", "header"])
def test_a_post_with_such_a_number_is_refused(
    peering: Peering, told: list[Event], field: str
) -> None:
    node = Lone(Master)
    post = node.post_of("b", node.now, node.run_of("b", 1, node.now))
    asyncio.run(peering.on_envelope("b", Envelope(post=post), {}))
    assert len(told) == 1
    if field == "header":
        post = replace(post, headers=(replace(post.headers[0], ts=NO_NUMBER),))
    else:
        post = replace(post, **cast(Any, {field: NO_NUMBER}))
    with pytest.raises(RemoteProtocolError, match="impossible"):
        asyncio.run(peering.on_envelope("b", Envelope(post=post), {}))
    assert len(told) == 1


def test_a_pushed_run_with_such_a_number_is_refused(peering: Peering, told: list[Event]) -> None:
    run = run_of(seq=1, origin="b")
    header = replace(run.header, ts=NO_NUMBER)
    with pytest.raises(RemoteProtocolError, match="impossible"):
        asyncio.run(peering.on_push("b", encode_pushes([(header, run.payload)])))
    assert not told


def test_what_travels_with_a_post_is_taken_as_if_it_was_pushed(
    peering: Peering, told: list[Event]
) -> None:
    node, run = Lone(Master), run_of(seq=1, origin="b")
    pushes = encode_pushes([(run.header, run.payload)])
    post = node.post_of("b", node.now, node.run_of("b", 1, node.now))
    asyncio.run(peering.on_envelope("b", Envelope(post=post, pushes=pushes), {}))
    assert [type(event) for event in told] == [PostReceived, PayloadArrived]
    with pytest.raises(RemoteProtocolError, match="torn"):
        asyncio.run(peering.on_envelope("b", Envelope(post=post, pushes=pushes[:-1]), {}))
    assert isinstance(told[2], PostReceived), "the post counts, whatever is with it"


def test_who_sends_a_run_gets_the_post_that_says_it_is_here(peering: Peering) -> None:
    node, run = Lone(Master), run_of(seq=1, origin="b")
    pushes = encode_pushes([(run.header, run.payload)])
    own = node.post_of("b", node.now)

    async def next_post() -> Post:
        return own

    peering._base.links["b"] = cast(
        Any, SimpleNamespace(posts=SimpleNamespace(next_post=next_post, number=lambda: 7))
    )
    answer = asyncio.run(peering.on_envelope("b", Envelope(pushes=pushes), {}))
    assert (answer.post, answer.hears, answer.number) == (own, ("b",), 7)
    assert asyncio.run(peering.on_envelope("b", Envelope(), {})) == PostAnswer(), "nothing to say"


def test_a_post_in_an_answer_is_one_of_the_peer(peering: Peering, told: list[Event]) -> None:
    node = Lone(Master)
    post = node.post_of("b", node.now)
    peering.on_answer("b", PostAnswer(post=post))
    assert told == [PostReceived(post=post)]
    with pytest.raises(RemoteProtocolError, match="posts for 'b'"):
        peering.on_answer("c", PostAnswer(post=post))
    with pytest.raises(RemoteProtocolError, match="impossible"):
        peering.on_answer("b", PostAnswer(post=replace(post, counter=NO_NUMBER)))
    peering._greeter = cast(Any, SimpleNamespace(is_joiner=lambda node: True))
    peering.on_answer("b", PostAnswer(post=post))
    assert len(told) == 1, "that of a joiner does not count yet"


def greet(answers: str | TransportError, *, known: bool = False) -> None:
    """Have B greet as a new process, or as the one known, while its addresses answer so."""

    async def other_process(boot: str) -> str:
        if isinstance(answers, TransportError):
            raise answers
        return answers

    base: Any = SimpleNamespace(
        config=SimpleNamespace(data_dir=Path("unused")),
        journal=None,
        published=None,
        run_blocking=None,
        master=SimpleNamespace(knows_process=lambda node, boot: known),
        links={"B": SimpleNamespace(other_process=other_process)},
    )
    membership: Any = SimpleNamespace(greeter=None, verifier=None, strangers=None)
    unused: Any = None
    peering = Peering(base, unused, membership, unused)
    asyncio.run(peering._check_process("B", hello("B", "http://b", "ib")))


def test_while_nobody_can_tell_the_greeting_is_to_be_repeated() -> None:
    with pytest.raises(BusyError, match="http://b is silent"):
        greet(PeerTimeoutError("http://b is silent"))


def test_another_process_at_the_address_is_the_node() -> None:
    with pytest.raises(ForbiddenPeerError, match="two processes are node 'B'"):
        greet("another")


def test_who_is_alone_or_known_is_taken() -> None:
    greet("")
    greet("another", known=True)


def test_an_envelope_that_was_overtaken_says_nothing_of_its_sender(
    peering: Peering, told: list[Event]
) -> None:
    """Several are under way at once; the post in each has an order of its own (P5)."""
    node, heard = Lone(Master), list[tuple[str, ...]]()
    pace, paces = SitePace(write_us=5), list[SitePace]()
    peering._membership.epochs = cast(
        Any,
        SimpleNamespace(on_hears=lambda _, hears: heard.append(hears), on_post=lambda post: None),
    )
    membership: Any = peering._membership
    membership.note_data = lambda _node, _data, pace: paces.append(pace)
    post, boot, later = node.post_of("b", node.now), {BOOT: "1"}, {BOOT: "2"}

    def take(headers: dict[str, str], number: int, *hears: str) -> None:
        envelope = Envelope(post=post, hears=hears, pace=pace, number=number)
        asyncio.run(peering.on_envelope("b", envelope, headers))

    peering._base.links["b"] = cast(Any, SimpleNamespace(boot="1"))
    take(boot, 5, "a", "c")
    take(boot, 4)
    take(boot, 5)
    peering.on_answer("b", PostAnswer(post=post, hears=("x",), number=3))
    assert heard == [("a", "c")]
    assert len(told) == 4, "the posts count"
    peering.on_answer("b", PostAnswer(post=post, hears=("c",), number=6))
    take(boot, 7, "a")
    take(later, 1, "d")
    take(later, 0)
    assert heard[1:] == [("c",), ("a",), ("d",)]
    assert paces == [pace] * 3
