"""What a replica's reported state says about it (protocol S3); pure, like the whole room.

A report is KNOWN iff its chain hash is the log's at its position **and** its tables carry the
signatures that were recorded first at that position.  Else it is

- EMPTY: nothing was applied yet;
- FOREIGN: it belongs to another log (lineage);
- AHEAD: its position lies beyond this node's queue;
- DIVERGED: same log, other history (hash), other content (signature), or it says so itself.

Only verdict and cause are decided here.  What is to be done about it, and at what cost, is the
planner's: `planner.decide`, and `planner.first_plan` as long as no estimates are at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sparktxlog.model.report import ReplicaVerdict, WorkerReport


class Cause(str, Enum):
    """What a verdict rests on."""

    #: Hash and signatures are the log's, or nothing was applied yet.
    NONE = "none"
    #: KNOWN or EMPTY, but the log does not reach back to the position.
    EXPIRED = "expired"
    LINEAGE = "lineage"
    BEYOND = "beyond"
    #: The position is no end of a run: no valid state.
    NO_RUN_END = "no-run-end"
    #: The chain hash is another one: other history.
    HASH = "hash"
    #: The worker itself says that a table stands still.
    ADMITTED = "admitted"
    #: Right history, no complaint of the worker, and yet other content (R20).
    SIGNATURE = "signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What this node knows about its log where a report points to."""

    lineage: str
    #: End of the synchronized queue here.
    position: int
    #: End of its published part, 0 ≤ published ≤ position.
    published: int
    #: Chain hash at the report's position, hexadecimal; None = no run end, or expired.
    chain_hash: str | None
    #: First position that can still be replayed from is `kept_after` (0 = all of the log).
    kept_after: int = 0
    #: Table → signature text, as first recorded at the report's position; None = nothing recorded.
    recorded: Mapping[str, str] | None = None
    #: Node that recorded it.
    recorded_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Verdict on a report, with the reason in words."""

    verdict: ReplicaVerdict
    cause: Cause
    reason: str
    #: Published transactions that the replica lacks, ≥ 0; 0 where the verdict is no known state.
    behind: int = 0


def compare(report: WorkerReport, log: LogView) -> Comparison:
    """Judge a replica's report against the log and against what other sites reported."""
    where = f"position {report.position}"
    if report.lineage != log.lineage:
        return Comparison(
            verdict=ReplicaVerdict.FOREIGN, cause=Cause.LINEAGE,
            reason=f"the replica belongs to log {report.lineage!r}, this is {log.lineage!r}",
        )  # fmt: skip
    if report.position == 0:
        return _behind(ReplicaVerdict.EMPTY, report, log)
    if report.position > log.position:
        return Comparison(
            verdict=ReplicaVerdict.AHEAD, cause=Cause.BEYOND,
            reason=f"{where} lies beyond this node's queue, which ends at {log.position}",
        )  # fmt: skip
    if log.chain_hash is None and report.position < log.kept_after:
        return _behind(ReplicaVerdict.KNOWN, report, log)
    if log.chain_hash is None:
        return _diverged(Cause.NO_RUN_END, f"{where} is no end of a run of this log")
    if report.chain_hash != log.chain_hash:
        return _diverged(
            Cause.HASH, f"at {where} the replica followed another history: hash "
            f"{report.chain_hash[:12]}, here {log.chain_hash[:12]}",
        )  # fmt: skip
    for table, state in sorted(report.tables.items()):
        if state.diverged:
            return _diverged(Cause.ADMITTED, f"table {table!r}: {state.diverged}")
    difference = first_difference(report, log.recorded or {})
    if difference:
        by = f" (recorded first by {log.recorded_by})" if log.recorded_by else ""
        return _diverged(Cause.SIGNATURE, f"at {where} {difference}{by}")
    return _behind(ReplicaVerdict.KNOWN, report, log)


def first_difference(report: WorkerReport, recorded: Mapping[str, str]) -> str:
    """Name the first table whose signature is not the recorded one; empty = all equal."""
    for table in sorted(recorded):
        state = report.tables.get(table)
        if state is None:
            return f"table {table!r} is missing"
        text = state.signature.to_text()
        if text != recorded[table]:
            return f"table {table!r} has signature {text}, recorded is {recorded[table]}"
    if recorded:
        for table in sorted(report.tables):
            if table not in recorded:
                return f"table {table!r} was not recorded"
    return ""


def recordable(report: WorkerReport) -> dict[str, str] | None:
    """Return a report's signatures by table, or None if some table stands still."""
    if any(state.diverged for state in report.tables.values()):
        return None
    return {table: state.signature.to_text() for table, state in report.tables.items()}


def _diverged(cause: Cause, reason: str) -> Comparison:
    return Comparison(verdict=ReplicaVerdict.DIVERGED, cause=cause, reason=reason)


def _behind(verdict: ReplicaVerdict, report: WorkerReport, log: LogView) -> Comparison:
    behind = max(log.published - report.position, 0)
    cause, reason = Cause.NONE, f"{behind} transactions to apply"
    if report.position < log.kept_after:
        cause = Cause.EXPIRED
        reason = (
            f"position {report.position} is expired from the log, which is kept after "
            f"{log.kept_after} only"
        )
    elif not behind:
        reason = f"at position {report.position}"
    return Comparison(verdict=verdict, cause=cause, reason=reason, behind=behind)
