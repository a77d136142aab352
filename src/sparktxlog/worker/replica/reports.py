"""Reports to the node: after each batch, and as a heartbeat while following."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from time import time_ns
from typing import Protocol

from sparktxlog.codec.report_changes import ReportSender
from sparktxlog.errors import TxLogError
from sparktxlog.model.report import BatchProgress, OwnReport, ReplayCost, WorkerReport
from sparktxlog.worker.replica.source import Answer
from sparktxlog.worker.replica.state import ReplicaState

_logger = logging.getLogger(__name__)

#: Most characters of an error in a report.
_MAX_ERROR = 1_000
#: Most reports kept while the node cannot be reached; the oldest are dropped first.
REPORTS_KEPT = 1000


@cache
def engine_name() -> str:
    """Return the engine that applies batches: two engines may round differently."""
    names = []
    for package in ("pyspark", "delta-spark", "deltalake"):
        try:
            names.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            names.append(f"{package} unknown")
    return " ".join(names)


def report_of(
    state: ReplicaState,
    node_id: str,
    *,
    irreparable: str = "",
    follows: bool = False,
    error: str = "",
    lake: str = "",
) -> OwnReport:
    """Return the report of a state, with the present time."""
    return OwnReport(
        worker_id=state.worker_id,
        node_id=node_id,
        log_id=state.log_id,
        epoch=state.epoch,
        position=state.position,
        chain_hash=state.chain_hash,
        tables={name: table.to_report() for name, table in state.tables.items()},
        engine=engine_name(),
        reported_at=time_ns() // 1000,
        irreparable=irreparable,
        copied_from=state.copied_from,
        follows=follows,
        error=error,
        lake=lake,
        name=state.name,
        only=state.only,
        runs_on=f"{platform.node()}, process {os.getpid()}",
    )


class TakesReports(Protocol):
    """What a `Reporter` asks of a node."""

    def report(self, report: WorkerReport) -> Answer:
        """Send a report; return the node's verdict and plan."""


class Reporter:
    """Sends reports in order; keeps each until the node takes it.

    Args:
        source: Used by no other thread.
        batch: Returns how far the worker is in its batch.
        lake: Root of the replica's tables, absolute.
        check_owner: Raises LockedError once another worker has the replica: what this one says of
            it would be taken for news of the other one, which has the same id.
    """

    def __init__(
        self,
        source: TakesReports,
        node_id: str,
        batch: Callable[[], BatchProgress | None] = lambda: None,
        lake: str = "",
        check_owner: Callable[[], None] = lambda: None,
    ) -> None:
        self._batch, self._lake, self._check_owner = batch, lake, check_owner
        self._source = source
        self._node_id = node_id
        self._lock = threading.Lock()
        self._waiting: deque[WorkerReport] = deque(maxlen=REPORTS_KEPT)
        self._sender = ReportSender()
        self._latest: WorkerReport | None = None
        self._follows = False
        self._error = ""
        #: The node's answer to the last report that it took; empty before the first one.
        self.answer = Answer(verdict="", plan="")
        #: Set when the node's verdict or plan changes; clear it before waiting for it.
        self.changed = threading.Event()

    def report(
        self, state: ReplicaState, *, pace: ReplayCost | None = None, irreparable: str = ""
    ) -> Answer:
        """Send the waiting reports and then that of a state.

        Args:
            pace: What the last batch cost.
            irreparable: Why the worker cannot go on by itself.

        Raises:
            TransportError: The node did not take it; it is kept and sent again.
            TxLogError: The node refuses it (definite); it is kept too.
            LockedError: Another worker has the replica (definite).
        """
        with self._lock:
            self._latest = report_of(
                state,
                self._node_id,
                irreparable=irreparable,
                follows=self._follows,
                error=self._error,
                lake=self._lake,
            )
            self._waiting.append(replace(self._latest, pace=pace))
            return self._flush()

    def follow(self) -> None:
        """Say in all later reports that the worker follows the log until further notice."""
        self._follows = True

    def fail(self, error: str) -> None:
        """Say in all later reports why the worker stands still; empty = it goes on."""
        self._error = error[:_MAX_ERROR]

    def end(self, error: str = "") -> None:
        """Tell the node that the worker ends, if it followed or failed.

        After a failure the report still says that it follows: the node then misses its worker.  The
        same happens if the node cannot be reached.
        """
        if error:
            self.fail(error)
        else:
            self._follows = False
        if self._latest is not None and (error or self._latest.follows):
            try:
                self.beat()
            except TxLogError as failure:
                _logger.warning("the node has no report of the end of the worker: %s", failure)

    def beat(self) -> None:
        """Send the waiting reports, or the latest one again."""
        with self._lock:
            latest = self._latest
            if latest is not None:
                said = (self._follows, self._error)
                if not self._waiting or said != (latest.follows, latest.error):
                    self._latest = replace(
                        latest,
                        reported_at=time_ns() // 1000,
                        follows=said[0],
                        error=said[1],
                        batch=self._batch(),
                    )
                    self._waiting.append(self._latest)
            if self._waiting:
                self._flush()

    def _flush(self) -> Answer:
        while True:
            self._check_owner()
            report, before = self._waiting[0], self.answer
            sent = self._sender.shortened(report)
            answer = self._source.report(sent)
            if not self._sender.answered(report, sent, (answer.kept,)):
                continue  # the node restarted: it needs the whole report
            self._waiting.popleft()
            self.answer = answer
            if (before.verdict, before.plan) != (answer.verdict, answer.plan):
                self.changed.set()
            if not self._waiting:
                return answer
