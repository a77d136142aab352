"""Judges a replica by the state that it reports (protocol S3); a pure function of its arguments.

A replica is IN_SYNC if its chain hash is the log's at its position **and** no majority of sites has
other signatures for its tables (`opinions`).  Otherwise it is

- EMPTY: nothing was applied yet;
- FOREIGN: it belongs to another log (log id);
- AHEAD: its position is after the end of this node's queue;
- DIVERGED: same log, but other history (hash) or other content (signature, recount), or it says so.

If replicas differ and no majority says which is right, all of them stay IN_SYNC, with the
difference in `contest`: they go on, and none of them is a donor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from sparktxlog.catchup.opinions import Dissent
from sparktxlog.model.report import ReplicaVerdict, WorkerReport


class Cause(str, Enum):
    """The reason of a verdict."""

    #: Hash and signatures are the log's, or nothing was applied yet.
    NONE = "none"
    #: IN_SYNC or EMPTY, but the log does not reach back to the position.
    EXPIRED = "expired"
    LOG_ID = "log_id"
    BEYOND = "beyond"
    #: No run ends at the position, so the state is not valid.
    NO_RUN_END = "no-run-end"
    #: The chain hash differs: other history.
    HASH = "hash"
    #: The worker itself says that a table stands still.
    ADMITTED = "admitted"
    #: Same history, but other content than most sites, although the worker reported no error.
    SIGNATURE = "signature"
    #: A recount found other rows than the worker reported (S2b).
    RECOUNT = "recount"
    #: IN_SYNC, but other content than another replica, and no majority says which is right.
    CONTESTED = "contested"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What this node knows about its log at the position of a report."""

    log_id: str
    #: End of the synchronized queue here.
    position: int
    #: End of its published part, 0 ≤ published ≤ position.
    published: int
    #: Chain hash at the report's position, hexadecimal; None = no run ends there, or unknown.
    chain_hash: str | None
    #: False = it is no longer known whether a run ended there; a replay will show it.
    hash_known: bool = True
    #: First position that can still be replayed from is `kept_after` (0 = all of the log).
    kept_after: int = 0
    #: Tables in which a recount found other rows than reported → why they stand still.
    recounted: Collection[str] = ()


#: Some tables differ, and the replica says which: the others are what the log says.
OF_TABLES = frozenset({Cause.ADMITTED, Cause.RECOUNT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Verdict on a report, with the reason in words."""

    verdict: ReplicaVerdict
    cause: Cause
    reason: str
    #: Published transactions that the replica lacks, ≥ 0; 0 if its state is not one of the log.
    behind: int = 0
    #: Of an IN_SYNC replica: where another one differs, and no majority says which is right.
    contest: Dissent | None = None


def compare(report: WorkerReport, log: LogView) -> Comparison:
    """Judge a replica's report by the log alone; `judge` adds the opinions of other sites."""
    where = f"position {report.position}"
    if report.log_id != log.log_id:
        return Comparison(
            verdict=ReplicaVerdict.FOREIGN,
            cause=Cause.LOG_ID,
            reason=f"the replica belongs to log {report.log_id!r}, this is {log.log_id!r}",
        )
    if report.position == 0:
        return _behind(ReplicaVerdict.EMPTY, report, log)
    if report.position > log.position:
        return Comparison(
            verdict=ReplicaVerdict.AHEAD,
            cause=Cause.BEYOND,
            reason=f"{where} is after the end of this node's queue, {log.position}",
        )
    if log.chain_hash is not None and report.chain_hash != log.chain_hash:
        return _diverged(
            Cause.HASH,
            f"at {where} the replica followed another history: hash "
            f"{report.chain_hash[:12]}, here {log.chain_hash[:12]}",
        )
    if log.chain_hash is None and log.hash_known and report.position >= log.kept_after:
        return _diverged(Cause.NO_RUN_END, f"no run of this log ends at {where}")
    for table, state in sorted(report.tables.items()):
        if state.diverged:
            cause = Cause.RECOUNT if table in log.recounted else Cause.ADMITTED
            return _diverged(cause, f"table {table!r}: {state.diverged}")
    return _behind(ReplicaVerdict.IN_SYNC, report, log)


def judge(
    comparison: Comparison, conviction: Dissent | None, contest: Dissent | None
) -> Comparison:
    """Add the opinions of other sites to a comparison with the log.

    Args:
        comparison: Of `compare`; only an IN_SYNC one is changed.
        conviction: Where a majority says that the replica is wrong.
        contest: Where it differs from another one, and no majority says which is right.
    """
    if comparison.verdict is not ReplicaVerdict.IN_SYNC:
        return comparison
    if conviction is not None:
        return _diverged(Cause.SIGNATURE, conviction_text(conviction))
    if contest is None:
        return comparison
    cause = comparison.cause if comparison.cause is Cause.EXPIRED else Cause.CONTESTED
    reason = f"{comparison.reason}; {contest_text(contest)}"
    return replace(comparison, cause=cause, reason=reason, contest=contest)


def conviction_text(found: Dissent) -> str:
    """Return in which table, and how, a replica differs from the majority."""
    truth = next(iter(found.others.values()))
    says = f"most sites ({', '.join(found.others)}) have {truth or 'no such table'}"
    return f"{_dissent_text(found)}, {says}"


def contest_text(found: Dissent) -> str:
    """Return in which table, and how, replicas differ, and what an operator can do."""
    others = ", ".join(
        f"site {site} has {text or 'no such table'}" for site, text in found.others.items()
    )
    return (
        f"{_dissent_text(found)}, {others}: no majority says which is right, so nothing is copied; "
        "if no recount says so, compare the sites (sparktxlog verify --compare) and copy at the "
        "wrong one (jobs/catch_up.py --force copy --donor SITE)"
    )


def _dissent_text(found: Dissent) -> str:
    table = found.tables[0]
    more = f" (and {len(found.tables) - 1} more)" if len(found.tables) > 1 else ""
    what = f"has signature {found.signature}" if found.signature else "is missing"
    return f"at position {found.position} table {table!r}{more} {what}"


def recordable(report: WorkerReport) -> dict[str, str] | None:
    """Return a report's signatures by table, or None if they are no opinion.

    A table that stands still, and a replica that its worker cannot repair, are not states of the
    log.  Only the report of a success is an opinion.
    """
    if report.irreparable or any(state.diverged for state in report.tables.values()):
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
