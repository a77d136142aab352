"""Which connections keep their places: what their callers proved counts, then the address."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any, cast

import pytest

from sparktxlog.errors import ShareUsedUpError
from sparktxlog.runtime.audit_trail import asks
from sparktxlog.runtime.tokens.budgets import Budget
from sparktxlog.service.connections import places
from sparktxlog.service.connections.places import Places, Proof, too_many


class Caller:
    """A connection."""

    def __init__(
        self, address: str = "10.0.0.1", *, is_idle: bool = True, heard: float = 0
    ) -> None:
        self.address, self.is_idle, self.heard = address, is_idle, heard
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def of_clients(most: int) -> Places:
    return Places(Budget("connections", most, ""))


def prove_as(kept: Places, caller: Any, name: str) -> None:
    kept.enter(caller)
    given = asks.set(name)
    try:
        kept.prove(caller, Proof.CLIENT)
    finally:
        asks.reset(given)


def entered(kept: Places, *callers: Any) -> None:
    for caller in callers:
        kept.enter(caller)


def test_strangers_of_one_address_push_out_each_other_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "NEW_PLACES", 4)
    kept, honest = of_clients(4), Caller("10.0.0.2")
    many = [Caller() for _ in range(20)]
    entered(kept, honest, *many)
    assert not honest.aborted
    assert [one.aborted for one in many] == [True] * 17 + [False] * 3, "the oldest ones go"


def test_strangers_take_no_place_of_clients_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "NEW_PLACES", 2)
    kept, client, peer = of_clients(4), Caller(), Caller()
    entered(kept, client, peer)
    assert kept.prove(client, Proof.CLIENT)  # type: ignore[arg-type]
    assert kept.prove(peer, Proof.PEER)  # type: ignore[arg-type]
    entered(kept, *(Caller() for _ in range(50)))
    assert not client.aborted
    assert not peer.aborted


def test_health_checks_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "NEW_PLACES", 2)
    monkeypatch.setattr(places, "PROBE_PLACES", 2)
    kept, probe = of_clients(4), Caller("10.0.0.9")
    kept.enter(probe)  # type: ignore[arg-type]
    kept.probe(probe)  # type: ignore[arg-type]
    entered(kept, *(Caller() for _ in range(9)))
    assert not probe.aborted
    for flood in (Caller() for _ in range(9)):
        kept.enter(flood)  # type: ignore[arg-type]
        kept.probe(flood)  # type: ignore[arg-type]
    assert not probe.aborted
    # A client that asks for its health as well stays a client.
    client: Any = Caller()
    kept.enter(client)
    kept.prove(client, Proof.CLIENT)
    kept.probe(client)
    assert kept._held[Proof.CLIENT] == {client: None}


def test_a_full_house_gives_away_what_is_idle_and_nothing_else() -> None:
    kept, ticks = of_clients(3), count()
    busy: list[Any] = [Caller(is_idle=False, heard=next(ticks)) for _ in range(2)]
    late: Any = Caller()
    entered(kept, *busy, late)
    assert all(kept.prove(one, Proof.CLIENT) for one in busy)
    with pytest.raises(ShareUsedUpError, match="has 2 of this node's 3 connections"):
        kept.prove(late, Proof.CLIENT)
    busy[1].is_idle = True
    assert kept.prove(late, Proof.CLIENT)
    assert [one.aborted for one in busy] == [False, True]


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_token_takes_no_place_of_another_one(is_idle: bool) -> None:
    kept, budget = Places(made := Budget("connections", 12, "")), made
    others: list[Any] = [Caller() for _ in range(2)]
    for other, name in zip(others, ("client a", "client b"), strict=True):
        prove_as(kept, other, name)
    for _ in range(50):
        with suppress(ShareUsedUpError):
            prove_as(kept, Caller(is_idle=is_idle), "client greedy")
    assert not any(other.aborted for other in others)
    assert budget.has("client greedy") == 6
    for number in range(3):
        prove_as(kept, Caller(), f"client c{number}")
    last: Any = Caller()
    prove_as(kept, last, "client last")
    if is_idle:  # the house is full: what is idle makes room for a token that has nothing
        prove_as(kept, Caller(), "client later")
    else:
        others[0].is_idle = others[1].is_idle = False
        assert budget.used == 12
    kept.leave(last)
    prove_as(kept, last, "client last")


def test_a_connection_belongs_to_the_token_that_it_showed_last() -> None:
    kept, budget = Places(made := Budget("connections", 6, "")), made
    proxy: Any = Caller()
    for name in ("client a", "client b", "client b"):
        prove_as(kept, proxy, name)
    assert (budget.has("client a"), budget.has("client b")) == (0, 1)
    kept.leave(proxy)
    assert budget.used == 0


def test_a_peer_that_asks_what_clients_ask_stays_a_peer() -> None:
    kept, peer = of_clients(2), cast(Any, Caller())
    entered(kept, peer)
    kept.prove(peer, Proof.PEER)
    assert kept.prove(peer, Proof.CLIENT)
    assert kept._held[Proof.PEER] == {peer: None}


def test_of_equal_addresses_the_first_one_gives_way() -> None:
    assert too_many({1: "a", 2: "b"}) == 1
    assert too_many({1: "a", 2: "b", 3: "b"}) == 2
