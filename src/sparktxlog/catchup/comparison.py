"""What a replica's reported state says about it (protocol S3); pure, like the whole room.

A report is KNOWN iff its chain hash is the log's at its position **and** its tables carry the
signatures that were recorded first at that position.  Else it is

- EMPTY: nothing was applied yet;
- FOREIGN: it belongs to another log (lineage);
- AHEAD: its position lies beyond this node's queue;
- DIVERGED: same log, other history (hash), other content (signature), or it says so itself.

The plan for the node's own replica follows: KNOWN and EMPTY replay what they miss; what cannot
be replayed needs a copy; DIVERGED is never silently overwritten (P28).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sparktxlog.model.report import ReplicaVerdict, WorkerReport


class Plan(str, Enum):
    """What a replica should do next."""

    UP_TO_DATE = "up-to-date"
    REPLAY = "replay"
    COPY = "copy"
    STOP = "stop"


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
    """Verdict on a report, with the reason in words and the next step."""

    verdict: ReplicaVerdict
    plan: Plan
    reason: str


def compare(report: WorkerReport, log: LogView) -> Comparison:
    """Judge a replica's report against the log and against what other sites reported."""
    where = f"position {report.position}"
    if report.lineage != log.lineage:
        return _stop(
            ReplicaVerdict.FOREIGN, f"the replica belongs to log {report.lineage!r}, this is "
            f"{log.lineage!r}",
        )  # fmt: skip
    if report.position == 0:
        return _behind(ReplicaVerdict.EMPTY, report, log)
    if report.position > log.position:
        return _stop(
            ReplicaVerdict.AHEAD, f"{where} lies beyond this node's queue, which ends at "
            f"{log.position}",
        )  # fmt: skip
    if log.chain_hash is None and report.position < log.kept_after:
        return Comparison(
            verdict=ReplicaVerdict.KNOWN, plan=Plan.COPY,
            reason=f"{where} is expired from the log, which is kept after {log.kept_after}",
        )  # fmt: skip
    if log.chain_hash is None:
        return _stop(ReplicaVerdict.DIVERGED, f"{where} is no end of a run of this log")
    if report.chain_hash != log.chain_hash:
        return _stop(
            ReplicaVerdict.DIVERGED, f"at {where} the replica followed another history: hash "
            f"{report.chain_hash[:12]}, here {log.chain_hash[:12]}",
        )  # fmt: skip
    for table, state in sorted(report.tables.items()):
        if state.diverged:
            return _stop(ReplicaVerdict.DIVERGED, f"table {table!r}: {state.diverged}")
    difference = first_difference(report, log.recorded or {})
    if difference:
        by = f" (recorded first by {log.recorded_by})" if log.recorded_by else ""
        return _stop(ReplicaVerdict.DIVERGED, f"at {where} {difference}{by}")
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


def _stop(verdict: ReplicaVerdict, reason: str) -> Comparison:
    return Comparison(verdict=verdict, plan=Plan.STOP, reason=reason)


def _behind(verdict: ReplicaVerdict, report: WorkerReport, log: LogView) -> Comparison:
    missing = log.published - report.position
    if report.position < log.kept_after:
        return Comparison(
            verdict=verdict, plan=Plan.COPY,
            reason=f"the log is kept after position {log.kept_after} only",
        )  # fmt: skip
    if missing <= 0:
        return Comparison(
            verdict=verdict, plan=Plan.UP_TO_DATE, reason=f"at position {report.position}"
        )
    return Comparison(verdict=verdict, plan=Plan.REPLAY, reason=f"{missing} transactions to apply")
