"""The machine's orders carried out: batches, gaps, failures, and a copy as the way out."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sparktxlog.catchup.replica import Phase
from sparktxlog.errors import (
    ApplyError,
    DivergedError,
    ExpiredError,
    LeaseGoneError,
    TransportError,
    TxLogError,
)
from sparktxlog.worker.copy.copy_terms import CopyOutcome
from sparktxlog.worker.copy.replica_copy import ReplicaCopy
from sparktxlog.worker.replica.recovery import ReplicaDriver


class Copy:
    """A copy of two tables that may fail."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    @property
    def grant(self) -> Any:
        return type("G", (), {"position": 40, "node_id": "B"})

    def back_up(self) -> None:
        self.replica.done.append("back up")

    def request(self) -> int:
        self.replica.done.append("request")
        self.replica.fail("request")
        return 2

    def fetch(self, index: int) -> None:
        self.replica.done.append(f"fetch {index}")
        self.replica.fail("fetch")

    def restart(self) -> CopyOutcome:
        self.replica.position = 40
        return CopyOutcome(copy_id="c", donor="B", from_position=0, position=40)

    def fail(self, reason: str) -> None:
        self.replica.done.append("fail")


class Replica:
    """Applies numbers; `failures` names what fails how often, and how."""

    def __init__(self, position: int = 0, *, may_copy: bool = True) -> None:
        self.position, self.may_copy = position, may_copy
        self.failures: dict[str, list[TxLogError]] = {}
        self.missing: tuple[int, int] | None = None
        self.done: list[str] = []
        self.outcomes: list[CopyOutcome | None] = []

    def fail(self, what: str) -> None:
        if self.failures.get(what):
            raise self.failures[what].pop()

    def apply_to(self, last: int) -> None:
        self.done.append(f"apply {self.position + 1}-{last}")
        self.fail("apply")
        self.position = last

    def request(self, first: int, last: int) -> tuple[int, int]:
        self.done.append(f"ask {first}-{last}")
        self.fail("ask")
        if self.missing is None:
            raise ExpiredError(f"the log no longer holds position {first}")
        return self.missing

    def give_up(self, reason: str) -> None:
        self.done.append(f"give up: {reason}")

    def open_copy(self) -> ReplicaCopy:
        return cast(ReplicaCopy, Copy(self))

    def close_copy(self, copy: ReplicaCopy, outcome: CopyOutcome | None) -> None:
        self.outcomes.append(outcome)


def driver(replica: Replica) -> ReplicaDriver:
    return ReplicaDriver(cast(Any, replica), lambda seconds: False)


def test_what_follows_is_applied_and_what_is_here_already_is_dropped() -> None:
    replica = Replica()
    driven = driver(replica)
    for first, last in ((1, 5), (1, 5), (4, 9)):
        driven.take(first, last)
    assert replica.done == ["apply 1-5", "apply 6-9"]


def test_a_gap_is_asked_for_exactly() -> None:
    replica = Replica()
    replica.missing = (1, 6)
    driver(replica).take(7, 9)
    assert replica.done[:2] == ["ask 1-6", "apply 1-6"] and replica.position == 9


def test_a_gap_that_the_log_no_longer_holds_needs_a_copy() -> None:
    replica = Replica()
    driven = driver(replica)
    driven.take(30, 35)
    assert replica.done == ["ask 1-29", "back up", "request", "fetch 0", "fetch 1"]
    assert replica.position == 40 and driven.phase is Phase.BASIC
    (outcome,) = replica.outcomes
    assert outcome is not None and outcome.donor == "B"


def test_a_range_that_does_not_come_is_asked_for_again_then_the_replica_is_idle() -> None:
    replica = Replica()
    replica.failures["ask"] = [TransportError("no answer") for _ in range(9)]
    driven = driver(replica)
    with pytest.raises(TransportError):
        driven.take(7, 9)
    assert replica.done == ["ask 1-6"] * 4
    assert driven.phase is Phase.IDLE


def test_a_batch_that_fails_once_is_tried_again() -> None:
    replica = Replica()
    replica.failures["apply"] = [ApplyError("out of memory")]
    driver(replica).take(1, 5)
    assert replica.done == ["apply 1-5", "apply 1-5"] and replica.position == 5


def test_a_batch_that_fails_twice_is_given_up_for_a_copy() -> None:
    replica = Replica()
    replica.failures["apply"] = [ApplyError("file is missing"), ApplyError("file is missing")]
    driver(replica).take(1, 5)
    assert replica.done[2].startswith("give up: ") and "file is missing" in replica.done[2]
    assert replica.position == 40


def test_without_leave_to_copy_the_failure_is_the_end() -> None:
    replica = Replica(may_copy=False)
    replica.failures["apply"] = [ApplyError("file is missing")]
    with pytest.raises(ApplyError, match="file is missing"):
        driver(replica).take(1, 5)
    assert replica.done == ["apply 1-5"]


def test_a_diverged_log_is_never_copied_over() -> None:
    replica = Replica()
    replica.failures["apply"] = [DivergedError("another history")]
    with pytest.raises(DivergedError):
        driver(replica).take(1, 5)
    assert replica.done == ["apply 1-5"]


def test_a_failed_chunk_begins_again_with_the_request() -> None:
    replica = Replica()
    replica.failures["fetch"] = [LeaseGoneError("gone")]
    driver(replica).copy("told")
    assert replica.done == [
        "back up", "request", "fetch 0", "fail", "request", "fetch 0", "fetch 1",
    ]  # fmt: skip


def test_a_refused_copy_leaves_the_replica_idle_until_it_is_asked_again() -> None:
    replica = Replica()
    replica.failures["request"] = [ApplyError("no donor")]
    driven = driver(replica)
    with pytest.raises(ApplyError, match="no donor"):
        driven.copy("told")
    assert driven.phase is Phase.IDLE and replica.outcomes == [None]
    driven.copy("told again")
    assert replica.position == 40 and driven.phase is Phase.BASIC
