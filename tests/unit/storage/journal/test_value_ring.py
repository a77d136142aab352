"""The latest entries of a kind, in named values of the journal."""

from __future__ import annotations

import msgspec
import pytest

from sparktxlog.storage.interfaces import PutValue
from sparktxlog.storage.journal.value_ring import ValueRing, ring_value, ring_values


def ring(saved: dict[str, bytes], codec: object = msgspec.msgpack) -> ValueRing[str]:
    return ValueRing("note:", 3, str, saved, codec)  # type: ignore[arg-type]


def keep(saved: dict[str, bytes], write: PutValue) -> None:
    saved[write.name] = write.value


@pytest.mark.parametrize("codec", [msgspec.msgpack, msgspec.json], ids=["msgpack", "json"])
def test_the_latest_come_back_in_their_order(codec: object) -> None:
    saved = {"other:0": b"not of this ring"}
    first = ring(saved, codec)
    for text in "abcde":
        keep(saved, first.add(text)[1])
    assert first.newest_first() == ["e", "d", "c"]
    assert len(saved) == 4
    again = ring(saved, codec)
    assert again.entries == {2: "c", 3: "d", 4: "e"}
    number, write = again.add("f")
    assert (number, write.name) == (5, "note:2")


def test_an_entry_is_replaced_at_its_place() -> None:
    saved: dict[str, bytes] = {}
    first = ring(saved)
    for text in "ab":
        keep(saved, first.add(text)[1])
    keep(saved, first.put(0, "A"))
    assert ring(saved).newest_first() == ["b", "A"]


def test_values_that_say_their_own_order_have_places_only() -> None:
    saved: dict[str, bytes] = {"note:1": b""}
    keep(saved, ring_value("note:", 3, 5, b"five"))
    keep(saved, ring_value("note:", 3, 3, b"three"))
    assert sorted(ring_values("note:", saved)) == [(0, b"three"), (2, b"five")]
