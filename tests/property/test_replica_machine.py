"""Any ranges, orders and failures: applied once, ascending, never stuck, and idle with a reason."""

from __future__ import annotations

import threading
from typing import Any, cast

from hypothesis import event, given, settings
from hypothesis import strategies as st

from sparktxlog.errors import (
    ApplyError,
    DiskFullError,
    ExpiredError,
    LeaseGoneError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.copy.copy_terms import CopyOutcome
from sparktxlog.worker.replica.replica_driver import COPIES, RETRIES, ReplicaDriver, ReplicaPhase

END = 40
ERRORS = (
    None,
    ApplyError("fails"),
    DiskFullError("full"),
    ExpiredError("gone"),
    LeaseGoneError("gone"),
    TransportError("broken"),
    UnauthorizedError("refused"),
)
#: More steps than any run may need that gets nowhere.
MANY = 60 * (RETRIES + 1) * (COPIES + 1)


class Replica:
    """A replica, and a copy of it, that fail as they are told: one entry of `faults` a step."""

    may_copy = True

    def __init__(self, faults: list[TxLogError | None], log: list[int]) -> None:
        self.faults = faults
        #: Ends of the runs that the node has, ascending.
        self.log = log
        #: For ever after `faults`.
        self.always: TxLogError | None = None
        self.position = self.snapshot = 0
        self.steps = 0
        self.open = 0
        self.backed_up = False

    def step(self) -> None:
        self.steps += 1
        assert self.steps < MANY
        error = self.faults.pop(0) if self.faults else self.always
        if error is not None:
            raise error

    def apply_to(self, last: int) -> None:
        assert not self.open
        assert self.position < last <= self.log[-1]
        self.step()
        self.position = last

    def request(self, first: int, last: int) -> tuple[int, int]:
        assert first == self.position + 1 <= last
        self.step()
        return first, next(end for end in self.log if end >= first)

    def give_up(self, reason: str) -> None:
        assert reason

    def open_copy(self) -> Any:
        self.open += 1
        assert self.open == 1
        return self

    def close_copy(self, copy: Any, outcome: CopyOutcome | None) -> None:
        self.open -= 1
        if outcome is not None:
            self.position = outcome.position
            self.backed_up = False

    @property
    def lease(self) -> Any:
        return type("Lease", (), {"position": self.snapshot, "replica": "B"})

    def back_up(self) -> None:
        self.step()
        self.backed_up = True

    def request_copy(self) -> None:
        assert self.backed_up
        self.step()

    def stage_tables(self) -> None:
        self.step()

    def restart(self) -> CopyOutcome:
        self.step()
        return CopyOutcome(
            copy_id="c", donor="B", from_position=self.position, position=self.snapshot
        )

    #: Its failures all come before that.
    in_place = False

    def fail(self, reason: str) -> None:
        assert reason


class Copying(Replica):
    """A replica that is its own copy: `request` without a range asks for a lease."""

    def request(self, *span: int) -> Any:
        return super().request(*span) if span else self.request_copy()


class Never(threading.Event):
    """The worker is never to end, and waits for nothing."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


ORDER = st.one_of(
    st.integers(0, END), st.tuples(st.integers(1, END), st.integers(0, 12)), st.just("new")
)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(ERRORS), max_size=40),
    st.lists(ORDER, max_size=12),
    st.lists(st.integers(1, END), max_size=8),
    st.sampled_from(ERRORS),
)
def test_it_is_never_stuck_and_ends_in_sync_or_idle(
    faults: list[TxLogError | None],
    orders: list[Any],
    ends: list[int],
    always: TxLogError | None,
) -> None:
    replica = Copying(faults, sorted({*ends, END}))
    replica.always = always
    driven = ReplicaDriver(cast(Any, replica), Never())
    for order in orders:
        replica.steps = 0
        heard = driven._heard
        try:
            match order:
                case int():
                    replica.snapshot = order
                    driven.copy("told")
                case (int(first), int(more)):
                    heard = max(heard, min(first + more, END))
                    driven.take(first, min(first + more, END))
                case _:
                    driven = ReplicaDriver(cast(Any, replica), Never())
                    continue
        except TxLogError:
            event(driven.phase.value)
            # A batch that fails of anything but the batch itself is the worker's to judge.
            assert bool(driven.reason) is (driven.phase is ReplicaPhase.IDLE)
            driven = ReplicaDriver(cast(Any, replica), Never())
        else:
            assert driven.phase is ReplicaPhase.BASIC and not driven.reason
            assert replica.position >= heard
        assert replica.open == 0
    # When the faults are gone, it comes back.
    replica.faults, replica.always, replica.steps = [], None, 0
    ReplicaDriver(cast(Any, replica), Never()).take(1, END)
    assert replica.position == END
