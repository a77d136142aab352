"""Reports to the node: after each batch, and as a heartbeat while following (B25, G38)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from time import time_ns
from typing import Self

from sparktxlog.errors import TxLogError
from sparktxlog.model.report import ReplayCost, WorkerReport
from sparktxlog.worker.source import Answer, LogSource
from sparktxlog.worker.state import ReplicaState

_logger = logging.getLogger(__name__)

#: Seconds between heartbeats; the node takes a worker for dead after 10 (G38).
HEARTBEAT_S = 5.0
#: Reports kept while the node is away; the oldest go first.
REPORTS_KEPT = 1000


@cache
def engine_name() -> str:
    """Return which engine applies: replicas with different ones may differ in rounding."""
    names = []
    for package in ("pyspark", "delta-spark", "deltalake"):
        try:
            names.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            names.append(f"{package} unknown")
    return " ".join(names)


def report_of(
    state: ReplicaState, node_id: str, *, pace: ReplayCost | None = None, irreparable: str = ""
) -> WorkerReport:
    """Make the report of a state, stamped now."""
    return WorkerReport(
        worker_id=state.worker_id,
        node_id=node_id,
        lineage=state.lineage,
        epoch=state.epoch,
        position=state.position,
        chain_hash=state.chain_hash,
        tables={name: table.to_report() for name, table in state.tables.items()},
        engine=engine_name(),
        reported_at=time_ns() // 1000,
        pace=pace,
        irreparable=irreparable,
        copied_from=state.copied_from,
    )


class Reporter:
    """Sends reports in order, each once the node takes it.

    Args:
        source: Used by no other thread.
    """

    def __init__(self, source: LogSource, node_id: str) -> None:
        self._source = source
        self._node_id = node_id
        self._lock = threading.Lock()
        self._waiting: deque[WorkerReport] = deque(maxlen=REPORTS_KEPT)
        self._latest: WorkerReport | None = None
        #: What the node made of the last report it took.
        self.answer: Answer | None = None
        #: Set when the node's plan becomes another one; whoever waits for that clears it before.
        self.changed = threading.Event()

    def report(
        self, state: ReplicaState, *, pace: ReplayCost | None = None, irreparable: str = ""
    ) -> Answer:
        """Send the report of a state, after those that still wait.

        Args:
            pace: What the batch before it cost.
            irreparable: Why the worker cannot go on by itself (R19).

        Raises:
            TransportError: The node did not take it; it is kept for the next time.
            TxLogError: The node refuses it (definite); kept as well.
        """
        with self._lock:
            self._latest = report_of(state, self._node_id, irreparable=irreparable)
            self._waiting.append(replace(self._latest, pace=pace))
            return self._flush()

    def beat(self) -> None:
        """Send what waits, or the latest report anew."""
        with self._lock:
            if self._latest is not None and not self._waiting:
                self._latest = replace(self._latest, reported_at=time_ns() // 1000)
                self._waiting.append(self._latest)
            if self._waiting:
                self._flush()

    def _flush(self) -> Answer:
        while True:
            answer, before = self._source.report(self._waiting[0]), self.answer
            self._waiting.popleft()
            self.answer = answer
            if before is None or (before.verdict, before.plan) != (answer.verdict, answer.plan):
                self.changed.set()
            if not self._waiting:
                return answer


class Heartbeat:
    """A thread that beats while the context is open; the only one that sends by itself (B02)."""

    def __init__(
        self,
        beat: Callable[[], None],
        *,
        interval_s: float = HEARTBEAT_S,
    ) -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        # A beat under way may hang for as long as a request may: nobody waits for that.
        self._thread.join(timeout=HEARTBEAT_S)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._beat()
            except TxLogError as error:
                # The next beat tries again; the node sees the silence.
                _logger.warning("heartbeat not taken: %s", error)
