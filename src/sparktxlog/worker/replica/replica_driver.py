"""Brings one replica to the end of the log, and keeps it there: one step at a time.

    BASIC    applies batches.  A batch that fails is tried once more.  If that fails too, the driver
             tells the node and copies.
    REQUEST  asks the node for a missing range, with growing pauses.  If the log no longer has the
             range, the driver copies.
    LOAD     copies: keeps the old files, gets a lease, stages all tables, restarts from the copy
    IDLE     stands still, with a reason: no attempts are left, or neither replay nor copy helps
             (a refused token, an unreadable answer, a full disk)

A worker that follows retries transient failures; any other error ends it:

    report ──► replay or copy ──► go on ──► report …
       ▲  └──► stop               failed
       └── stand still ◄──────────────┘

A worker that stands still logs the reason once.  It waits `IDLE_S` seconds, or until the node's
plan changes.  Then it reports and obeys the answer.  So it survives a donor whose link is down, a
full disk, or a queue that is behind its replica.

These errors end the worker, with the exit code of the error:

    the replica, or a copy of it, belongs to another log or history          4
    the node refuses the token                                               5
    node and worker are of releases that do not fit                          1
    an invariant does not hold                                               1
    Spark does not run any more                                              1

A worker that must not copy also ends where only a copy would help: 4, or 1 if a batch failed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import Enum
from time import monotonic
from typing import Protocol, TypeVar

from sparktxlog.errors import (
    ApplyError,
    CommitRejectedError,
    DiskFullError,
    DivergedError,
    ExpiredError,
    InternalError,
    InvariantViolation,
    LockedError,
    NotFoundError,
    ProtocolError,
    StorageError,
    StoreUnavailableError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.supervision import foreseen
from sparktxlog.worker.copy.copy_terms import CopyOutcome
from sparktxlog.worker.copy.replica_copy import ReplicaCopy

_logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Retries after a transient error.
RETRIES = 3
#: Seconds before the first retry; doubles each time.
PAUSE_S = 1.0
#: Most retries of a failed copy, and most copies in a row without a batch applied after one.
COPIES = 3
#: A waiting worker checks every so many seconds whether it has to stop.
POLL_S = 5.0
#: Seconds before a node that cannot be reached is asked again.
RETRY_S = 1.0
#: Seconds before a worker that stands still reports again.
IDLE_S = 30.0

#: A retry cannot help: another log or history, another worker has the replica, or a bug.
_FATAL = (DivergedError, LockedError, InvariantViolation)
#: Refusals by the worker's node or by a donor.
_REFUSALS = (UnauthorizedError, ProtocolError, CommitRejectedError, NotFoundError)


class ReplicaPhase(str, Enum):
    """What the driver of a replica is doing."""

    BASIC = "BASIC"
    REQUEST = "REQUEST"
    LOAD = "LOAD"
    IDLE = "IDLE"


#: Phase → phases that may follow.  `reset` leads from each to BASIC.
REPLICA_TRANSITIONS: dict[ReplicaPhase, frozenset[ReplicaPhase]] = {
    ReplicaPhase.BASIC: frozenset({ReplicaPhase.REQUEST, ReplicaPhase.LOAD}),
    ReplicaPhase.REQUEST: frozenset({ReplicaPhase.BASIC, ReplicaPhase.LOAD, ReplicaPhase.IDLE}),
    ReplicaPhase.LOAD: frozenset({ReplicaPhase.BASIC, ReplicaPhase.IDLE}),
    ReplicaPhase.IDLE: frozenset(),
}


class Fault(str, Enum):
    """Kinds of failures: each calls for another next step."""

    #: No answer, a broken link, a busy donor: a retry may succeed.
    TRANSPORT = "transport"
    #: The log, or the offered file, is not there any more.
    UNAVAILABLE = "unavailable"
    #: A retry would fail in the same way.
    DETERMINISTIC = "deterministic"
    #: People must act first: a wrong token, another release, a full disk.
    REFUSED = "refused"


def fault_of(error: TxLogError) -> Fault:
    """Return the kind of a failure: an error of the worker's node, a donor or a disk."""
    if isinstance(error, _REFUSALS):
        return Fault.TRANSPORT if error.retryable else Fault.REFUSED
    if isinstance(error, DiskFullError):
        return Fault.REFUSED
    if isinstance(error, StorageError) and not isinstance(error, StoreUnavailableError):
        return Fault.UNAVAILABLE
    return Fault.TRANSPORT if error.retryable else Fault.DETERMINISTIC


class _DrivenReplica(Protocol):
    """The replica that is driven; `Applier` says what each member does."""

    @property
    def position(self) -> int: ...
    @property
    def may_copy(self) -> bool: ...
    def apply_to(self, last: int) -> None: ...
    def request(self, first: int, last: int) -> tuple[int, int]: ...
    def give_up(self, reason: str) -> None: ...
    def open_copy(self) -> ReplicaCopy: ...
    def close_copy(self, copy: ReplicaCopy, outcome: CopyOutcome | None) -> None: ...
    def report(self) -> None: ...
    def obstacle(self) -> str: ...
    def is_foreign(self) -> bool: ...
    def go_on(self) -> None: ...
    def note_error(self, text: str) -> None: ...
    def spark_runs(self) -> bool: ...


class ReplicaDriver:
    """Drives one replica.

    Args:
        replica: What is driven.
        stop: Set to end it: within `POLL_S` seconds, or after the current batch.
    """

    def __init__(self, replica: _DrivenReplica, stop: threading.Event) -> None:
        self._replica = replica
        self._stop = stop
        #: The reason for standing still that was logged last; empty after any success.
        self._said = ""
        self.reset()

    def reset(self) -> None:
        """Forget failures and received positions."""
        self.phase = ReplicaPhase.BASIC
        #: Why the replica stands still; empty unless IDLE.
        self.reason = ""
        #: Last position received without a gap, and last one received at all.
        self._at_hand = self._heard = self._replica.position
        #: Copies since a batch was applied.
        self._barren_copies = 0
        #: Position at which a batch failed last.
        self._failed_at = -1

    # --- to the end of a range ----------------------------------------------------------------

    def take(self, first: int, last: int) -> None:
        """Apply a published range, with requests for missing ranges and copies as needed.

        Raises:
            TxLogError: The last failure, if the replica stands still now.  Its tables are as
                before, unless the journal names some as swapped (not definite: a repeated run
                goes on).
        """
        self._receive(first, last)
        self._apply_all()

    def copy(self, reason: str) -> None:
        """Copy, because the node or an operator asked for it; then apply what follows.

        Raises:
            TxLogError: As `take`.
        """
        self._copy(reason)
        self._apply_all()

    def _receive(self, first: int, last: int) -> None:
        self._heard = max(self._heard, last)
        if first <= max(self._at_hand, self._replica.position) + 1:
            self._at_hand = max(self._at_hand, last)

    def _apply_all(self) -> None:
        if self.phase is ReplicaPhase.IDLE:
            raise ApplyError(f"the replica stands still: {self.reason}")
        while self._heard > self._replica.position:
            if self._at_hand > self._replica.position:
                self._apply()
            else:
                self._request()

    def _apply(self) -> None:
        try:
            self._replica.apply_to(self._at_hand)
            self._barren_copies = 0
        except _FATAL:
            raise
        except ApplyError as error:
            _logger.warning("applying failed: %s", error)
            if self._failed_at != self._replica.position:
                # If it is one table that fails again, only that one stands still from then on.
                self._failed_at = self._replica.position
                self._pause(1, error)
                return
            if not self._replica.may_copy:
                raise
            # After two failures a third one is likely.
            self._replica.give_up(str(error))
            self._copy(error.message, error)

    def _request(self) -> None:
        """Ask the node for what is missing; copy if it does not have it any more."""
        self._enter(ReplicaPhase.REQUEST)
        first, last = self._replica.position + 1, self._heard
        try:
            found = self._retried("asking for a range", lambda: self._replica.request(first, last))
        except _FATAL:
            raise
        except TxLogError as error:
            fault = fault_of(error)
            if fault is Fault.REFUSED:
                self._stand_idle(error.message)
            if fault in (Fault.REFUSED, Fault.TRANSPORT):
                raise
            self._copy(error.message, error)
        else:
            self._receive(*found)
            self._enter(ReplicaPhase.BASIC)

    def _copy(self, reason: str, error: TxLogError | None = None) -> None:
        """Copy until a copy is in place, unless the last copies did not help."""
        self._enter(ReplicaPhase.LOAD)
        if self._barren_copies >= COPIES:
            self._stand_idle(f"{self._barren_copies} copies did not help: {reason}")
            raise error or ApplyError(f"the replica stands still: {self.reason}")
        copy, outcome = self._replica.open_copy(), None
        try:
            outcome = self._finish_copy(copy)
        finally:
            self._replica.close_copy(copy, outcome)
        self._barren_copies += 1
        self._at_hand = self._replica.position
        self._enter(ReplicaPhase.BASIC)

    def _finish_copy(self, copy: ReplicaCopy) -> CopyOutcome:
        try:
            copy.back_up()
        except _FATAL:
            raise
        except TxLogError as error:
            _logger.warning("keeping the old files failed: %s", error)
            self._stand_idle(f"the old files are not kept: {error.message}")
            raise
        failed = 0
        while True:
            self._get_lease(copy)
            _logger.info("copying position %d from %s", copy.lease.position, copy.lease.replica)
            try:
                copy.stage_tables()
                return copy.restart()
            except _FATAL:
                raise
            except TxLogError as error:
                _logger.warning("copying failed: %s", error)
                if copy.in_place:
                    # Only the report failed; the next one has the copied tables.
                    raise
                copy.fail(str(error))
                failed += 1
                if isinstance(error, DiskFullError):
                    self._stand_idle(error.message)
                    raise
                # Another donor or another lease may work.
                if failed > COPIES:
                    self._stand_idle(f"{failed} copies failed, the last one: {error.message}")
                    raise
                if fault_of(error) is Fault.TRANSPORT:
                    self._pause(failed, error)

    def _get_lease(self, copy: ReplicaCopy) -> None:
        try:
            self._retried("asking for a lease", copy.request, copy.fail)
        except _FATAL:
            raise
        except TxLogError as error:
            if fault_of(error) is not Fault.TRANSPORT:
                self._stand_idle(f"nothing to copy from: {error.message}")
            raise

    def _retried(
        self, task: str, act: Callable[[], T], failed: Callable[[str], None] = lambda _: None
    ) -> T:
        """Retry transient errors; raise any other."""
        failures = 0
        while True:
            try:
                return act()
            except _FATAL:
                raise
            except TxLogError as error:
                _logger.warning("%s failed: %s", task, error)
                failed(str(error))
                if fault_of(error) is not Fault.TRANSPORT:
                    raise
                failures += 1
                if failures > RETRIES:
                    self._stand_idle(f"{failures} attempts failed, the last one: {error.message}")
                    raise
                self._pause(failures, error)

    def _pause(self, failures: int, error: TxLogError) -> None:
        if self._stop.wait(PAUSE_S * 2 ** (failures - 1)):
            raise error

    def _enter(self, phase: ReplicaPhase) -> None:
        assert phase in REPLICA_TRANSITIONS[self.phase], f"{self.phase} → {phase}"
        self.phase = phase

    def _stand_idle(self, reason: str) -> None:
        self._enter(ReplicaPhase.IDLE)
        self.reason = reason
        # At level info: the caller shows the error.
        _logger.info("the replica stands still: %s", reason)

    # --- following ----------------------------------------------------------------------------

    def follow(self, changed: threading.Event) -> None:
        """Follow until `stop` is set, or the node stops a worker for which waiting is useless.

        Args:
            changed: Set whenever the node's verdict or plan changes.

        Raises:
            TxLogError: An error that a retry does not cure.
        """
        reported = False
        while not self._stop.is_set():
            try:
                if not reported:
                    # First: the node may answer with stop.
                    self._replica.report()
                    changed.clear()
                    reported = True
                obstacle = self._replica.obstacle()
                if obstacle and (self._replica.is_foreign() or not self._replica.may_copy):
                    return
                if obstacle:
                    self._stand_still(obstacle, changed, IDLE_S)
                    reported = False
                    continue
                self._replica.go_on()
                self._replica.note_error("")
                self._said = ""
            except Exception as error:
                if not isinstance(error, TxLogError):
                    _logger.exception("the worker failed unexpectedly")
                reported = self._survive(foreseen(error), changed) and reported

    def _survive(self, error: TxLogError, changed: threading.Event) -> bool:
        """Wait after an error; return whether the last report is still valid."""
        if self._stop.is_set():
            _logger.warning("stopped during an error: %s", error)
            return True
        away = isinstance(error, TransportError) and self.phase is not ReplicaPhase.IDLE
        if not away:
            # The node need not hear that it could not be reached.
            self._replica.note_error(str(error))
        if not self._replica.spark_runs() or self._is_final(error):
            raise error
        self.reset()
        if away:
            _logger.warning("node not reached, trying again: %s", error)
            self._stop.wait(RETRY_S)
            return True
        # A plan from before the error does not count as a change.
        changed.clear()
        # The node knows now that its log is too short: its next answer is another one.
        expired = isinstance(error, ExpiredError)
        self._stand_still(str(error), changed, RETRY_S if expired else IDLE_S)
        return False

    def _stand_still(self, reason: str, changed: threading.Event, pause_s: float) -> None:
        if reason != self._said:
            _logger.error("the replica waits, asking again in %g s: %s", pause_s, reason)
            self._said = reason
        deadline = monotonic() + pause_s
        while not self._stop.is_set() and (left_s := deadline - monotonic()) > 0:
            if changed.wait(min(left_s, POLL_S)):
                return

    def _is_final(self, error: TxLogError) -> bool:
        """Return whether an error ends the worker: a retry would not cure it."""
        if isinstance(error, _FATAL):
            return True
        if error.retryable or isinstance(error, InternalError):
            return False
        # If the replica is IDLE, a refusal may come from a donor, not from the node.
        if self.phase is not ReplicaPhase.IDLE and isinstance(error, _REFUSALS):
            return True
        return not self._replica.may_copy and not isinstance(error, ExpiredError)
