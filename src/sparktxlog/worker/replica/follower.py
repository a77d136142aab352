"""A worker that follows: it retries transient failures; any other error ends the worker.

    report ──► replay or copy ──► go on ──► report …
       ▲  └──► stop               failed
       └── stand still ◄──────────────┘

A worker that stands still says why, once.  It waits `IDLE_S` seconds, or until the node's plan
changes.  Then it reports and does what the node answers, with a new driver.  So it survives a donor
whose link is down, a full disk, or a queue that is behind its replica.

These errors end the worker, with the exit code of the error:

    the replica, or a copy of it, belongs to another log or history          4
    the node refuses the token                                               5
    node and worker do not understand each other: mixed releases             1
    an invariant does not hold                                               1
    Spark does not run any more                                              1

A worker that must not copy also ends where only a copy would help: 4, or 1 if a batch failed.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Protocol

from sparktxlog.errors import (
    CommitRejectedError,
    DivergedError,
    ExpiredError,
    InternalError,
    InvariantViolation,
    NotFoundError,
    ProtocolError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.supervision import foreseen

_logger = logging.getLogger(__name__)

#: Seconds after which a waiting worker looks whether it is to end.
POLL_S = 5.0
#: Seconds before an absent node is asked again.
RETRY_S = 1.0
#: Seconds before a replica that stands still is reported anew.
IDLE_S = 30.0


class _FollowedReplica(Protocol):
    """The replica that a follower keeps going; `Applier` says what each member does."""

    @property
    def may_copy(self) -> bool: ...
    @property
    def stands_idle(self) -> bool: ...
    def begin(self, stop: threading.Event) -> None: ...
    def report(self) -> None: ...
    def lives(self) -> bool: ...
    def obstacle(self) -> str: ...
    def is_foreign(self) -> bool: ...
    def note_error(self, text: str) -> None: ...
    def go_on(self) -> None: ...


class ReplicaFollower:
    """Keeps one replica going until it is told to end, or nothing can.

    Args:
        replica: What is kept going.
        changed: Set whenever the node's plan becomes another one.
        stop: Set to end it; obeyed within `POLL_S` seconds, or after the batch under way.
    """

    def __init__(
        self, replica: _FollowedReplica, changed: threading.Event, stop: threading.Event
    ) -> None:
        self._replica = replica
        self._changed = changed
        self._stop = stop
        #: Why it stood still last, empty once something was done since.
        self._said = ""

    def run(self) -> None:
        """Follow until `stop` is set or the node wants a worker to stop that cannot come back.

        Raises:
            TxLogError: An error that a retry does not cure.
        """
        self._replica.begin(self._stop)
        reported = False
        while not self._stop.is_set():
            try:
                if not reported:
                    # Seen by the node, and perhaps stopped, before anything is applied.
                    self._replica.report()
                    self._changed.clear()
                    reported = True
                obstacle = self._replica.obstacle()
                if obstacle and (self._replica.is_foreign() or not self._replica.may_copy):
                    return
                if obstacle:
                    self._stand_still(obstacle)
                    reported = False
                    continue
                self._replica.go_on()
                self._replica.note_error("")
                self._said = ""
            except Exception as error:
                if not isinstance(error, TxLogError):
                    _logger.exception("the worker failed unexpectedly")
                reported = self._survive(foreseen(error), reported)

    def _survive(self, error: TxLogError, reported: bool) -> bool:
        """Wait as long as an error calls for; return whether the last report still counts."""
        if self._stop.is_set():
            _logger.warning("ended in the middle: %s", error)
            return True
        idle = self._replica.stands_idle
        if idle or not isinstance(error, TransportError):
            # That the node itself was away is no news to it.
            self._replica.note_error(str(error))
        if not self._replica.lives() or _is_final(
            error, idle=idle, may_copy=self._replica.may_copy
        ):
            raise error
        self._replica.begin(self._stop)
        if isinstance(error, TransportError) and not idle:
            _logger.warning("node not reached, trying again: %s", error)
            self._stop.wait(RETRY_S)
            return reported
        # An answer that came with the failure is no news.
        self._changed.clear()
        # The node knows by now that its log is too short: its next answer is another one.
        self._stand_still(str(error), RETRY_S if isinstance(error, ExpiredError) else IDLE_S)
        return False

    def _stand_still(self, reason: str, pause_s: float | None = None) -> None:
        pause_s = IDLE_S if pause_s is None else pause_s
        if reason != self._said:
            _logger.error("the replica waits, asking again in %g s: %s", pause_s, reason)
            self._said = reason
        deadline = monotonic() + pause_s
        while not self._stop.is_set() and (left_s := deadline - monotonic()) > 0:
            if self._changed.wait(min(left_s, POLL_S)):
                return


def _is_final(error: TxLogError, *, idle: bool, may_copy: bool) -> bool:
    """Return whether an error ends the worker: a retry would not cure it.

    Args:
        idle: The driver has tried everything.  A refusal may then come from a donor, not the node.
    """
    if isinstance(error, (DivergedError, InvariantViolation)):
        return True
    if error.retryable or isinstance(error, InternalError):
        return False
    if not idle and isinstance(
        error, (UnauthorizedError, ProtocolError, CommitRejectedError, NotFoundError)
    ):
        return True
    return not may_copy and not isinstance(error, ExpiredError)
