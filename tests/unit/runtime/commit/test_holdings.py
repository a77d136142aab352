"""Payloads in memory: bounds, and nothing missing that the core was told of."""

from __future__ import annotations

import pytest

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.runtime.commit.holdings import Holdings, OwnRun


def header(seq: int, origin: str = "B", digest: bytes = b"d" * 32) -> RunHeader:
    return RunHeader(
        epoch=1,
        ts=seq,
        origin=NodeId(origin),
        incarnation=1,
        seq=seq,
        n=1,
        digest=digest,
        size_bytes=10,
    )


def test_foreign_payloads_are_bounded_but_one_always_fits() -> None:
    held = Holdings(foreign_limit_bytes=100, cache_limit_bytes=0)
    assert held.put_foreign(header(1), b"x" * 500)
    assert not held.put_foreign(header(2), b"x")
    held.foreign_refused(header(1))
    assert held.put_foreign(header(2), b"x")
    assert held.size_bytes() == 1


def test_one_content_submitted_at_two_nodes_is_two_runs() -> None:
    held = Holdings(foreign_limit_bytes=100, cache_limit_bytes=0)
    for origin in "BC":
        assert held.put_foreign(header(1, origin), b"same")
        held.foreign_wanted(header(1, origin))
    held.foreign_persisted(header(1, "B"))
    assert held.foreign(header(1, "C")) == b"same"
    held.foreign_persisted(header(1, "C"))
    with pytest.raises(InvariantViolation):
        held.foreign(header(1, "C"))


def test_the_cache_forgets_the_oldest_and_what_nobody_needs() -> None:
    held = Holdings(foreign_limit_bytes=0, cache_limit_bytes=30)
    for number in range(4):
        digest = bytes([number]) * 32
        held.cache(digest, b"x" * 10)
        held.ordered(10 * (number + 1), digest)
    assert held.find(bytes([0]) * 32) is None
    assert held.find(bytes([3]) * 32) == b"x" * 10
    held.release(30)
    assert held.find(bytes([2]) * 32) is None
    assert held.find(bytes([3]) * 32) is not None
    assert held.size_bytes() == 10


def test_an_announced_run_leaves_its_payload_to_the_journal() -> None:
    held = Holdings(foreign_limit_bytes=0, cache_limit_bytes=0)
    held.put_own(1, OwnRun(digest=b"d" * 32, payload=b"x" * 10, session="s"))
    held.announced(1)
    assert held.own(1) == OwnRun(digest=b"d" * 32, payload=None, session="s")
    held.own_persisted(1)
    with pytest.raises(InvariantViolation):
        held.own(1)


def test_a_refused_run_is_not_served_from_memory() -> None:
    held = Holdings(foreign_limit_bytes=0, cache_limit_bytes=100)
    held.put_own(1, OwnRun(digest=b"d" * 32, payload=b"run"))
    held.announced(1)
    assert held.find(b"d" * 32) == b"run"
    held.own_rejected(1)
    assert held.find(b"d" * 32) is None and held.size_bytes() == 0
