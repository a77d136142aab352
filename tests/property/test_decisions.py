"""Whatever goes in, a decision keeps the rules that protect data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import decode, encode

from sparktxlog.catchup.comparison import Cause, Comparison
from sparktxlog.catchup.estimates import ReplayPace, TransferPace, Workload
from sparktxlog.catchup.planner import CATCH_UP, NO_SIZE, PlanInput, decide, log_lines, wants_sizes
from sparktxlog.model.copying import Decision
from sparktxlog.model.report import ReplicaVerdict, WorkerReport

CAUSES = {
    ReplicaVerdict.IN_SYNC: (Cause.NONE, Cause.EXPIRED, Cause.CONTESTED),
    ReplicaVerdict.EMPTY: (Cause.NONE, Cause.EXPIRED),
    ReplicaVerdict.AHEAD: (Cause.BEYOND,),
    ReplicaVerdict.FOREIGN: (Cause.LOG_ID,),
    ReplicaVerdict.DIVERGED: (
        Cause.NO_RUN_END,
        Cause.HASH,
        Cause.ADMITTED,
        Cause.SIGNATURE,
        Cause.RECOUNT,
    ),
}
COMPARISON = st.sampled_from(list(ReplicaVerdict)).flatmap(
    lambda verdict: st.builds(
        Comparison,
        verdict=st.just(verdict),
        cause=st.sampled_from(CAUSES[verdict]),
        reason=st.just("why"),
        behind=st.integers(0, 10**9),
    )
)
REPORT = st.builds(
    WorkerReport,
    worker_id=st.just("w"),
    node_id=st.just("T"),
    log_id=st.just("l"),
    epoch=st.just(1),
    position=st.integers(0, 10**9),
    chain_hash=st.just("ab"),
    tables=st.just({}),
    engine=st.just(""),
    reported_at=st.just(0),
    pace=st.none(),
    irreparable=st.sampled_from(["", "broken"]),
    copied_from=st.just(""),
)
WORKLOAD = st.builds(
    Workload,
    batches=st.integers(0, 10**6),
    merges=st.integers(0, 10**5),
    transactions=st.integers(0, 10**9),
    appended_bytes=st.integers(0, 10**13),
    merged_bytes=st.integers(0, 10**13),
)
INPUT = st.builds(
    PlanInput,
    report=REPORT,
    comparison=COMPARISON,
    workload=st.none() | WORKLOAD,
    donors=st.sampled_from([(), ("B",), ("B", "C")]),
    missing_bytes=st.dictionaries(
        st.sampled_from(["B", "C", "D"]), st.none() | st.integers(0, 10**13)
    ),
    replay_pace=st.just(ReplayPace()),
    transfer_pace=st.just(TransferPace()),
    full_replication_time_factor=st.floats(0.01, 1_000),
    min_time_to_consider_full_replication_s=st.floats(0, 10**7),
    others_not_empty=st.booleans(),
    contested=st.sampled_from([(), ("B",)]),
    last_healthy=st.booleans(),
    asked_for=st.booleans(),
)


def copies_for_a_reason(known: PlanInput, decision: Decision) -> bool:
    verdict, cause = known.comparison.verdict, known.comparison.cause
    if known.asked_for or verdict is ReplicaVerdict.DIVERGED:
        return True
    if verdict in (ReplicaVerdict.AHEAD, ReplicaVerdict.FOREIGN):
        return False
    if known.report.irreparable or cause is Cause.EXPIRED or known.workload is None:
        return True
    assert decision.replay is not None
    assert decision.copy is not None
    enough = decision.copy.seconds * known.full_replication_time_factor
    least = known.min_time_to_consider_full_replication_s
    return decision.replay.seconds > enough and decision.replay.seconds > least


@settings(max_examples=500, deadline=None)
@given(INPUT)
def test_a_decision_keeps_the_rules(known: PlanInput) -> None:
    decision = decide(known)
    assert decision.reason
    if decision.plan == "copy":
        assert not known.last_healthy
        assert known.missing_bytes[decision.donor] is not None
        assert decision.donor in known.donors
        assert decision.copy is not None
        assert decision.message not in ("", NO_SIZE)
        assert copies_for_a_reason(known, decision)
        lines = log_lines(decision)
        assert lines[-1] == decision.message
        assert len(lines) == (2 if decision.message == CATCH_UP else 1)
    else:
        assert decision.donor == ""
        assert decision.message in ("", NO_SIZE)
    if decision.plan == "replay":
        cause = known.comparison.cause
        # The worker says itself which of its tables stand still, and lets the others go on.
        assert cause is Cause.ADMITTED or known.workload is not None
        assert cause in (Cause.NONE, Cause.CONTESTED, Cause.ADMITTED)
        assert cause is not Cause.ADMITTED or decision.copy is None


@settings(max_examples=300, deadline=None)
@given(INPUT, st.data())
def test_who_needs_no_sizes_decides_the_same_with_any(known: PlanInput, data: Any) -> None:
    if not wants_sizes(known):
        other = data.draw(INPUT)
        with_other = replace(known, donors=other.donors, missing_bytes=other.missing_bytes)
        assert decide(with_other) == decide(known)


FACTOR = st.floats(0.02, 50)


@settings(max_examples=200, deadline=None)
@given(WORKLOAD, FACTOR, FACTOR, st.integers(6, 20), st.floats(1e-6, 1e12))
def test_a_steady_pace_is_learned_and_one_outlier_is_not(
    workload: Workload, plain: float, keyed: float, times: int, outlier: float
) -> None:
    plain_work = Workload(batches=10, transactions=100_000)
    keyed_work = Workload(merges=4, merged_bytes=10_000_000)
    pace = ReplayPace()
    for _ in range(times):
        pace = pace.learn(plain_work, plain_work.plain_s() * plain)
        pace = pace.learn(keyed_work, keyed_work.keyed_s() * keyed)
    pace = pace.learn(plain_work, outlier)
    expected = workload.plain_s() * plain + workload.keyed_s() * keyed
    assert abs(pace.estimate(workload) - expected) <= 1e-6 * max(expected, 1.0)
    assert decode(encode(pace), type=ReplayPace) == pace
