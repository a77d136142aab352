"""Carries out what a replica's machine orders: batches, missing ranges, a copy.

The machine decides what comes next, how often something is tried again and after which pause; here
its actions are done one after the other, and what came of them is told to it.  What it calls a
chunk is a table here: smaller parts are repeated by the transfer itself.

A batch that cannot be applied is tried once more; if it fails again, the worker tells its node that
it cannot repair itself, and the replica is copied.  Only what the log does not hold any
more, and what would fail again, leads there: a refused token, an answer that cannot be read and a
full disk are told and change nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from sparktxlog.catchup.planner import Plan
from sparktxlog.catchup.replica import Phase, ReplicaMachine
from sparktxlog.catchup.replica_events import (
    Applied,
    Apply,
    BackedUp,
    BackUp,
    ChunkWritten,
    Failed,
    Fault,
    FetchChunk,
    GoIdle,
    LoadOffered,
    PlanTold,
    Received,
    ReplicaAction,
    ReplicaEvent,
    RequestLoad,
    RequestRange,
    Restart,
    Restarted,
    Resume,
    Tick,
)
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


class DrivenReplica(Protocol):
    """What the machine's orders act on."""

    @property
    def position(self) -> int:
        """Applied position."""

    @property
    def may_copy(self) -> bool:
        """Whether this worker may replace its replica by a copy."""

    def apply_to(self, last: int) -> None:
        """Apply up to a position, durably.

        Raises:
            ApplyError: A batch cannot be applied; its tables keep their last whole state.
        """

    def request(self, first: int, last: int) -> tuple[int, int]:
        """Ask the node for a range; return what is at hand now.

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
    """Drives one replica by its machine.

    Args:
        replica: What is driven.
        wait: Waits so many seconds; returns True if the worker is to end.
    """

    def __init__(self, replica: DrivenReplica, wait: Callable[[float], bool]) -> None:
        self._replica = replica
        self._wait = wait
        self._machine = ReplicaMachine(position=replica.position)
        self._copy: ReplicaCopy | None = None
        self._outcome: CopyOutcome | None = None
        self._error: TxLogError | None = None
        #: Position at which a batch failed last.
        self._failed_at = -1

    @property
    def phase(self) -> Phase:
        """BASIC, REQUEST, LOAD or IDLE."""
        return self._machine.phase

    def take(self, first: int, last: int) -> None:
        """Take in a published range and do all that follows from it.

        Raises:
            TxLogError: The last failure, if the replica stands still now; its tables are as
                before, unless the journal names some as swapped (not definite: a repeated run
                goes on).
        """
        self._run(Received(first=first, last=last))

    def copy(self, reason: str) -> None:
        """Copy, because the node or somebody says so, until the replica is KNOWN.

        Raises:
            TxLogError: As `take`.
        """
        idle = self._machine.phase is Phase.IDLE
        self._run(Resume() if idle else PlanTold(plan=Plan.COPY, reason=reason))

    def _run(self, event: ReplicaEvent) -> None:
        self._error = None
        actions = deque(self._machine.handle(event, monotonic()))
        try:
            while actions or not (self._machine.waits or self._machine.phase is Phase.IDLE):
                told = self._perform(actions.popleft()) if actions else self._wait_for_deadline()
                if told is not None:
                    actions.extend(self._machine.handle(told, monotonic()))
                if self._machine.phase is not Phase.LOAD:
                    self._end_copy()
        finally:
            self._end_copy()
        if self._machine.phase is Phase.IDLE:
            raise self._error or ApplyError(f"the replica stands still: {self._machine.reason}")

    def _end_copy(self) -> None:
        if self._copy is not None:
            copy, self._copy = self._copy, None
            self._replica.close_copy(copy, self._outcome)
            self._outcome = None

    def _wait_for_deadline(self) -> ReplicaEvent:
        deadline = self._machine.next_deadline()
        if deadline is None:
            raise InvariantViolation("the replica's machine waits for nothing")
        if self._wait(max(0.0, deadline - monotonic())):
            raise self._error or ApplyError("the worker was stopped meanwhile")
        return Tick()

    def _perform(self, action: ReplicaAction) -> ReplicaEvent | None:
        if isinstance(action, GoIdle):
            # Whoever drives it is told by the error, and says it to people.
            _logger.info("the machine is idle: %s", action.reason)
            return None
        try:
            return self._do(action)
        except (DivergedError, InvariantViolation):
            raise
        except TxLogError as error:
            self._error = error
            if isinstance(action, Apply):
                fault = self._fault_of_batch(error)
            else:
                if self._copy is not None and not isinstance(action, BackUp):
                    self._copy.fail(str(error))
                fault = _fault_of_copy(action, error)
            _logger.warning("%s failed: %s", type(action).__name__, error)
            return Failed(ticket=action.ticket, fault=fault, reason=error.message)

    def _fault_of_batch(self, error: TxLogError) -> Fault:
        """Have a batch tried once more; the second failure is taken for one that would repeat."""
        if not self._replica.may_copy or not isinstance(error, ApplyError):
            raise error
        if self._failed_at != self._replica.position:
            self._failed_at = self._replica.position
            return Fault.TRANSPORT
        self._replica.give_up(str(error))
        return Fault.DETERMINISTIC

    def _do(self, action: ReplicaAction) -> ReplicaEvent:
        match action:
            case Apply():
                self._replica.apply_to(action.last)
                return Applied(ticket=action.ticket)
            case RequestRange():
                first, last = self._replica.request(action.first, action.last)
                return Received(first=first, last=last)
            case BackUp():
                if self._copy is None:
                    self._copy = self._replica.open_copy()
                self._copy.back_up()
                return BackedUp(ticket=action.ticket)
            case RequestLoad() | FetchChunk() | Restart():
                if self._copy is None:
                    # Resumed behind the backup: the journal goes on with the same copy.
                    self._copy = self._replica.open_copy()
                return self._load(self._copy, action)
            case _:
                raise InvariantViolation(f"a worker cannot carry out {action}")

    def _load(self, copy: ReplicaCopy, action: RequestLoad | FetchChunk | Restart) -> ReplicaEvent:
        match action:
            case RequestLoad():
                tables = copy.request()
                position = copy.grant.position
                _logger.info("copying position %d from %s", position, copy.grant.node_id)
                return LoadOffered(ticket=action.ticket, position=position, chunks=tables)
            case FetchChunk():
                copy.fetch(action.index)
                return ChunkWritten(ticket=action.ticket, index=action.index)
            case Restart():
                self._outcome = copy.restart()
                return Restarted(ticket=action.ticket)


def fault_of(error: TxLogError) -> Fault:
    """Return how the machine is to take an error of the own node or of the own disk."""
    if isinstance(error, (UnauthorizedError, ProtocolError, CommitRejectedError, NotFoundError)):
        return Fault.TRANSPORT if error.retryable else Fault.REFUSED
    if isinstance(error, DiskFullError):
        return Fault.REFUSED
    if isinstance(error, StorageError):
        return Fault.UNAVAILABLE
    return Fault.TRANSPORT if error.retryable else Fault.DETERMINISTIC


def _fault_of_copy(action: ReplicaAction, error: TxLogError) -> Fault:
    """As `fault_of`; what a donor refuses, another one or another lease may give."""
    fault = fault_of(error)
    of_donor = isinstance(action, (FetchChunk, Restart)) and not isinstance(error, DiskFullError)
    return Fault.UNAVAILABLE if fault is Fault.REFUSED and of_donor else fault
