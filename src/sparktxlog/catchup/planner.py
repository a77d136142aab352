"""Replay, copy or stop: the choice for one replica, with its reasons in numbers.

    verdict, cause  →  nothing to do | a copy is needed | replay and copy compete | stop

- IN_SYNC and EMPTY replay what they miss, unless a copy is much faster (`prefers_copy`) or the log
  does not reach back to them.
- DIVERGED replicas, and those that their worker cannot repair, need a copy.  (A worker spares it if
  all that is wrong is commits of others, which its own files undo.)
- If replicas differ and no majority says which is right, none is a donor; replays go on.
- AHEAD and FOREIGN are never overwritten unless somebody asks for it: they stop.
- Without a donor nothing is copied; a replay goes on where it can.

`log_lines` returns the messages of a decision in the order in which they are logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sparktxlog.catchup.comparison import Cause, Comparison
from sparktxlog.catchup.estimates import ReplayPace, TransferPace, Workload
from sparktxlog.model.copying import Decision, Estimate
from sparktxlog.model.report import ReplicaVerdict, WorkerReport

OUT_OF_SYNC = "Replicating (out of sync)"
OUT_OF_SYNC_FORCED = "Replicating (out of sync), forced"
EMPTY = "Replicating (empty)"
CATCH_UP = "Replicating (catch up)"
NO_SIZE = "Couldn't find storage size"
#: Why nothing is copied where no site has applied anything.  One whose log begins later cannot
#: begin: a node that joined a log that runs.
ALL_EMPTY = "all replicas are empty; first run a worker at a site with the log from its beginning"


class Plan(str, Enum):
    """What a replica should do next."""

    UP_TO_DATE = "up-to-date"
    REPLAY = "replay"
    COPY = "copy"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """All inputs of a decision."""

    report: WorkerReport
    comparison: Comparison
    #: What a replay consists of; None = the log does not reach back to the position.
    workload: Workload | None
    #: Nodes to copy from, best first (`choose_donors`).
    donors: tuple[str, ...] = ()
    #: Donor → its uncompressed bytes that the target lacks; None or no entry = unknown.
    missing_bytes: Mapping[str, int | None] = field(default_factory=dict)
    replay_pace: ReplayPace = field(default_factory=ReplayPace)
    transfer_pace: TransferPace = field(default_factory=TransferPace)
    #: `FullReplicationTimeFactor`, ratio.
    full_replication_time_factor: float = 1.3
    #: `MinTimeToConsiderFullReplicationS`, seconds.
    min_time_to_consider_full_replication_s: float = 600.0
    #: At least one other replica is not empty.
    others_not_empty: bool = False
    #: Contested nodes: an operator must name the one that is right for a copy.
    contested: tuple[str, ...] = ()
    #: No other replica is healthy: a copy would stop reads or writes.
    last_healthy: bool = False
    #: An operator or a worker asked for a copy, whatever the estimates are.
    asked_for: bool = False


def prefers_copy(
    incremental_s: float, replication_s: float, *, factor: float, minimum_s: float
) -> bool:
    """Return whether a copy is so much faster that it is worth it; both conditions are strict."""
    return incremental_s > replication_s * factor and incremental_s > minimum_s


def first_plan(comparison: Comparison) -> Plan:
    """Return the plan by the verdict alone, before donors and estimates are known."""
    match comparison.verdict:
        case ReplicaVerdict.AHEAD | ReplicaVerdict.FOREIGN:
            return Plan.STOP
        case ReplicaVerdict.DIVERGED:
            return Plan.COPY
        case _ if comparison.cause is Cause.EXPIRED:
            return Plan.COPY
        case _:
            return Plan.REPLAY if comparison.behind else Plan.UP_TO_DATE


def wants_sizes(known: PlanInput) -> bool:
    """Return whether `decide` needs donors and their sizes, which cost requests."""
    plan = first_plan(known.comparison)
    if known.asked_for or plan is Plan.COPY:
        return True
    if plan is Plan.STOP:
        return False
    if known.report.irreparable:
        return True
    if plan is Plan.UP_TO_DATE:
        return False
    if known.workload is None:
        return True
    seconds = known.replay_pace.estimate(known.workload)
    return seconds > known.min_time_to_consider_full_replication_s


def decide(known: PlanInput) -> Decision:
    """Choose replay, copy or stop for one replica."""
    comparison, report = known.comparison, known.report
    plan = first_plan(comparison)
    if comparison.verdict is ReplicaVerdict.DIVERGED:
        # In both cases the worker had reported a success.
        lied = comparison.cause in (Cause.SIGNATURE, Cause.RECOUNT)
        forced = lied and not report.irreparable
        return _needed(known, OUT_OF_SYNC_FORCED if forced else OUT_OF_SYNC, comparison.reason)
    if known.asked_for:
        return _needed(known, CATCH_UP, "a copy was asked for")
    if plan is Plan.STOP:
        return _decision(known, Plan.STOP, comparison.reason)
    if report.irreparable:
        reason = f"the worker cannot repair its replica: {report.irreparable}"
        return _needed(known, OUT_OF_SYNC, reason)
    message = EMPTY if comparison.verdict is ReplicaVerdict.EMPTY else CATCH_UP
    if plan is Plan.COPY:
        return _needed(known, message, comparison.reason)
    if plan is Plan.UP_TO_DATE:
        return _decision(known, plan, comparison.reason)
    if known.workload is None:
        reason = f"the log does not hold all that follows position {report.position}"
        return _needed(known, message, reason)
    return _faster(known, known.workload, message)


def log_lines(decision: Decision) -> tuple[str, ...]:
    """Return the log lines of a decision, in order; the reason comes before a catch up."""
    if decision.message == CATCH_UP:
        return decision.reason, decision.message
    return (decision.message,) if decision.message else ()


def _needed(known: PlanInput, message: str, reason: str) -> Decision:
    """Decide on a necessary copy: it is made, or the replica stops."""
    replay = None if known.workload is None else known.replay_pace.describe(known.workload)
    obstacle, complaint = _obstacle(known)
    if obstacle:
        reason = f"{reason}; no copy: {obstacle}"
        if known.comparison.cause is Cause.ADMITTED:  # its worker writes to no such table
            reason = f"{reason}; the other tables go on"
            return _decision(known, Plan.REPLAY, reason, message=complaint, replay=replay)
        return _decision(known, Plan.STOP, reason, message=complaint, replay=replay)
    donor, copy = _offer(known)
    reason = f"{reason}; copy from {donor} is estimated at {_s(copy.seconds)}"
    return _decision(
        known, Plan.COPY, reason, message=message, replay=replay, copy=copy, donor=donor
    )


def _faster(known: PlanInput, workload: Workload, message: str) -> Decision:
    """Let replay and copy compete; a tie is a replay."""
    replay = known.replay_pace.describe(workload)
    factor = known.full_replication_time_factor
    minimum_s = known.min_time_to_consider_full_replication_s
    behind = f"{known.comparison.behind:,} transactions to apply, estimated at {_s(replay.seconds)}"
    if replay.seconds <= minimum_s:
        reason = f"{behind}; up to {_s(minimum_s)} no copy is considered"
        return _decision(known, Plan.REPLAY, reason, replay=replay)
    obstacle, complaint = _obstacle(known)
    if obstacle:
        reason = f"{behind}; no copy: {obstacle}"
        return _decision(known, Plan.REPLAY, reason, message=complaint, replay=replay)
    donor, copy = _offer(known)
    numbers = (
        f"{behind}; copy from {donor} at {_s(copy.seconds)} x {factor:g} = "
        f"{_s(copy.seconds * factor)}, least {_s(minimum_s)}"
    )
    if prefers_copy(replay.seconds, copy.seconds, factor=factor, minimum_s=minimum_s):
        return _decision(
            known,
            Plan.COPY,
            f"copy is preferred: {numbers}",
            message=message,
            replay=replay,
            copy=copy,
            donor=donor,
        )
    return _decision(
        known, Plan.REPLAY, f"replay is preferred: {numbers}", replay=replay, copy=copy
    )


def _obstacle(known: PlanInput) -> tuple[str, str]:
    """Return why nothing can be copied now, empty = it can, and the log message for it."""
    if known.last_healthy:
        return "it is the last healthy replica, a copy would end reads and writes", ""
    if known.comparison.verdict is ReplicaVerdict.EMPTY and not known.others_not_empty:
        return ALL_EMPTY, ""
    if not known.donors:
        return no_donor(known.contested), NO_SIZE
    if all(known.missing_bytes.get(donor) is None for donor in known.donors):
        return NO_SIZE, NO_SIZE
    return "", ""


def no_donor(contested: Sequence[str]) -> str:
    """Return that there is no donor, and which sites an operator could name."""
    if not contested:
        return "no healthy donor"
    sites = ", ".join(contested)
    return f"no healthy donor; contested: {sites}; name the one that is right (--donor)"


def _offer(known: PlanInput) -> tuple[str, Estimate]:
    """Return the best donor with a known size, and the estimate of a copy from it."""
    for donor in known.donors:
        size_bytes = known.missing_bytes.get(donor)
        if size_bytes is not None:
            return donor, known.transfer_pace.describe(size_bytes, donor)
    raise AssertionError("a copy without a donor of known size")


def _decision(
    known: PlanInput,
    plan: Plan,
    reason: str,
    *,
    message: str = "",
    replay: Estimate | None = None,
    copy: Estimate | None = None,
    donor: str = "",
) -> Decision:
    return Decision(
        worker_id=known.report.worker_id,
        plan=plan.value,
        reason=reason,
        message=message,
        replay=replay,
        copy=copy,
        behind=known.comparison.behind,
        donor=donor,
        only=known.report.only,
    )


def _s(seconds: float) -> str:
    return f"{seconds:,.1f} s"
