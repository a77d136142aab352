"""Carries out what a replica's machine orders while the replica is copied (B31–B35, D5).

The machine decides what comes next, how often a donor is asked again and after which pause; here
its actions are done one after the other.  What it calls a chunk is a table here: smaller parts are
repeated by the transfer itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic

from sparktxlog.catchup.planner import Plan
from sparktxlog.catchup.replica import Phase, ReplicaMachine
from sparktxlog.catchup.replica_events import (
    BackedUp,
    BackUp,
    ChunkWritten,
    Failed,
    Fault,
    FetchChunk,
    GoIdle,
    LoadOffered,
    PlanTold,
    ReplicaAction,
    ReplicaEvent,
    RequestLoad,
    Restart,
    Restarted,
    Tick,
)
from sparktxlog.errors import (
    ApplyError,
    DivergedError,
    InvariantViolation,
    StorageError,
    TransportError,
    TxLogError,
)
from sparktxlog.worker.copying import CopyOutcome, ReplicaCopy

_logger = logging.getLogger(__name__)


class CopyRun:
    """One copy, driven to its end by the machine.

    Args:
        copy: What is carried out.
        wait: Waits so many seconds; returns True if the worker is to end.
    """

    def __init__(self, copy: ReplicaCopy, wait: Callable[[float], bool]) -> None:
        self._copy = copy
        self._wait = wait
        self._machine = ReplicaMachine(position=copy.state.position)
        self._outcome: CopyOutcome | None = None
        self._error: TxLogError | None = None

    def run(self, reason: str) -> CopyOutcome:
        """Copy until the replica is KNOWN.

        Args:
            reason: Of the node's plan, or of who asked.

        Raises:
            TxLogError: The last failure; the replica's tables are as before, unless the journal
                names some as swapped (not definite: a repeated run goes on).
        """
        told = PlanTold(plan=Plan.COPY, reason=reason)
        actions = deque(self._machine.handle(told, monotonic()))
        while self._outcome is None and self._machine.phase is Phase.LOAD:
            if actions:
                event = self._perform(actions.popleft())
            else:
                event = self._wait_for_deadline()
            if event is not None:
                actions.extend(self._machine.handle(event, monotonic()))
        if self._outcome is None:
            raise self._error or ApplyError(f"the copy was given up: {self._machine.reason}")
        return self._outcome

    def _wait_for_deadline(self) -> ReplicaEvent:
        deadline = self._machine.next_deadline()
        if deadline is None:
            raise InvariantViolation("the replica's machine waits for nothing")
        if self._wait(max(0.0, deadline - monotonic())):
            raise self._error or ApplyError("the worker was stopped during a copy")
        return Tick()

    def _perform(self, action: ReplicaAction) -> ReplicaEvent | None:
        if isinstance(action, GoIdle):
            _logger.error("the replica stands still: %s", action.reason)
            return None
        try:
            return self._do(action)
        except (DivergedError, InvariantViolation):
            raise
        except TxLogError as error:
            self._error = error
            if not isinstance(action, BackUp):
                self._copy.fail(str(error))
            _logger.warning("copy: %s", error)
            return Failed(ticket=action.ticket, fault=fault_of(error), reason=error.message)

    def _do(self, action: ReplicaAction) -> ReplicaEvent:
        copy = self._copy
        match action:
            case BackUp():
                copy.back_up()
                return BackedUp(ticket=action.ticket)
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
            case _:
                raise InvariantViolation(f"a copy cannot carry out {action}")


def fault_of(error: TxLogError) -> Fault:
    """Return how the machine is to take an error (D5)."""
    if isinstance(error, TransportError):
        return Fault.TRANSPORT if error.retryable else Fault.UNAVAILABLE
    if isinstance(error, StorageError):
        return Fault.UNAVAILABLE
    return Fault.TRANSPORT if error.retryable else Fault.DETERMINISTIC
