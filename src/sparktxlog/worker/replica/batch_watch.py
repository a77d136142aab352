"""How far a worker is in its batch: for its output, and for its reports to the node."""

from __future__ import annotations

import logging
import threading
from time import monotonic

from sparktxlog.model.report import BatchProgress
from sparktxlog.worker.apply.batches import Batch, Step, StepKind

_logger = logging.getLogger(__name__)

#: How long a step takes relative to others; only the rows of a few are read.
_WEIGHTS = {StepKind.MERGE: 10, StepKind.CLEAR: 5}


class BatchWatch:
    """Follows the stages of batches, each one Delta commit of a table; safe in any thread.

    The estimate supposes that what is left takes as long as what was done, in proportion: a MERGE
    counts ten times as much as files that are only placed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batch: Batch | None = None
        self._began = 0.0
        #: Table and number of each step → weights of the steps before it.
        self._before: dict[tuple[str, int], float] = {}
        self._total = 0.0
        self._at: tuple[str, Step] | None = None
        #: When the step under way was begun, and the work that was left at the start.
        self._first: float | None = None

    def begin(self, batch: Batch) -> None:
        """Note a batch before its first stage."""
        with self._lock:
            self._batch, self._began, self._at, self._first = batch, monotonic(), None, None
            self._before, self._total = {}, 0.0
            for name, plan in batch.tables.items():
                for step in plan.steps():
                    self._before[name, step.number] = self._total
                    self._total += _weight(step)

    def step(self, table: str, step: Step) -> None:
        """Note and log that a stage begins."""
        with self._lock:
            known = (table, step.number)
            if self._batch is None or known not in self._before:
                return  # of a table that is dropped
            self._at = (table, step)
            if self._first is None:
                # After a crash the first ones are done already.
                self._first = self._before[known]
            done, total = self._before[known], self._total
        now = self.now()
        assert now is not None
        left = "" if now.left_s is None else f", about {now.left_s:,.0f} s left"
        _logger.info(
            "batch %s to %s: %s of table %s, stage %s of %s%s",
            f"{now.first:,}",
            f"{now.last:,}",
            now.act,
            table,
            now.stage,
            now.stages,
            left,
            extra={"done": done, "total": total},
        )

    def end(self) -> None:
        """Note that no batch is being applied."""
        with self._lock:
            self._batch = None

    def now(self) -> BatchProgress | None:
        """Return how far the batch is, None without one."""
        with self._lock:
            if self._batch is None or self._at is None:
                return None
            table, step = self._at
            known = (table, step.number)
            done, seconds = self._before[known] - (self._first or 0.0), monotonic() - self._began
            left_s = seconds / done * (self._total - self._before[known]) if done else None
            return BatchProgress(
                first=self._batch.first,
                last=self._batch.last,
                table=table,
                act=step.kind.value,
                stage=list(self._before).index(known) + 1,
                stages=len(self._before),
                seconds=round(seconds, 1),
                left_s=None if left_s is None else round(left_s, 1),
            )


def _weight(step: Step) -> float:
    return _WEIGHTS.get(step.kind, 1)
