"""The choice between replay, copy and stop, case by case."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from sparktxlog.catchup.comparison import Cause, Comparison, LogView, compare, judge
from sparktxlog.catchup.estimates import ReplayPace, TransferPace, Workload
from sparktxlog.catchup.opinions import Dissent
from sparktxlog.catchup.planner import (
    CATCH_UP,
    EMPTY,
    NO_SIZE,
    OUT_OF_SYNC,
    OUT_OF_SYNC_FORCED,
    Plan,
    PlanInput,
    decide,
    first_plan,
    log_lines,
    prefers_copy,
    wants_sizes,
)
from sparktxlog.model.report import ReplicaVerdict, TableState, WorkerReport
from sparktxlog.model.signature import TableSignature

HASH = "ab" * 32
#: One byte a second, so that bytes are seconds.
SECONDS = TransferPace(net_speed_bits_per_sec=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactly(ReplayPace):
    """A pace that says what the test wants."""

    seconds: float

    def estimate(self, workload: Workload) -> float:
        return self.seconds


def report(**changes: Any) -> WorkerReport:
    table = TableState(version=1, signature=TableSignature(rows=1), schema="s")
    base = WorkerReport(
        worker_id="w",
        node_id="T",
        log_id="l",
        epoch=1,
        position=100,
        chain_hash=HASH,
        tables={"t": table},
    )
    return replace(base, **changes)


def known(
    verdict: str = "IN_SYNC", cause: str = "none", behind: int = 50, **more: Any
) -> PlanInput:
    """A replica 50 behind, with one donor: replay 1,000 s, copy 100 s."""
    comparison = Comparison(
        verdict=ReplicaVerdict(verdict), cause=Cause(cause), reason="so it is", behind=behind
    )
    values: dict[str, Any] = {
        "report": report(),
        "comparison": comparison,
        "workload": Workload(transactions=behind),
        "donors": ("B",),
        "missing_bytes": {"B": 100},
        "replay_pace": Exactly(seconds=1_000.0),
        "transfer_pace": SECONDS,
    }
    return PlanInput(**(values | more))


def competing(incremental_s: float, replication_s: int, **more: Any) -> PlanInput:
    return known(
        replay_pace=Exactly(seconds=incremental_s), missing_bytes={"B": replication_s}, **more
    )


# -- replay and copy compete -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("incremental_s", "replication_s", "factor", "minimum_s", "copies"),
    [
        (780, 600, 1.3, 600, False),  # Equality is a replay
        (781, 600, 1.3, 600, True),
        (600, 1, 1.3, 600, False),  # Equality is a replay
        (601, 1, 1.3, 600, True),
        (2, 1, 1.3, 600, False),  # A second gained does not count
        (2, 1, 1.3, 0, True),
        (1.3, 1, 1.3, 0, False),
        (700, 10_000, 1.3, 600, False),  # slow network
        (700, 700, 1.0, 600, False),
        (701, 700, 1.0, 600, True),
        (0, 0, 1.3, 0, False),
    ],
)
def test_copy_only_if_both_are_strictly_exceeded(
    incremental_s: float, replication_s: int, factor: float, minimum_s: float, copies: bool
) -> None:
    assert prefers_copy(incremental_s, replication_s, factor=factor, minimum_s=minimum_s) is copies
    decision = decide(
        competing(
            incremental_s,
            replication_s,
            full_replication_time_factor=factor,
            min_time_to_consider_full_replication_s=minimum_s,
        )
    )
    assert decision.plan == ("copy" if copies else "replay")


def test_the_decision_holds_both_estimates_and_the_numbers() -> None:
    for seconds, plan in ((780.0, "replay"), (781.0, "copy")):
        decision = decide(competing(seconds, 600))
        assert decision.plan == plan
        assert decision.replay is not None
        assert decision.copy is not None
        assert (decision.replay.seconds, decision.copy.seconds) == (seconds, 600.0)
        for number in (f"{seconds:.1f} s", "600.0 s", "1.3", "780.0 s", "50 transactions"):
            assert number in decision.reason
        assert (decision.worker_id, decision.behind) == ("w", 50)


def test_a_catch_up_is_logged_after_its_reason() -> None:
    decision = decide(known())
    assert (decision.plan, decision.message, decision.donor) == ("copy", CATCH_UP, "B")
    first, second = log_lines(decision)
    assert first.startswith("copy is preferred: 50 transactions")
    assert second == "Replicating (catch up)"
    assert log_lines(decide(competing(10.0, 1))) == ()


def test_up_to_date_needs_nothing() -> None:
    decision = decide(known(behind=0))
    assert (decision.plan, decision.message, decision.copy) == ("up-to-date", "", None)


# -- unknown states --------------------------------------------------------------------------------

LOG = LogView(log_id="l", position=150, published=150, chain_hash=HASH)
OTHERS = Dissent(
    position=100,
    tables=("t",),
    signature=TableSignature(rows=1).to_text(),
    others={"B": "9:0:0", "C": "9:0:0"},
)
STANDING = TableState(
    version=1, signature=TableSignature(rows=1), schema="s", diverged="foreign commit 4"
)


@pytest.mark.parametrize(
    ("changes", "log", "message", "reason"),
    [
        ({"irreparable": "cannot read t"}, {}, OUT_OF_SYNC, "cannot read t"),
        ({"tables": {"t": STANDING}}, {}, OUT_OF_SYNC, "foreign commit 4"),
        ({}, {"chain_hash": "cd" * 32}, OUT_OF_SYNC, "another history"),
        ({}, {"chain_hash": None}, OUT_OF_SYNC, "no run of this log ends"),
        ({}, {"conviction": OTHERS}, OUT_OF_SYNC_FORCED, "most sites (B, C) have 9:0:0"),
        ({"tables": {"t": STANDING}}, {"recounted": {"t"}}, OUT_OF_SYNC_FORCED, "foreign commit 4"),
        ({"irreparable": "broken"}, {"conviction": OTHERS}, OUT_OF_SYNC, "most sites"),
    ],
)
def test_what_is_no_known_state_is_copied_whatever_it_costs(
    changes: dict[str, Any], log: dict[str, Any], message: str, reason: str
) -> None:
    told = report(**changes)
    log = dict(log)
    conviction = log.pop("conviction", None)
    comparison = judge(compare(told, replace(LOG, **log)), conviction, None)
    # A replay of a second would win any competition.
    decision = decide(known(report=told, comparison=comparison, replay_pace=Exactly(seconds=1.0)))
    assert (decision.plan, decision.message, decision.donor) == ("copy", message, "B")
    assert reason in decision.reason
    assert log_lines(decision) == (message,)


def test_what_a_success_was_reported_of_is_forced_and_nothing_else() -> None:
    forced = {
        cause
        for cause in Cause
        if decide(known("DIVERGED", cause.value)).message == OUT_OF_SYNC_FORCED
    }
    assert forced == {Cause.SIGNATURE, Cause.RECOUNT}


def test_who_could_be_named_as_a_donor_is_told() -> None:
    for plan in (
        known(cause="expired", donors=(), contested=("B", "C")),
        known(asked_for=True, donors=(), contested=("B", "C")),
    ):
        decision = decide(plan)
        assert decision.plan == "stop"
        assert "contested: B, C; name the one" in decision.reason and "--donor" in decision.reason


def test_a_known_state_is_replayed_exactly_from_where_it_is() -> None:
    comparison = compare(report(), LOG)
    decision = decide(known(comparison=comparison, replay_pace=Exactly(seconds=1.0)))
    assert (decision.plan, decision.behind) == ("replay", 50)


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.NONE])
def test_without_a_donor_only_a_table_that_stands_still_lets_the_others_go_on(cause: Cause) -> None:
    decision = decide(known("DIVERGED", cause.value, donors=()))
    goes_on = cause is Cause.ADMITTED
    assert decision.plan == ("replay" if goes_on else "stop")
    assert ("the other tables go on" in decision.reason) is goes_on


@pytest.mark.parametrize(("verdict", "cause"), [("AHEAD", "beyond"), ("FOREIGN", "log_id")])
def test_ahead_and_foreign_are_never_overwritten_by_themselves(verdict: str, cause: str) -> None:
    stopped = decide(known(verdict, cause, report=report(irreparable="x")))
    assert (stopped.plan, stopped.reason, stopped.message) == ("stop", "so it is", "")
    assert decide(known(verdict, cause, asked_for=True)).plan == "copy"


# -- empty replicas --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "plan", "message"),
    [
        ({"others_not_empty": True}, "copy", EMPTY),
        ({"others_not_empty": True, "workload": None}, "copy", EMPTY),
        ({"others_not_empty": True, "replay_pace": Exactly(seconds=5.0)}, "replay", ""),
        ({"others_not_empty": False, "donors": ()}, "replay", ""),
        ({"others_not_empty": False}, "replay", ""),
        ({"others_not_empty": False, "donors": (), "workload": None}, "stop", ""),
        ({"others_not_empty": True, "donors": (), "workload": None}, "stop", NO_SIZE),
    ],
)
def test_an_empty_replica(more: dict[str, Any], plan: str, message: str) -> None:
    decision = decide(known("EMPTY", **more))
    assert (decision.plan, decision.message) == (plan, message)
    if plan == "stop" and not more["others_not_empty"]:
        assert "first run a worker at a site with the log from" in decision.reason


# -- nobody to copy from ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nobody", [{"donors": ()}, {"missing_bytes": {}}, {"missing_bytes": {"B": None}}]
)
def test_without_a_size_replay_is_chosen_if_the_log_still_has_it(nobody: dict[str, Any]) -> None:
    decision = decide(known(**nobody))
    assert (decision.plan, decision.message) == ("replay", "Couldn't find storage size")
    for needed in (
        known(workload=None, **nobody),
        known(cause="expired", **nobody),
        known("DIVERGED", "hash", **nobody),
    ):
        decision = decide(needed)
        assert (decision.plan, decision.message) == ("stop", NO_SIZE)
        assert "no copy: " in decision.reason


def test_nobody_is_missed_where_no_copy_is_considered() -> None:
    assert decide(competing(600.0, 1, donors=())).message == ""


def test_a_donor_that_cannot_say_its_size_is_passed_over() -> None:
    decision = decide(known(donors=("B", "C"), missing_bytes={"B": None, "C": 100}))
    assert (decision.plan, decision.donor) == ("copy", "C")


def test_the_last_healthy_replica_is_never_replaced() -> None:
    assert decide(known(last_healthy=True)).plan == "replay"
    decision = decide(known(last_healthy=True, asked_for=True))
    assert (decision.plan, decision.message) == ("stop", "")
    assert "last healthy" in decision.reason
    assert decide(known("DIVERGED", "hash", last_healthy=True)).plan == "stop"


@pytest.mark.parametrize("more", [{"cause": "expired"}, {"workload": None}])
def test_an_expired_position_is_copied(more: dict[str, Any]) -> None:
    decision = decide(known(replay_pace=Exactly(seconds=1.0), **more))
    assert (decision.plan, decision.message) == ("copy", CATCH_UP)
    assert len(log_lines(decision)) == 2


def test_what_is_asked_for_is_done_even_if_it_is_slower() -> None:
    assert decide(competing(1.0, 10_000, asked_for=True)).plan == "copy"
    assert decide(known("DIVERGED", "signature", asked_for=True)).message == OUT_OF_SYNC_FORCED


# -- before sizes are known ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "plan", "sizes"),
    [
        (known(), "replay", True),
        (competing(600.0, 1), "replay", False),
        (known(behind=0), "up-to-date", False),
        (known("EMPTY"), "replay", True),
        (known("DIVERGED", "hash"), "copy", True),
        (known(cause="expired"), "copy", True),
        (known("AHEAD", "beyond"), "stop", False),
        (known("FOREIGN", "log_id"), "stop", False),
        (known("FOREIGN", "log_id", asked_for=True), "stop", True),
        (known(behind=0, report=report(irreparable="x")), "up-to-date", True),
        (known(workload=None), "replay", True),
        (known("AHEAD", "beyond", workload=None), "stop", False),
        (known(behind=0, workload=None), "up-to-date", False),
    ],
)
def test_the_first_plan_and_who_needs_sizes(one: PlanInput, plan: str, sizes: bool) -> None:
    assert first_plan(one.comparison) is Plan(plan)
    assert wants_sizes(one) is sizes
    if not sizes:
        # Nothing about donors can change the decision then.
        assert decide(replace(one, donors=(), missing_bytes={})).plan == decide(one).plan
