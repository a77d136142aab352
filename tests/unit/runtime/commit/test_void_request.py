"""An operator voids a run: which one is meant, and what is asked of the epochs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.runtime.commit.test_run_fetching import staged_run

from sparktxlog.codec.containers.payload import digest_of
from sparktxlog.errors import LocalProtocolError, NotFoundError
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.view import Voided
from sparktxlog.protocol.order.status import IncomingRun
from sparktxlog.runtime.commit.void_request import Voiding

PAYLOAD = staged_run()
HEADER = RunHeader(
    epoch=1,
    ts=5,
    origin=NodeId("B"),
    incarnation=1,
    seq=7,
    n=1,
    digest=digest_of(PAYLOAD),
    size_bytes=len(PAYLOAD),
    staged_bytes=10,
)
RUN = IncomingRun(header=HEADER, acquired=True, since=0, waits=())
NAME = HEADER.digest.hex()


def void(name: str, *runs: IncomingRun) -> tuple[Any, list[Voided]]:
    """Return the answer to a request at a node where these runs wait, and what was decided."""
    decided: list[Voided] = []

    async def decide(voided: Voided, timeout: float) -> dict[str, Any]:
        decided.append(voided)
        return {"epoch": 2}

    async def run_payload(header: RunHeader) -> bytes:
        return PAYLOAD

    base: Any = SimpleNamespace(master=SimpleNamespace(incoming=lambda limit: list(runs)))
    epochs: Any = SimpleNamespace(void=decide)
    files: Any = SimpleNamespace(run_payload=run_payload)
    return asyncio.run(Voiding(base, epochs, files).void(name, ["C"], 1.0)), decided


@pytest.mark.parametrize("name", [NAME, NAME[:9].upper()])
def test_its_ids_stay_and_its_content_goes(name: str) -> None:
    other = replace(RUN, header=replace(HEADER, digest=bytes(32)))
    answer, (voided,) = void(name, other, RUN)
    assert answer == {
        "epoch": 2,
        "voided": {"digest": NAME, "origin": "B", "seq": 7, "transactions": 1},
    }
    assert (voided.digest, voided.facts.voided, voided.facts.ids) == (
        HEADER.digest,
        True,
        bytes(16),
    )
    assert (voided.header.staged_bytes, voided.without) == (0, ("C",))


@pytest.mark.parametrize(("name", "runs"), [("ff" * 32, [RUN]), (NAME, []), ("", [RUN, RUN])])
def test_one_run_must_be_named(name: str, runs: list[IncomingRun]) -> None:
    with pytest.raises(NotFoundError, match="wait to be ordered here"):
        void(name, *runs)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (replace(RUN, header=replace(HEADER, staged_bytes=0)), "no staged files"),
        (replace(RUN, acquired=False), "does not have the run's manifest"),
    ],
)
def test_what_can_be_delivered_is_not_voided(run: IncomingRun, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        void(NAME, run)
