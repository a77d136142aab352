"""What a replica's reported state says about it (protocol S3); pure, like the whole room.

A report is KNOWN iff its chain hash is the log's at its position **and** no majority of sites says
that its tables are other ones (`opinions`).  Else it is

- EMPTY: nothing was applied yet;
- FOREIGN: it belongs to another log (lineage);
- AHEAD: its position lies beyond this node's queue;
- DIVERGED: same log, other history (hash), other content (signature, recount), or it says so.

Where replicas differ and no majority says which is right, all of them stay KNOWN, with the
difference as `contest`: they go on, and none of them may be copied from.

Only verdict and cause are decided here.  What is to be done about it, and at what cost, is the
planner's: `planner.decide`, and `planner.first_plan` as long as no estimates are at hand.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from sparktxlog.catchup.opinions import Dissent
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
    #: Right history, no complaint of the worker, and yet other content than most sites.
    SIGNATURE = "signature"
    #: A recount found other rows than the worker reported (S2b).
    RECOUNT = "recount"
    #: KNOWN, but other content than another replica, and no majority says who is right.
    CONTESTED = "contested"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """What this node knows about its log where a report points to."""

    lineage: str
    #: End of the synchronized queue here.
    position: int
    #: End of its published part, 0 ≤ published ≤ position.
    published: int
    #: Chain hash at the report's position, hexadecimal; None = no run end, or not known.
    chain_hash: str | None
    #: False = whether and how a run ended there is not known any more; replaying still tells.
    hash_known: bool = True
    #: First position that can still be replayed from is `kept_after` (0 = all of the log).
    kept_after: int = 0
    #: Tables of which a recount found other rows than were reported: why they stand still.
    recounted: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Verdict on a report, with the reason in words."""

    verdict: ReplicaVerdict
    cause: Cause
    reason: str
    #: Published transactions that the replica lacks, ≥ 0; 0 where the verdict is no known state.
    behind: int = 0
    #: Of a KNOWN replica: where it differs from another one, and no majority says which is right.
    contest: Dissent | None = None


def compare(report: WorkerReport, log: LogView) -> Comparison:
    """Judge a replica's report against the log alone; what other sites say is `judge`'s."""
    where = f"position {report.position}"
    if report.lineage != log.lineage:
        return Comparison(
            verdict=ReplicaVerdict.FOREIGN,
            cause=Cause.LINEAGE,
            reason=f"the replica belongs to log {report.lineage!r}, this is {log.lineage!r}",
        )
    if report.position == 0:
        return _behind(ReplicaVerdict.EMPTY, report, log)
    if report.position > log.position:
        return Comparison(
            verdict=ReplicaVerdict.AHEAD,
            cause=Cause.BEYOND,
            reason=f"{where} lies beyond this node's queue, which ends at {log.position}",
        )
    if log.chain_hash is not None and report.chain_hash != log.chain_hash:
        return _diverged(
            Cause.HASH,
            f"at {where} the replica followed another history: hash "
            f"{report.chain_hash[:12]}, here {log.chain_hash[:12]}",
        )
    if log.chain_hash is None and log.hash_known and report.position >= log.kept_after:
        return _diverged(Cause.NO_RUN_END, f"{where} is no end of a run of this log")
    for table, state in sorted(report.tables.items()):
        if state.diverged:
            cause = Cause.RECOUNT if table in log.recounted else Cause.ADMITTED
            return _diverged(cause, f"table {table!r}: {state.diverged}")
    return _behind(ReplicaVerdict.KNOWN, report, log)


def judge(
    comparison: Comparison, conviction: Dissent | None, contest: Dissent | None
) -> Comparison:
    """Add to a comparison with the log what other sites' opinions say of the replica.

    Args:
        comparison: Of `compare`; only a KNOWN one is changed.
        conviction: Where a majority says that the replica is wrong.
        contest: Where it differs from another one, and no majority says who is right.
    """
    if comparison.verdict is not ReplicaVerdict.KNOWN:
        return comparison
    if conviction is not None:
        return _diverged(Cause.SIGNATURE, conviction_text(conviction))
    if contest is None:
        return comparison
    cause = comparison.cause if comparison.cause is Cause.EXPIRED else Cause.CONTESTED
    reason = f"{comparison.reason}; {contest_text(contest)}"
    return replace(comparison, cause=cause, reason=reason, contest=contest)


def conviction_text(found: Dissent) -> str:
    """Say in which table, and how, a replica differs from the majority."""
    truth = next(iter(found.others.values()))
    says = f"most sites ({', '.join(found.others)}) have {truth or 'no such table'}"
    return f"{_dissent_text(found)}, {says}"


def contest_text(found: Dissent) -> str:
    """Say in which table, and how, replicas differ, and what resolves it."""
    others = ", ".join(
        f"site {site} has {text or 'no such table'}" for site, text in found.others.items()
    )
    return (
        f"{_dissent_text(found)}, {others}: no majority says which is right, so nothing is copied; "
        "if no recount tells, compare the sites (sparktxlog verify --compare) and copy at the "
        "wrong one (jobs/catch_up.py --force copy --donor SITE)"
    )


def _dissent_text(found: Dissent) -> str:
    table = found.tables[0]
    more = f" (and {len(found.tables) - 1} more)" if len(found.tables) > 1 else ""
    what = f"has signature {found.signature}" if found.signature else "is missing"
    return f"at position {found.position} table {table!r}{more} {what}"


def recordable(report: WorkerReport) -> dict[str, str] | None:
    """Return a report's signatures by table, or None if it vouches for none of them.

    A table that stands still, and a replica that its worker cannot repair, are no states of the
    log: an opinion is always the report of a success.
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
