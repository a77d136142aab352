"""Whose the places are where clients stage: kept over a restart, bounded, fair."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from sparktxlog.errors import ForbiddenError
from sparktxlog.runtime.audit_trail import ANYBODY, OPERATOR, asks
from sparktxlog.runtime.tokens import place_owners
from sparktxlog.runtime.tokens.place_owners import PlaceOwners


class Kept:
    """The journal's named values, and an executor that writes them."""

    disk_full = False

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def write(self, writes: list[Any]) -> None:
        self.values |= {write.name: write.value for write in writes}

    def owners(self) -> PlaceOwners:
        executor: Any = self
        return PlaceOwners(self.values, executor)


@pytest.fixture(autouse=True)
def nobody_asks() -> Iterator[None]:
    token = asks.set("client")
    yield
    asks.reset(token)


def refused(owners: PlaceOwners, place: str, caller: str, *, writes: bool = True) -> bool:
    asks.set(caller)
    try:
        owners.check(place, writes=writes)
    except ForbiddenError as error:
        return error.definite and "another token" in error.message and "your own" in error.hint
    return False


def test_a_place_is_of_who_asked_for_it_also_after_a_restart() -> None:
    kept = Kept()
    asks.set("client etl")
    asyncio.run(kept.owners().take("p"))
    owners = kept.owners()
    assert not refused(owners, "p", "client etl") and refused(owners, "p", "client")
    assert refused(owners, "p", OPERATOR) and not refused(owners, "p", OPERATOR, writes=False)
    assert refused(owners, "p", "client", writes=False)
    with pytest.raises(ForbiddenError):
        asyncio.run(owners.take("p"))
    assert not refused(owners, "another", "client"), "nobody asked the node for it"
    asyncio.run(owners.release("p"))
    assert not refused(owners, "p", "client") and not refused(kept.owners(), "p", "client")
    asks.set(ANYBODY)
    asyncio.run(owners.take("q"))
    assert not refused(kept.owners(), "q", "client"), "where nobody needs a token, nobody owns"


def test_who_has_most_loses_one_and_the_others_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_owners, "MOST", 8)
    kept = Kept()
    owners = kept.owners()

    async def main() -> None:
        asks.set("client etl")
        await owners.take("mine")
        asks.set("client greedy")
        for number in range(50):
            await owners.take(f"{number}")

    asyncio.run(main())
    assert len(kept.values) == 8
    for known in (owners, kept.owners()):
        assert refused(known, "mine", "client greedy") and refused(known, "49", "client etl")
