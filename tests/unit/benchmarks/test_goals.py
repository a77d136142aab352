"""The table of goals: ratios to peers, what is met, and what nobody measured."""

from __future__ import annotations

import pytest
from benchmarks.goals import GOALS, Goal, goal_table
from benchmarks.peers.suite import UNITS
from benchmarks.peers.tables import peer_table
from benchmarks.results import Figure, informing, markdown, spread

CPU = "batches of 1,000, CPU of servers and client for 1,000"


def _row(table: str, quantity: str) -> list[str]:
    lines = [line for line in table.splitlines() if line.startswith(f"| {quantity} ")]
    assert len(lines) == 1
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def _table(*figures: Figure) -> str:
    return goal_table({figure.name: figure for figure in figures})


@pytest.mark.parametrize(("peer", "met"), [(20.0, "yes"), (10.0, "**no**")])
def test_a_goal_of_a_ratio_is_judged_by_the_peer_of_the_same_run(peer: float, met: str) -> None:
    ours = spread(f"{CPU}: sparktxlog", [9.0, 16.0, 17.0], "ms")
    table = _table(ours, spread(f"{CPU}: Kafka, fsync", [peer], "ms"))
    row = _row(table, "CPU for 1,000 in batches, three nodes and client, ms")
    assert row[1:] == ["16", "Kafka, fsync", f"{peer:g}", f"{16 / peer:.2f}", "<= 0.9 x", met]


def test_a_ratio_without_its_peer_is_not_judged() -> None:
    row = _row(
        _table(informing(f"{CPU}: sparktxlog", 16, "ms")),
        "CPU for 1,000 in batches, three nodes and client, ms",
    )
    assert row[1:] == ["16", "Kafka, fsync", "", "", "<= 0.9 x", ""]


def test_what_was_not_measured_says_what_measures_it() -> None:
    table = _table(informing(f"{CPU}: sparktxlog", 16, "ms"))
    assert _row(table, "publish lag at full load, s")[1] == "not measured: --only publishing"
    assert _table(informing("something else", 1, "ms")) == ""


def test_a_goal_of_our_own_value_needs_no_peer() -> None:
    goal = Goal(quantity="q", ours="o", by="peers", at_least=250)
    assert (goal.met(250, None), goal.met(249, 9.0)) == ("yes", "**no**")
    assert Goal(quantity="q", ours="o", by="peers").met(1, 1) == ""


def test_rows_of_the_suite_name_figures_that_it_makes() -> None:
    for goal in GOALS:
        if goal.by == "peers":
            assert goal.ours.rpartition(": ")[0] in UNITS, goal.ours
            assert not goal.peer or goal.peer.rpartition(": ")[0] in UNITS, goal.peer


def test_turns_show_their_median_and_their_ends() -> None:
    made = spread("f", [3.0, 1.0, 20_000.4], "ms")
    assert (made.value, made.least, made.most) == (3.0, 1.0, 20_000.4)
    assert "| f | 3 (1 to 20,000) | ms |" in markdown([made])


def test_peers_stand_side_by_side_and_what_one_lacks_stays_empty() -> None:
    turns = spread(f"{CPU}: sparktxlog", [1.0, 2.0, 4.5678], "ms")
    once = spread(f"{CPU}: etcd", [61_234.0], "ms")
    idle = spread("idle, CPU of the servers in a second: etcd", [7.0], "ms")
    found = peer_table([turns, once, idle, informing("other", 1, "ms")], UNITS)
    assert found.splitlines() == [
        "| median of turns (least to most) | sparktxlog | etcd |",
        "|---|---:|---:|",
        f"| {CPU}, ms | 2 (1 to 4.57) | 61,200 |",
        "| idle, CPU of the servers in a second, ms |  | 7 |",
    ]
    assert peer_table([informing("other", 1, "ms")], UNITS) == ""
