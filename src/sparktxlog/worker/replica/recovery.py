"""One replica's way to the present: batches, missing ranges, a copy; one thing at a time.

    BASIC    applies what continues its position
    REQUEST  asks its node for what is missing
    LOAD     keeps the old files, asks for a grant, fetches table by table, restarts from the copy
    IDLE     stands still, with a reason: whoever goes on begins with a new `ReplicaDriver`

What fails on the way is tried again with growing pauses, then the replica is idle.  What the log
no longer holds, and what would fail again, needs a copy.  What neither would change, a refused
token, an answer that cannot be read or a full disk, makes it idle at once.

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


class Phase(str, Enum):
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
TRANSITIONS: dict[tuple[Phase, Move], Phase] = {
    (Phase.BASIC, Move.GAP): Phase.REQUEST,
    (Phase.BASIC, Move.BEYOND_REPLAY): Phase.LOAD,
    (Phase.BASIC, Move.COPY_TOLD): Phase.LOAD,
    (Phase.BASIC, Move.REFUSED): Phase.IDLE,
    (Phase.BASIC, Move.SPENT): Phase.IDLE,
    (Phase.REQUEST, Move.FILLED): Phase.BASIC,
    (Phase.REQUEST, Move.BEYOND_REPLAY): Phase.LOAD,
    (Phase.REQUEST, Move.REFUSED): Phase.IDLE,
    (Phase.REQUEST, Move.SPENT): Phase.IDLE,
    (Phase.LOAD, Move.LOADED): Phase.BASIC,
    (Phase.LOAD, Move.REFUSED): Phase.IDLE,
    (Phase.LOAD, Move.SPENT): Phase.IDLE,
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


class DrivenReplica(Protocol):
    """What is driven: the worker."""

    @property
    def position(self) -> int:
        """Applied position; after a copy that of the snapshot."""

    @property
    def may_copy(self) -> bool:
        """Whether this worker may replace its replica by a copy."""

    def apply_to(self, last: int) -> None:
        """Apply up to a position, durably; `ApplyError`: the tables keep their last state."""

    def request(self, first: int, last: int) -> tuple[int, int]:
        """Ask the node for a range; return what is at hand now, which begins at `first` or before.

        Raises:
            ExpiredError: The log no longer holds it (definite).
        """

    def give_up(self, reason: str) -> None:
        """Tell the node that the worker cannot repair the replica by itself."""

    def open_copy(self) -> ReplicaCopy:
        """Begin a copy, or go on with the one begun."""

    def close_copy(self, copy: ReplicaCopy, outcome: CopyOutcome | None) -> None:
        """Take over the state that a copy ended in; outcome None = it failed."""


class ReplicaDriver:
    """Drives one replica.

    Args:
        replica: What is driven.
        wait: Waits so many seconds; returns True if the worker is to end.
    """

    def __init__(self, replica: DrivenReplica, wait: Callable[[float], bool]) -> None:
        self._replica = replica
        self._wait = wait
        self.phase = Phase.BASIC
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
        if self.phase is Phase.IDLE:
            raise self._error or ApplyError(f"the replica stands still: {self.reason}")

    def _has_work(self) -> bool:
        if self.phase is Phase.BASIC:
            return self._heard > self._replica.position
        return self.phase is not Phase.IDLE

    def _step(self) -> None:
        match self.phase:
            case Phase.BASIC if self._at_hand <= self._replica.position:
                self._go(Move.GAP)
            case Phase.BASIC:
                self._task = _Task.APPLY
                self._replica.apply_to(self._at_hand)
                self._failures = self._barren_copies = 0
            case Phase.REQUEST:
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
        tables = copy.request()
        _logger.info("copying position %d from %s", copy.grant.position, copy.grant.node_id)
        self._task, self._failures = _Task.COPY, 0
        for index in range(tables):
            copy.fetch(index)
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
        if self.phase is Phase.IDLE:
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
