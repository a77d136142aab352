"""Replicas: what workers reported, who is alive, and whose tables are equal (S2a, S3, P24, G38).

Reports of the own site come from its worker, those of other sites with their nodes' posts.  At
each position the first recorded set of signatures is the known state; whoever differs is
DIVERGED.  The own replica's batches are kept, bounded, as snapshots: position → table versions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec
import structlog

from sparktxlog.catchup.comparison import Comparison, LogView, compare, recordable
from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.storage.interfaces import PutValue, Write

_log = structlog.get_logger("sparktxlog.replicas")

#: Batches of the own replica kept for snapshots, and positions with recorded signatures.
HISTORY = 1_000
_PREFIX = "batch:"
_OWN = "report:own"


@dataclass(slots=True, kw_only=True)
class ReplicaState:
    """The newest report of one worker and what it says."""

    report: WorkerReport
    comparison: Comparison
    #: Log time when the report came in, microseconds; 0 = before this start.
    heard_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Where this node's log stands at the moment of a comparison."""

    position: int
    published: int
    kept_after: int = 0


class Replicas:
    """All replicas known here.

    Args:
        node_id: This node.
        lineage: This log.
        dead_after_us: Silence after which a worker counts as dead (G38).
        ends: Returns where the log stands.
        hash_at: Returns the chain hash at a run end, None if there is none.
        saved: Values of the front at start.
    """

    def __init__(
        self,
        *,
        node_id: str,
        lineage: str,
        dead_after_us: int,
        ends: Callable[[], LogEnds],
        hash_at: Callable[[int], bytes | None],
        saved: Mapping[str, bytes],
    ) -> None:
        self._node_id = node_id
        self._lineage = lineage
        self._dead_after_us = dead_after_us
        self._ends = ends
        self._hash_at = hash_at
        self._states: dict[str, ReplicaState] = {}
        #: Position → (node that recorded it, table → signature).
        self._recorded: OrderedDict[int, tuple[str, dict[str, str]]] = OrderedDict()
        #: Position → the own replica's report there, ascending.
        self._batches: OrderedDict[int, WorkerReport] = OrderedDict()
        self._slot = 0
        self._restore(saved)

    def _restore(self, saved: Mapping[str, bytes]) -> None:
        found = []
        for name, value in saved.items():
            if name.startswith(_PREFIX):
                slot = int(name.removeprefix(_PREFIX))
                found.append((msgspec.msgpack.decode(value, type=WorkerReport), slot))
        newest = msgspec.msgpack.decode(saved[_OWN], type=WorkerReport) if _OWN in saved else None
        for report, slot in sorted(found, key=lambda item: item[0].position):
            if newest is not None and _same_tables(report, newest):
                self._batches[report.position] = report
            self._record(report)
            self._slot = (slot + 1) % HISTORY
        if newest is not None:
            report = newest
            self._states[report.worker_id] = ReplicaState(
                report=report, comparison=self._compare(report), heard_at=0
            )

    # -- reports -----------------------------------------------------------------------------------

    def accept(self, report: WorkerReport, now: int) -> tuple[Comparison, bool, list[Write]]:
        """Judge a report; return the verdict, whether its state is new, and what to keep of it."""
        known = self._states.get(report.worker_id)
        changed = known is None or known.report.position != report.position or (
            (known.report.tables, known.report.lineage, known.report.copied_from)
            != (report.tables, report.lineage, report.copied_from)
        )  # fmt: skip
        comparison = self._compare(report)
        # The same state may be judged anew: what was AHEAD of this node is KNOWN later.
        changed = changed or known is None or known.comparison.verdict is not comparison.verdict
        own = report.node_id == self._node_id
        self._tell(report, comparison, known)
        self._drop_former(report)
        self._states[report.worker_id] = ReplicaState(
            report=report, comparison=comparison, heard_at=now
        )
        writes: list[Write] = []
        if changed and comparison.verdict is ReplicaVerdict.KNOWN:
            self._record(report)
            if own:
                writes = self._keep_batch(report)
        return comparison, changed, writes

    def _drop_former(self, report: WorkerReport) -> None:
        """Forget workers of the same site before this one: a site has one replica."""
        for worker_id, state in list(self._states.items()):
            if state.report.node_id == report.node_id and worker_id != report.worker_id:
                del self._states[worker_id]

    def _keep_batch(self, report: WorkerReport) -> list[Write]:
        for position, batch in list(self._batches.items())[::-1]:
            if _same_tables(batch, report) and position < report.position:
                break
            # Of a lake that is gone, or of tables that a copy replaced: versions mean others now.
            del self._batches[position]
        self._batches[report.position] = report
        while len(self._batches) > HISTORY:
            self._batches.popitem(last=False)
        value = msgspec.msgpack.encode(report)
        slot, self._slot = self._slot, (self._slot + 1) % HISTORY
        return [
            PutValue(name=f"{_PREFIX}{slot}", value=value),
            PutValue(name=_OWN, value=value),
        ]

    def _record(self, report: WorkerReport) -> None:
        signatures = recordable(report)
        if signatures is None or report.position in self._recorded:
            return
        self._recorded[report.position] = (report.node_id, signatures)
        while len(self._recorded) > HISTORY:
            self._recorded.popitem(last=False)

    def _compare(self, report: WorkerReport) -> Comparison:
        ends = self._ends()
        chain_hash = self._hash_at(report.position) if report.position <= ends.position else None
        by, recorded = self._recorded.get(report.position, ("", None))
        return compare(
            report,
            LogView(
                lineage=self._lineage,
                position=ends.position,
                published=ends.published,
                kept_after=ends.kept_after,
                chain_hash=None if chain_hash is None else chain_hash.hex(),
                recorded=recorded,
                recorded_by=by,
            ),
        )

    @staticmethod
    def _tell(report: WorkerReport, comparison: Comparison, known: ReplicaState | None) -> None:
        if known is not None and known.comparison.verdict is comparison.verdict:
            return
        bad = comparison.verdict in (ReplicaVerdict.DIVERGED, ReplicaVerdict.FOREIGN)
        (_log.error if bad else _log.info)(
            "replica", worker=report.worker_id, site=report.node_id, position=report.position,
            verdict=comparison.verdict.value, reason=comparison.reason,
        )  # fmt: skip

    def overtaken(self) -> list[tuple[WorkerReport, int]]:
        """Return reports, and when they came, that were AHEAD and the queue has reached since."""
        position = self._ends().position
        return [
            (state.report, state.heard_at)
            for state in self._states.values()
            if state.comparison.verdict is ReplicaVerdict.AHEAD
            and state.report.position <= position
        ]

    # -- questions ---------------------------------------------------------------------------------

    def applied(self, copies: int) -> int:
        """Return the position that the own replica (1) or any `copies` equal sites applied."""
        best: dict[str, int] = {}
        for state in self._states.values():
            if state.comparison.verdict is ReplicaVerdict.KNOWN:
                site = state.report.node_id
                best[site] = max(best.get(site, 0), state.report.position)
        if copies <= 1:
            return best.get(self._node_id, 0)
        positions = sorted(best.values(), reverse=True)
        return positions[copies - 1] if len(positions) >= copies else 0

    def states(self) -> list[ReplicaState]:
        """Return the newest state of each worker, by site and worker."""
        return sorted(self._states.values(), key=lambda s: (s.report.node_id, s.report.worker_id))

    def own(self, worker_id: str | None = None) -> ReplicaState | None:
        """Return the state of a worker of this site, by default the one heard last."""
        own = [
            state
            for state in self.states()
            if state.report.node_id == self._node_id and worker_id in (None, state.report.worker_id)
        ]
        return max(own, key=lambda state: state.heard_at, default=None)

    def latest_own(self, now: int) -> list[WorkerReport]:
        """Return the newest report of this site's worker, with its age, for a peer that is new."""
        own = self.own()
        if own is None:
            return []
        return [replace(own.report, age_us=now - own.heard_at if own.heard_at else -1)]

    def history(self, after: int, limit: int) -> list[WorkerReport]:
        """Return the own replica's known states behind a position, ascending, at most `limit`."""
        found = (batch for position, batch in self._batches.items() if position > after)
        return list(islice(found, limit))

    def snapshot(self, position: int | None) -> WorkerReport | None:
        """Return the own replica's report at a position, or its newest one."""
        if position is not None:
            return self._batches.get(position)
        return next(reversed(self._batches.values()), None)

    def status(self, now: int) -> list[dict[str, Any]]:
        """Return one line per replica for status."""
        lines = []
        for state in self.states():
            report, comparison = state.report, state.comparison
            age_us = now - state.heard_at if state.heard_at else None
            lines.append(
                {
                    "worker_id": report.worker_id,
                    "node_id": report.node_id,
                    "position": report.position,
                    "chain_hash": report.chain_hash,
                    "verdict": comparison.verdict.value,
                    "reason": comparison.reason,
                    "age_s": None if age_us is None else round(age_us / 1e6, 3),
                    "alive": age_us is not None and age_us <= self._dead_after_us,
                    "engine": report.engine,
                    "tables": {
                        name: {
                            "version": table.version,
                            "signature": table.signature.to_text(),
                            "schema": table.schema,
                            "diverged": table.diverged,
                        }
                        for name, table in sorted(report.tables.items())
                    },
                }
            )
        return lines


def _same_tables(one: WorkerReport, other: WorkerReport) -> bool:
    """Tell whether two reports of a site speak of the same Delta tables, version by version."""
    return (one.worker_id, one.copied_from) == (other.worker_id, other.copied_from)
