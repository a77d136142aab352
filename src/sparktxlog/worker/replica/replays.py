"""Records of catch-ups by replay: the worker sends one, with estimated and actual time, at the end.

A replay counts as a catch-up if the oldest transaction that the replica lacks was ordered more than
`BEHIND_S` seconds ago.  The batches of a worker that keeps up leave no record; their reports carry
their cost.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from time import monotonic, time_ns
from typing import Protocol

from sparktxlog.catchup.planner import Plan
from sparktxlog.errors import TxLogError
from sparktxlog.model.copying import CatchUpKind, Decision, Transfer
from sparktxlog.worker.replica.source import LogTail

_logger = logging.getLogger(__name__)

#: A replay is a catch-up if its first transaction was ordered more seconds ago.
BEHIND_S = 60.0
#: Characters of an outcome that are kept.
_MAX_OUTCOME = 500


class PlansCatchUps(Protocol):
    """What `ReplayRecords` asks of a node."""

    def plan(self, worker_id: str) -> Decision:
        """Return what the node advises, and its estimates."""

    def record_transfer(self, transfer: Transfer) -> None:
        """Leave a record of a catch-up."""


class ReplayRecords:
    """Notes the catch-ups of one worker by replay.

    Args:
        source: Used by the worker's own thread.
        node_id: Of the node that the worker belongs to.
    """

    def __init__(self, source: PlansCatchUps, node_id: str) -> None:
        self._source = source
        self._node_id = node_id
        #: The open record: `to_position` is its end, `transactions` how many the worker had applied
        #: before it.
        self._open: Transfer | None = None
        #: When it began, steady clock, seconds.
        self._began = 0.0
        #: The node preferred a copy up to here: a replay leaves no record.
        self._copied_to = 0

    def begin(self, tail: LogTail, worker_id: str, position: int, transactions: int) -> None:
        """Begin a record if what is to be applied next is a catch-up, and none is open.

        Args:
            tail: With segments.
            position: Applied position.
            transactions: Applied by this worker until now.
        """
        ordered_at, now = tail.segments[0].ordered_at, time_ns() // 1000
        if self._open is not None or position < self._copied_to:
            return
        if not ordered_at or now - ordered_at < BEHIND_S * 1e6:
            return
        estimated_s, reason = None, ""
        try:
            decision = self._source.plan(worker_id)
        except TxLogError as error:
            # The record has no estimate; the replay itself follows from the last report.
            _logger.warning("the node gave no estimate: %s", error)
        else:
            if decision.plan == Plan.COPY.value:
                self._copied_to = tail.position
                return
            estimated_s = None if decision.replay is None else decision.replay.seconds
            reason = decision.reason
        self._began = monotonic()
        self._open = Transfer(
            transfer_id=uuid.uuid4().hex,
            worker_id=worker_id,
            node_id=self._node_id,
            kind=CatchUpKind.REPLAY,
            from_position=position,
            to_position=tail.position,
            started_at=now,
            finished_at=0,
            estimated_s=estimated_s,
            actual_s=0.0,
            transactions=transactions,
            reason=reason,
        )

    def applied(self, position: int, transactions: int) -> None:
        """End the record if the replica reached the end that the log had when it began."""
        if self._open is not None and position >= self._open.to_position:
            self.end("done", position, transactions)

    def end(self, outcome: str, position: int, transactions: int) -> None:
        """Send an open record; `outcome` is "done" or the reason for an early end."""
        replay, self._open = self._open, None
        if replay is None:
            return
        transfer = replace(
            replay,
            to_position=position,
            finished_at=time_ns() // 1000,
            actual_s=round(monotonic() - self._began, 3),
            transactions=transactions - replay.transactions,
            outcome=outcome[:_MAX_OUTCOME],
        )
        try:
            self._source.record_transfer(transfer)
        except TxLogError as error:
            # The record is for people; the replica does not need it.
            _logger.warning("the node did not take the record of a replay: %s", error)
