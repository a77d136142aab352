"""A process that greets as a known node is taken only if it is certainly the only one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.transport.test_other_address import hello

from sparktxlog.errors import BusyError, ForbiddenPeerError, PeerTimeoutError, TransportError
from sparktxlog.runtime.peering import Peering


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
    membership: Any = SimpleNamespace(greeter=None, verifier=None)
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
