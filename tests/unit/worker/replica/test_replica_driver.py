"""The driver's orders carried out: batches, gaps, failures, and a copy as the way out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import pytest

from sparktxlog.errors import (
    ApplyError,
    DiskFullError,
    DivergedError,
    ExpiredError,
    LeaseGoneError,
    LockedError,
    StoreUnavailableError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.copy.copy_terms import CopyOutcome
from sparktxlog.worker.copy.replica_copy import ReplicaCopy
from sparktxlog.worker.replica.replica_driver import (
    REPLICA_TRANSITIONS,
    ReplicaDriver,
    ReplicaPhase,
)


class Copy:
    """A copy that may fail."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    @property
    def lease(self) -> Any:
        return type("G", (), {"position": 40, "replica": "B"})

    def back_up(self) -> None:
        self.replica.done.append("back up")
        self.replica.fail("back up")

    def request(self) -> None:
        self.replica.done.append("request")
        self.replica.fail("request")

    def stage_tables(self) -> None:
        self.replica.done.append("fetch")
        self.replica.fail("fetch")

    def restart(self) -> CopyOutcome:
        self.replica.fail("restart")
        self.replica.position = self.replica.snapshot
        self.replica.fail("report")
        return CopyOutcome(copy_id="c", donor="B", from_position=0, position=self.replica.position)

    def fail(self, reason: str) -> None:
        self.replica.done.append("fail")

    @property
    def in_place(self) -> bool:
        return self.replica.position == self.replica.snapshot


class Replica:
    """Applies numbers; `failures` names what fails how often, and how."""

    def __init__(self, position: int = 0, *, may_copy: bool = True) -> None:
        self.position, self.may_copy = position, may_copy
        self.failures: dict[str, list[TxLogError]] = {}
        self.missing: tuple[int, int] | None = None
        #: What is there after it.
        self.rest: list[tuple[int, int]] = []
        self.done: list[str] = []
        self.outcomes: list[CopyOutcome | None] = []
        self.pauses: list[float] = []
        #: Where a copy ends.
        self.snapshot = 40

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
        found, self.missing = self.missing, self.rest.pop(0) if self.rest else self.missing
        return found

    def give_up(self, reason: str) -> None:
        self.done.append(f"give up: {reason}")

    def open_copy(self) -> ReplicaCopy:
        return cast(ReplicaCopy, Copy(self))

    def close_copy(self, copy: ReplicaCopy, outcome: CopyOutcome | None) -> None:
        self.outcomes.append(outcome)


class Pauses(threading.Event):
    """Never set unless it is told; notes what is waited for."""

    def __init__(self, replica: Replica, *, ends: bool = False) -> None:
        super().__init__()
        self.replica, self.ends = replica, ends

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.replica.pauses.append(timeout)
        return self.ends


class NotedDriver(ReplicaDriver):
    """Notes each phase that it enters."""

    def __init__(self, replica: Replica, *, ends: bool = False) -> None:
        self.phases = [ReplicaPhase.BASIC]
        super().__init__(cast(Any, replica), Pauses(replica, ends=ends))

    def _enter(self, phase: ReplicaPhase) -> None:
        super()._enter(phase)
        self.phases.append(phase)


def driver(replica: Replica) -> NotedDriver:
    return NotedDriver(replica)


def test_what_follows_is_applied_and_what_is_here_already_is_dropped() -> None:
    replica = Replica()
    driven = driver(replica)
    for first, last in ((1, 5), (1, 5), (4, 9)):
        driven.take(first, last)
    assert replica.done == ["apply 1-5", "apply 6-9"]


def test_a_gap_is_asked_for_exactly() -> None:
    replica = Replica()
    replica.missing = (1, 6)
    replica.rest = [(7, 9)]
    driver(replica).take(7, 9)
    assert replica.done == ["ask 1-9", "apply 1-6", "ask 7-9", "apply 7-9"]


def test_a_gap_that_the_log_no_longer_holds_needs_a_copy() -> None:
    replica = Replica()
    driven = driver(replica)
    driven.take(30, 35)
    assert replica.done == ["ask 1-35", "back up", "request", "fetch"]
    assert (replica.position, driven.phase) == (40, ReplicaPhase.BASIC)
    (outcome,) = replica.outcomes
    assert outcome is not None and outcome.donor == "B"


def test_a_range_that_does_not_come_is_asked_for_again_then_the_replica_is_idle() -> None:
    replica = Replica()
    replica.failures["ask"] = [TransportError("no answer") for _ in range(9)]
    driven = driver(replica)
    with pytest.raises(TransportError):
        driven.take(7, 9)
    assert replica.done == ["ask 1-9"] * 4
    assert driven.reason == "4 attempts failed, the last one: no answer"


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


def test_without_leave_to_copy_the_second_failure_is_the_end() -> None:
    replica = Replica(may_copy=False)
    replica.failures["apply"] = [ApplyError("file is missing"), ApplyError("file is missing")]
    with pytest.raises(ApplyError, match="file is missing"):
        driver(replica).take(1, 5)
    assert replica.done == ["apply 1-5", "apply 1-5"]


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
    assert replica.done == ["back up", "request", "fetch", "fail", "request", "fetch"]


def test_a_copy_ends_at_once_when_another_worker_has_the_replica() -> None:
    replica = Replica()
    replica.failures["restart"] = [LockedError("taken over")]
    with pytest.raises(LockedError, match="taken over"):
        driver(replica).copy("told")
    assert replica.done == ["back up", "request", "fetch"]


def test_a_copy_waits_for_a_bucket_that_is_away() -> None:
    replica = Replica()
    replica.failures["restart"] = [StoreUnavailableError("throttled") for _ in range(2)]
    driver(replica).copy("told")
    assert replica.done == ["back up", *["request", "fetch", "fail"] * 2, "request", "fetch"]
    assert replica.pauses == [1, 2] and replica.position == 40


def test_a_refused_copy_leaves_the_replica_idle_and_another_driver_goes_on() -> None:
    replica = Replica()
    replica.failures["request"] = [ApplyError("no donor")]
    driven = driver(replica)
    with pytest.raises(ApplyError, match="no donor"):
        driven.copy("told")
    assert replica.outcomes == [None]
    assert driven.reason == "nothing to copy from: no donor"
    with pytest.raises(ApplyError, match="stands still: nothing to copy from: no donor"):
        driven.take(1, 5)
    again = driver(replica)
    again.copy("told again")
    assert (replica.position, again.phase) == (40, ReplicaPhase.BASIC)


def test_errors_of_the_link_are_tried_again_with_growing_pauses() -> None:
    replica = Replica()
    replica.missing = (1, 6)
    replica.failures["ask"] = [TransportError("link down") for _ in range(3)]
    replica.failures["request"] = [TransportError("link down") for _ in range(3)]
    driven = driver(replica)
    driven.take(6, 6)
    assert replica.pauses == [1.0, 2.0, 4.0]
    driven.copy("told")
    assert replica.pauses == [1.0, 2.0, 4.0] * 2
    assert replica.done.count("back up") == 1 and replica.position == 40


def test_a_worker_that_is_to_end_does_not_wait() -> None:
    replica = Replica()
    replica.failures["ask"] = [TransportError("link down")]
    driven = NotedDriver(replica, ends=True)
    with pytest.raises(TransportError, match="link down"):
        driven.take(7, 9)
    assert replica.done == ["ask 1-9"] and driven.phase is ReplicaPhase.REQUEST


def test_success_in_between_makes_all_attempts_good_again() -> None:
    replica = Replica()
    driven = driver(replica)
    for end in (9, 18, 27):
        replica.missing = (replica.position + 1, end)
        replica.failures["ask"] = [TransportError("link down") for _ in range(3)]
        driven.take(end, end)
    assert (driven.phase, replica.position) == (ReplicaPhase.BASIC, 27)


def test_a_snapshot_behind_what_was_heard_of_requests_the_rest() -> None:
    replica = Replica(50)
    replica.snapshot, replica.missing = 30, (31, 50)
    driver(replica).copy("told")
    assert replica.done[-2:] == ["ask 31-50", "apply 31-50"]


def test_without_a_backup_nothing_is_copied() -> None:
    replica = Replica()
    replica.failures["back up"] = [ApplyError("no room")]
    driven = driver(replica)
    with pytest.raises(ApplyError, match="no room"):
        driven.copy("told")
    assert replica.done == ["back up"]
    assert driven.reason == "the old files are not kept: no room"


def test_copies_that_fail_are_not_repeated_for_ever() -> None:
    replica = Replica()
    replica.failures["restart"] = [LeaseGoneError("file changed") for _ in range(9)]
    driven = driver(replica)
    with pytest.raises(LeaseGoneError):
        driven.copy("told")
    assert replica.done.count("request") == 4 and replica.pauses == []
    assert driven.reason == "4 copies failed, the last one: file changed"


def test_a_broken_link_pauses_before_the_fresh_grant() -> None:
    replica = Replica()
    replica.failures["fetch"] = [TransportError("broken") for _ in range(3)]
    driver(replica).copy("told")
    assert replica.pauses == [1.0, 2.0, 4.0] and replica.position == 40


def test_a_copy_that_does_not_help_is_not_repeated_for_ever() -> None:
    replica = Replica()
    replica.snapshot, replica.missing = 10, (11, 50)
    replica.failures["apply"] = [ApplyError("predicate fails") for _ in range(99)]
    driven = driver(replica)
    with pytest.raises(ApplyError, match="predicate fails"):
        driven.take(1, 50)
    assert replica.done.count("back up") == 3
    assert driven.reason == "3 copies did not help: predicate fails"


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("ask", UnauthorizedError("wrong token")),
        ("fetch", DiskFullError("no space left")),
        ("restart", DiskFullError("no space left")),
    ],
)
def test_what_neither_replay_nor_copy_would_change_makes_it_idle_at_once(
    failing: str, error: TxLogError
) -> None:
    replica = Replica()
    replica.failures[failing] = [error]
    driven = driver(replica)
    with pytest.raises(type(error)):
        driven.take(7, 9) if failing == "ask" else driven.copy("told")
    assert (driven.phase, driven.reason, replica.pauses) == (ReplicaPhase.IDLE, error.message, [])


def test_what_a_donor_refuses_another_one_may_give() -> None:
    replica = Replica()
    replica.failures["fetch"] = [UnauthorizedError("another lease")]
    driver(replica).copy("told")
    assert replica.position == 40


def test_a_copy_that_is_in_place_is_not_begun_again_when_the_node_is_away() -> None:
    replica = Replica()
    replica.failures["report"] = [TransportError("no answer")]
    with pytest.raises(TransportError, match="no answer"):
        driver(replica).copy("told")
    assert replica.done == ["back up", "request", "fetch"]
    assert (replica.position, replica.pauses, replica.outcomes) == (40, [], [None])


def _fill(replica: Replica, driven: ReplicaDriver) -> None:
    replica.missing = (1, 9)
    driven.take(7, 9)


def _overrun(replica: Replica, driven: ReplicaDriver) -> None:
    driven.take(30, 35)


def _refuse_range(replica: Replica, driven: ReplicaDriver) -> None:
    replica.failures["ask"] = [UnauthorizedError("wrong token")]
    driven.take(7, 9)


def _refuse_copy(replica: Replica, driven: ReplicaDriver) -> None:
    replica.failures["request"] = [ApplyError("no donor")]
    driven.copy("told")


WAYS: tuple[tuple[Callable[[Replica, ReplicaDriver], None], str], ...] = (
    (_fill, "BASIC REQUEST BASIC"),
    (_overrun, "BASIC REQUEST LOAD BASIC"),
    (_refuse_range, "BASIC REQUEST IDLE"),
    (_refuse_copy, "BASIC LOAD IDLE"),
)


def _phases(act: Callable[[Replica, ReplicaDriver], None]) -> list[ReplicaPhase]:
    replica = Replica()
    driven = driver(replica)
    with suppress(TxLogError):
        act(replica, driven)
    return driven.phases


@pytest.mark.parametrize(("act", "phases"), WAYS)
def test_the_phases_of_a_way(act: Callable[[Replica, ReplicaDriver], None], phases: str) -> None:
    assert _phases(act) == [ReplicaPhase(phase) for phase in phases.split()]


def test_every_way_of_the_table_is_taken() -> None:
    taken = {way for act, _ in WAYS for way in pairwise(_phases(act))}
    assert taken == {(a, b) for a, targets in REPLICA_TRANSITIONS.items() for b in targets}


@pytest.mark.parametrize("source", list(ReplicaPhase))
@pytest.mark.parametrize("target", list(ReplicaPhase))
def test_there_is_no_other_way(source: ReplicaPhase, target: ReplicaPhase) -> None:
    driven = driver(Replica())
    driven.phase = source
    if target in REPLICA_TRANSITIONS[source]:
        driven._enter(target)
        assert driven.phase is target
    else:
        with pytest.raises(AssertionError, match=f"{source} → {target}"):
            driven._enter(target)
        assert driven.phase is source
