"""A following worker comes back by itself: what heals is waited for, all else ends it.

    report ──► replay or copy ──► go on ──► report …
       ▲  └──► stop               failed
       └── stand still ◄──────────────┘

Standing still means: say why, once; wait `IDLE_S` seconds, or until the node's plan becomes another
one; then report and do what the node answers, with a machine that begins anew.  A donor whose link
was down, a disk that was full, a queue that was behind its replica: all of that goes by.

What no waiting heals ends the worker, with the exit code of the error:

    the replica is of another log or another history, or a copy of it is     4
    the node refuses the token                                               5
    node and worker do not understand each other: mixed releases             1
    an invariant does not hold                                               1
    Spark runs no more                                                       1

A worker that must not copy ends as well where only a copy would help: 4, or 1 if a batch failed.
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


class FollowedReplica(Protocol):
    """What a follower keeps going."""

    @property
    def may_copy(self) -> bool:
        """Whether this worker may replace its replica by a copy."""

    @property
    def stands_idle(self) -> bool:
        """Whether the machine has judged its last failure, and stands still."""

    def begin(self, stop: threading.Event) -> None:
        """Go on with a new machine."""

    def report(self) -> None:
        """Report, and take the node's answer.

        Raises:
            TxLogError: The node did not take it.
        """

    def lives(self) -> bool:
        """Return whether Spark still runs: without it nothing can be applied."""

    def obstacle(self) -> str:
        """Return why the node wants this worker to stand still, empty if it does not."""

    def is_foreign(self) -> bool:
        """Return whether the node takes the replica for one of another log."""

    def note_error(self, text: str) -> None:
        """Have reports say why the worker stands still; empty = it does not any more."""

    def go_on(self) -> None:
        """Copy if the node says so, else wait for segments and apply what comes.

        Raises:
            TxLogError: As `Applier.run_once`, and the last failure of a copy.
        """


class Follower:
    """Keeps one replica going until it is told to end, or nothing can.

    Args:
        replica: What is kept going.
        changed: Set whenever the node's plan becomes another one.
        stop: Set to end it; obeyed within `POLL_S` seconds, or after the batch under way.
    """

    def __init__(
        self, replica: FollowedReplica, changed: threading.Event, stop: threading.Event
    ) -> None:
        self._replica = replica
        self._changed = changed
        self._stop = stop
        #: Why it stood still last, empty once something was done since.
        self._said = ""

    def run(self) -> None:
        """Follow until `stop` is set or the node wants a worker to stop that cannot come back.

        Raises:
            TxLogError: What no waiting heals.
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
    """Tell whether no waiting heals an error.

    Args:
        idle: The machine has tried all it can: what a donor refused is no word of the own node.
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
