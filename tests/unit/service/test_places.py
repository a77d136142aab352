"""Which connections keep their places: what their callers proved counts, then the address."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from sparktxlog.service import places
from sparktxlog.service.places import Places, Proof, too_many


class Caller:
    """A connection."""

    def __init__(
        self, address: str = "10.0.0.1", *, is_idle: bool = True, heard: float = 0
    ) -> None:
        self.address, self.is_idle, self.heard = address, is_idle, heard
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def entered(kept: Places, *callers: Any) -> None:
    for caller in callers:
        kept.enter(caller)


def test_strangers_of_one_address_push_out_each_other_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "NEW_PLACES", 4)
    kept, honest = Places(4), Caller("10.0.0.2")
    many = [Caller() for _ in range(20)]
    entered(kept, honest, *many)
    assert not honest.aborted
    assert [one.aborted for one in many] == [True] * 17 + [False] * 3, "the oldest ones go"


def test_strangers_take_no_place_of_clients_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "NEW_PLACES", 2)
    kept, client, peer = Places(4), Caller(), Caller()
    entered(kept, client, peer)
    assert kept.prove(client, Proof.CLIENT)  # type: ignore[arg-type]
    assert kept.prove(peer, Proof.PEER)  # type: ignore[arg-type]
    entered(kept, *(Caller() for _ in range(50)))
    assert not client.aborted
    assert not peer.aborted


def test_health_checks_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "NEW_PLACES", 2)
    monkeypatch.setattr(places, "PROBE_PLACES", 2)
    kept, probe = Places(4), Caller("10.0.0.9")
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
    kept, ticks = Places(2), count()
    busy: list[Any] = [Caller(is_idle=False, heard=next(ticks)) for _ in range(2)]
    late: Any = Caller()
    entered(kept, *busy, late)
    assert all(kept.prove(one, Proof.CLIENT) for one in busy)
    assert not kept.prove(late, Proof.CLIENT)
    busy[1].is_idle = True
    assert kept.prove(late, Proof.CLIENT)
    assert [one.aborted for one in busy] == [False, True]


def test_a_peer_that_asks_what_clients_ask_stays_a_peer() -> None:
    kept, peer = Places(2), Caller()
    entered(kept, peer)
    kept.prove(peer, Proof.PEER)  # type: ignore[arg-type]
    assert kept.prove(peer, Proof.CLIENT)  # type: ignore[arg-type]
    assert kept._held[Proof.PEER] == {peer: None}


def test_of_equal_addresses_the_first_one_gives_way() -> None:
    assert too_many({1: "a", 2: "b"}) == 1
    assert too_many({1: "a", 2: "b", 3: "b"}) == 2
