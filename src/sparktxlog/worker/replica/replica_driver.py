"""Brings one replica to the end of the log: batches, missing ranges, a copy; one at a time.

    BASIC    applies batches that continue its position
    REQUEST  asks its node for missing positions
    LOAD     backs up the old files, gets a grant, fetches each table, restarts from the copy
    IDLE     stands still, with a reason; a new `ReplicaDriver` goes on

A failed attempt is repeated with growing pauses; when all attempts are spent the replica is idle.
If the log no longer holds a position, or an error would repeat, the replica is copied.  If neither
helps (a refused token, an unreadable answer, a full disk), the replica is idle at once.

A batch that cannot be applied is tried once more; if it fails again, the worker tells its node that
it cannot repair itself, and the replica is copied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from sparktxlog.errors import (
    ApplyError,
    CommitRejectedError,
    DiskFullError,
    DivergedError,
    InvariantViolation,
    NotFoundError,
    ProtocolError,
    StorageError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.copy.copy_terms import CopyOutcome
from sparktxlog.worker.copy.replica_copy import ReplicaCopy

_logger = logging.getLogger(__name__)

#: Attempts at the same after a first error of the link.
RETRIES = 3
#: Seconds before the first of them; doubles.
PAUSE_S = 1.0
#: Copies tried again in one LOAD, and copies made in a row without a batch applied after them.
COPIES = 3


class ReplicaPhase(str, Enum):
    """What a replica is about."""

    BASIC = "BASIC"
    REQUEST = "REQUEST"
    LOAD = "LOAD"
    IDLE = "IDLE"


class Move(str, Enum):
    """What moves a replica from one phase to another."""

    #: The log reaches further than what is at hand.
    GAP = "gap"
    #: What was missing came.
    FILLED = "filled"
    #: The log is expired, or applying fails in a way that would repeat.
    BEYOND_REPLAY = "beyond-replay"
    #: The node decided on a copy.
    COPY_TOLD = "copy-told"
    LOADED = "loaded"
    #: Nobody lends, the old files cannot be kept, or neither replay nor copy would help.
    REFUSED = "refused"
    #: All attempts failed.
    SPENT = "spent"


#: All transitions there are.
TRANSITIONS: dict[tuple[ReplicaPhase, Move], ReplicaPhase] = {
    (ReplicaPhase.BASIC, Move.GAP): ReplicaPhase.REQUEST,
    (ReplicaPhase.BASIC, Move.BEYOND_REPLAY): ReplicaPhase.LOAD,
    (ReplicaPhase.BASIC, Move.COPY_TOLD): ReplicaPhase.LOAD,
    (ReplicaPhase.BASIC, Move.REFUSED): ReplicaPhase.IDLE,
    (ReplicaPhase.BASIC, Move.SPENT): ReplicaPhase.IDLE,
    (ReplicaPhase.REQUEST, Move.FILLED): ReplicaPhase.BASIC,
    (ReplicaPhase.REQUEST, Move.BEYOND_REPLAY): ReplicaPhase.LOAD,
    (ReplicaPhase.REQUEST, Move.REFUSED): ReplicaPhase.IDLE,
    (ReplicaPhase.REQUEST, Move.SPENT): ReplicaPhase.IDLE,
    (ReplicaPhase.LOAD, Move.LOADED): ReplicaPhase.BASIC,
    (ReplicaPhase.LOAD, Move.REFUSED): ReplicaPhase.IDLE,
    (ReplicaPhase.LOAD, Move.SPENT): ReplicaPhase.IDLE,
}


class Fault(str, Enum):
    """Why something failed, as far as it decides what comes next."""

    #: Silence, a broken link, a busy donor: the same may work later.
    TRANSPORT = "transport"
    #: The log, or the offered file, is not there any more.
    UNAVAILABLE = "unavailable"
    #: It would fail again in the same way.
    DETERMINISTIC = "deterministic"
    #: Somebody must do something first: a wrong token, another release, a full disk.
    REFUSED = "refused"


class _Task(str, Enum):
    """What is under way."""

    APPLY = "applying"
    REQUEST = "asking for a range"
    BACK_UP = "keeping the old files"
    GRANT = "asking for a grant"
    COPY = "copying"


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


class ReplicaDriver:
    """Drives one replica.

    Args:
        replica: What is driven.
        wait: Waits so many seconds; returns True if the worker is to end.
    """

    def __init__(self, replica: _DrivenReplica, wait: Callable[[float], bool]) -> None:
        self._replica = replica
        self._wait = wait
        self.phase = ReplicaPhase.BASIC
        #: Why it stands still; empty unless IDLE.
        self.reason = ""
        #: Last position that is at hand without a gap, and furthest one ever received.
        self._at_hand = self._heard = replica.position
        self._task = _Task.APPLY
        self._copy: ReplicaCopy | None = None
        self._backed_up = False
        self._error: TxLogError | None = None
        #: Errors of the link in a row of the task at hand; failed copies of this LOAD.
        self._failures = self._failed_copies = 0
        #: Copies since anything was applied.
        self._barren_copies = 0
        #: Position at which a batch failed last.
        self._failed_at = -1

    def take(self, first: int, last: int) -> None:
        """Take in a published range and do all that follows from it.

        Raises:
            TxLogError: The last failure, if the replica stands still now; its tables are as
                before, unless the journal names some as swapped (not definite: a repeated run
                goes on).
        """
        self._receive(first, last)
        self._run()

    def copy(self, reason: str) -> None:
        """Copy, because the node or somebody says so, until the replica is in sync.

        Raises:
            TxLogError: As `take`.
        """
        self._load(Move.COPY_TOLD, reason)
        self._run()

    def _receive(self, first: int, last: int) -> None:
        self._heard = max(self._heard, last)
        if first <= max(self._at_hand, self._replica.position) + 1:
            self._at_hand = max(self._at_hand, last)

    def _run(self) -> None:
        self._error = None
        try:
            while self._has_work():
                try:
                    self._step()
                except (DivergedError, InvariantViolation):
                    raise
                except TxLogError as error:
                    self._error = error
                    _logger.warning("%s failed: %s", self._task.value, error)
                    self._judge(error)
        finally:
            self._end_copy(None)
        if self.phase is ReplicaPhase.IDLE:
            raise self._error or ApplyError(f"the replica stands still: {self.reason}")

    def _has_work(self) -> bool:
        if self.phase is ReplicaPhase.BASIC:
            return self._heard > self._replica.position
        return self.phase is not ReplicaPhase.IDLE

    def _step(self) -> None:
        match self.phase:
            case ReplicaPhase.BASIC if self._at_hand <= self._replica.position:
                self._go(Move.GAP)
            case ReplicaPhase.BASIC:
                self._task = _Task.APPLY
                self._replica.apply_to(self._at_hand)
                self._failures = self._barren_copies = 0
            case ReplicaPhase.REQUEST:
                self._task = _Task.REQUEST
                self._receive(*self._replica.request(self._replica.position + 1, self._heard))
                self._go(Move.FILLED)
            case _:
                self._make_copy()

    def _make_copy(self) -> None:
        self._task = _Task.GRANT if self._backed_up else _Task.BACK_UP
        copy = self._copy = self._copy or self._replica.open_copy()
        if not self._backed_up:
            copy.back_up()
            self._backed_up, self._task = True, _Task.GRANT
        copy.request()
        _logger.info("copying position %d from %s", copy.grant.position, copy.grant.node_id)
        self._task, self._failures = _Task.COPY, 0
        copy.stage_tables()
        self._end_copy(copy.restart())
        self._backed_up = False
        self._barren_copies += 1
        self._at_hand = self._replica.position
        self._go(Move.LOADED)

    def _end_copy(self, outcome: CopyOutcome | None) -> None:
        if self._copy is not None:
            copy, self._copy = self._copy, None
            self._replica.close_copy(copy, outcome)

    # -- failures ------------------------------------------------------------------------------

    def _judge(self, error: TxLogError) -> None:
        """Decide what follows from a failure of the task under way."""
        if self._copy is not None and self._task is not _Task.BACK_UP:
            if self._copy.in_place:
                # Only its report failed: whoever drives reports it with what is there now.
                raise error
            self._copy.fail(str(error))
        reason = error.message
        match self._task, self._fault(error):
            case _Task.BACK_UP, _:
                self._go(Move.REFUSED, f"the old files are not kept: {reason}")
            case _Task.GRANT, fault if fault is not Fault.TRANSPORT:
                self._go(Move.REFUSED, f"nothing to copy from: {reason}")
            case _, Fault.REFUSED:
                self._go(Move.REFUSED, reason)
            case _Task.COPY, fault:
                self._failed_copies += 1
                if self._failed_copies > COPIES:
                    tries = f"{self._failed_copies} copies failed"
                    self._go(Move.SPENT, f"{tries}, the last one: {reason}")
                elif fault is Fault.TRANSPORT:
                    self._pause(self._failed_copies)
            case _, Fault.TRANSPORT:
                self._failures += 1
                if self._failures > RETRIES:
                    tries = f"{self._failures} attempts failed"
                    self._go(Move.SPENT, f"{tries}, the last one: {reason}")
                else:
                    self._pause(self._failures)
            case _:
                self._load(Move.BEYOND_REPLAY, reason)

    def _fault(self, error: TxLogError) -> Fault:
        if self._task is _Task.APPLY:
            return self._fault_of_batch(error)
        fault = fault_of(error)
        of_donor = self._task is _Task.COPY and not isinstance(error, DiskFullError)
        # What a donor refuses, another one or another lease may give.
        return Fault.UNAVAILABLE if fault is Fault.REFUSED and of_donor else fault

    def _fault_of_batch(self, error: TxLogError) -> Fault:
        """Have a batch tried once more; the second failure is taken for one that would repeat."""
        if not self._replica.may_copy or not isinstance(error, ApplyError):
            raise error
        if self._failed_at != self._replica.position:
            self._failed_at = self._replica.position
            return Fault.TRANSPORT
        self._replica.give_up(str(error))
        return Fault.DETERMINISTIC

    def _pause(self, failures: int) -> None:
        if self._wait(PAUSE_S * 2 ** (failures - 1)):
            raise self._error or ApplyError("the worker was stopped meanwhile")

    def _load(self, move: Move, reason: str) -> None:
        """Go for a copy, unless the last ones led nowhere."""
        if self._barren_copies < COPIES:
            self._go(move)
        else:
            self._go(Move.SPENT, f"{self._barren_copies} copies did not help: {reason}")

    def _go(self, move: Move, reason: str = "") -> None:
        self.phase = TRANSITIONS[self.phase, move]
        self._failures = self._failed_copies = 0
        if self.phase is ReplicaPhase.IDLE:
            self.reason = reason
            # Whoever drives it is told by the error, and says it to people.
            _logger.info("the replica is idle: %s", reason)


def fault_of(error: TxLogError) -> Fault:
    """Return what an error of the own node or of the own disk means."""
    if isinstance(error, (UnauthorizedError, ProtocolError, CommitRejectedError, NotFoundError)):
        return Fault.TRANSPORT if error.retryable else Fault.REFUSED
    if isinstance(error, DiskFullError):
        return Fault.REFUSED
    if isinstance(error, StorageError):
        return Fault.UNAVAILABLE
    return Fault.TRANSPORT if error.retryable else Fault.DETERMINISTIC
