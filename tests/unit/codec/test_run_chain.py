"""Chain hashes that follow from kept headers of runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.codec.run_chain import FIRST_HASH, KeptRun, run_ends
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader, chain_hash

RUN = KeptRun(n=2, origin="Ä", incarnation=3, seq=4, ts=5, epoch=6, digest="ab" * 32, ordered_at=9)


def test_it_is_the_chain_hash_of_the_queue() -> None:
    header = RunHeader(
        epoch=6,
        ts=5,
        origin=NodeId("Ä"),
        incarnation=3,
        seq=4,
        n=2,
        digest=bytes.fromhex("ab" * 32),
        size_bytes=77,
    )
    one = chain_hash(bytes(32), header)
    first, second = run_ends(0, FIRST_HASH, [RUN, RUN])
    assert (first.position, first.chain_hash, first.epoch, first.ordered_at) == (2, one.hex(), 6, 9)
    assert (second.position, second.chain_hash) == (4, chain_hash(one, header).hex())
    (later,) = run_ends(2, first.chain_hash, [RUN])
    assert later == second


@pytest.mark.parametrize(
    "changed",
    [
        {"n": 3},
        {"origin": "B"},
        {"incarnation": 4},
        {"seq": 5},
        {"ts": 6},
        {"epoch": 7},
        {"digest": "ac" * 32},
    ],
)
def test_no_field_changes_without_another_hash(changed: dict[str, object]) -> None:
    (right,) = run_ends(0, FIRST_HASH, [RUN])
    (wrong,) = run_ends(0, FIRST_HASH, [replace(RUN, **changed)])  # type: ignore[arg-type]
    assert wrong.chain_hash != right.chain_hash
