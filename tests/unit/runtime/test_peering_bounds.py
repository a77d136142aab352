"""Numbers that no node can keep are refused where a peer's message arrives, with a typed error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.storage_samples import run_of
from tests.verification.mutation.lone import Lone

from sparktxlog.codec.wire import Envelope, encode_pushes
from sparktxlog.errors import RemoteProtocolError
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.words.events import Event
from sparktxlog.runtime.peering import Peering

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
        greeter=SimpleNamespace(is_joiner=lambda node: False),
        epochs=SimpleNamespace(on_hears=nothing, on_post=nothing),
        positions={},
    )
    core: Any = SimpleNamespace(
        cycle=SimpleNamespace(tell=lambda event: told.append(event) or True),
        holdings=SimpleNamespace(put_foreign=lambda header, payload: True),
    )
    unused: Any = None
    base: Any = SimpleNamespace(
        config=SimpleNamespace(data_dir=Path("unused")),
        journal=None,
        published=None,
        run_blocking=None,
    )
    return Peering(base, core, membership, unused)


@pytest.mark.parametrize("field", ["counter", "last_seq", "header"])
def test_a_post_with_such_a_number_is_refused(
    peering: Peering, told: list[Event], field: str
) -> None:
    node = Lone(Master)
    post = node.post_of("b", node.now, node.run_of("b", 1, node.now))
    asyncio.run(peering.on_envelope("b", Envelope(post=post)))
    assert len(told) == 1
    if field == "header":
        post = replace(post, headers=(replace(post.headers[0], ts=NO_NUMBER),))
    else:
        post = replace(post, **cast(Any, {field: NO_NUMBER}))
    with pytest.raises(RemoteProtocolError, match="cannot be"):
        asyncio.run(peering.on_envelope("b", Envelope(post=post)))
    assert len(told) == 1


def test_a_pushed_run_with_such_a_number_is_refused(peering: Peering, told: list[Event]) -> None:
    run = run_of(seq=1, origin="b")
    header = replace(run.header, ts=NO_NUMBER)
    with pytest.raises(RemoteProtocolError, match="cannot be"):
        asyncio.run(peering.on_push("b", encode_pushes([(header, run.payload)])))
    assert not told
