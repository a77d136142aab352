"""Who may lend its replica."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.catchup.donors import Candidate, choose_donors
from sparktxlog.model.report import ReplicaVerdict

IN_SYNC = Candidate(
    node_id="A",
    worker_id="wA",
    verdict=ReplicaVerdict.IN_SYNC,
    position=100,
    alive=True,
    linked=True,
)


def candidate(node: str, position: int = 100, round_trip_s: float = 0.0) -> Candidate:
    return replace(
        IN_SYNC, node_id=node, worker_id=f"w{node}", position=position, round_trip_s=round_trip_s
    )


def test_the_one_furthest_ahead_comes_first() -> None:
    candidates = [candidate("A", 90), candidate("B", 120, 9.0), candidate("C", 110)]
    assert choose_donors("T", 0, candidates, 3) == ["B", "C", "A"]
    assert choose_donors("T", 0, candidates, 1) == ["B"]
    assert choose_donors("T", 0, candidates, 0) == []


def test_ties_go_to_the_nearest_then_to_the_least_id() -> None:
    candidates = [candidate("C", 100, 0.2), candidate("B", 100, 0.2), candidate("A", 100, 0.3)]
    assert choose_donors("T", 0, candidates, 3) == ["B", "C", "A"]


def test_the_target_never_lends_to_itself_and_a_node_counts_once() -> None:
    twice = replace(candidate("A", 120), worker_id="second")
    assert choose_donors("A", 0, [candidate("A"), twice, candidate("B")], 3) == ["B"]
    assert choose_donors("B", 0, [candidate("A"), twice], 3) == ["A"]


@pytest.mark.parametrize(
    "change",
    [{"linked": False}, {"position": 99}]
    + [{"verdict": verdict} for verdict in ReplicaVerdict if verdict is not ReplicaVerdict.IN_SYNC],
)
def test_who_is_not_up_to_date_and_reachable_does_not_lend(change: dict[str, object]) -> None:
    assert choose_donors("T", 100, [replace(IN_SYNC, **change)], 3) == []  # type: ignore[arg-type]
    assert choose_donors("T", 100, [IN_SYNC], 3) == ["A"]


def test_a_contested_replica_lends_only_if_somebody_names_it() -> None:
    candidates = [replace(candidate("A", 120), contested=True), candidate("B")]
    assert choose_donors("T", 0, candidates, 3) == ["B"]
    assert choose_donors("T", 0, candidates, 3, "A") == ["A"]
    assert choose_donors("T", 0, candidates, 3, "C") == []
    wrong = replace(candidate("A"), verdict=ReplicaVerdict.DIVERGED)
    assert choose_donors("T", 0, [wrong], 3, "A") == []


def test_a_diverged_target_takes_any_position() -> None:
    assert choose_donors("T", 0, [candidate("A", 5)], 3) == ["A"]


def test_a_worker_that_does_not_run_now_lends_after_those_that_do() -> None:
    candidates = [replace(candidate("A"), alive=False), candidate("B", round_trip_s=1.0)]
    assert choose_donors("T", 0, candidates, 3) == ["B", "A"]
    assert choose_donors("T", 0, candidates[:1], 3) == ["A"]


def test_a_replica_of_the_targets_site_goes_first_and_lends_by_its_name() -> None:
    """Source and target of a copy may both be workers of one node."""
    far = candidate("B", 120)
    near = replace(candidate("A", 100, 9.0), name="reports", here=True)
    main = replace(candidate("A", 100), here=True)
    assert choose_donors("A", 100, [far, near, main], 3) == ["A/reports", "B"]
    assert choose_donors("A/reports", 0, [far, near, main], 3) == ["A", "B"]
    # The log cannot be replayed from where it is.
    assert choose_donors("A", 0, [far, replace(near, here=False)], 3) == ["B", "A/reports"]
    assert choose_donors("A", 0, [far, near], 3, "A/reports") == ["A/reports"]
    assert choose_donors("A", 101, [near], 3) == []
