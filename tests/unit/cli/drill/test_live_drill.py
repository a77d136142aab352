"""What a drill on a running cluster concludes from the answers of its nodes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.cli.all_nodes import NodeAnswer
from sparktxlog.cli.drill import live_drill
from sparktxlog.cli.drill.drill_report import DrillReport
from sparktxlog.cli.drill.live_drill import (
    examine,
    rehearse_feed_end,
    rehearse_restore,
    run_live,
)
from sparktxlog.errors import TransportError

SITES = ("A", "B", "C")


def answer(name: str, *, only_there: int = 0, voters: str = "ABC", **changes: Any) -> NodeAnswer:
    """Return what a node says: what only B has, and who would vote without a site."""
    status = {
        "phase": "NORMAL",
        "position": 15,
        "paused": False,
        "replicas": [{"node_id": site, "verdict": "IN_SYNC"} for site in SITES],
    }
    survival = [
        {
            "site": site,
            "ordered": 15,
            "ordered_only_there": 0,
            "accepted_only_there": only_there if site == "B" else 0,
            "voters": (left := [voter for voter in voters if voter != site]),
            "goes_on": len(left) > 1,
        }
        for site in SITES
    ]
    return NodeAnswer(node=name, url="", answer={"status": status | changes, "survival": survival})


def drilled(*answers: NodeAnswer, evicts: bool = True) -> DrillReport:
    report = DrillReport(began_at=1, sites=list(SITES), suspect_timeout_s=4.0, evicts=evicts)
    examine(answers, report)
    return report


def test_a_whole_cluster_passes() -> None:
    report = drilled(*map(answer, SITES))
    assert report.passed and report.verdict().startswith("Passed: the loss of any one site now")
    assert [(one.name, one.lost, one.shown) for one in report.rehearsals] == [
        (f"loss of {site}", 0, 15) for site in SITES
    ]
    assert "position 15" in report.markdown()
    assert "go on after about suspect-timeout (4 s)" in report.markdown()


def test_a_guard_says_without_which_site_the_others_go_on() -> None:
    guard = [["A", "B"], ["B", "C"]]
    report = DrillReport(began_at=1, sites=list(SITES), suspect_timeout_s=4.0, guard=guard)
    assert [site for site in ("A", "B", "C") if report.goes_on(site)] == ["A", "C"]
    examine(list(map(answer, SITES)), report)
    assert "`sparktxlog peer remove B` (eviction-guard)." in report.markdown()


def test_with_manual_eviction_somebody_must_remove_the_lost_site() -> None:
    text = drilled(*map(answer, SITES), evicts=False).markdown()
    assert "wait until somebody runs `sparktxlog peer remove B`" in text
    assert "suspect-timeout" not in text


def test_what_only_one_site_has_would_be_lost() -> None:
    # A has heard of more of B's than C; what B says of itself does not count.
    report = drilled(answer("A", only_there=2), answer("B", only_there=9), answer("C"))
    assert [(one.lost, one.shown) for one in report.rehearsals] == [(0, 15), (2, 17), (0, 15)]
    assert report.verdict() == "FAILED: 2 transactions are at one site only"


def test_the_only_node_says_itself_what_its_loss_would_lose() -> None:
    """As `sparktxlog survival` does; nothing else could say it, and "0 of 0" is not so."""
    alone = answer("A", voters="A")
    alone.answer["survival"][0]["ordered_only_there"] = 15
    (of_a, *_) = drilled(alone).rehearsals
    assert (of_a.lost, of_a.shown) == (15, 15)
    assert "no other node with data answers" in of_a.problems


def test_a_node_that_is_away_leaves_no_majority_and_paused_ones_no_writers() -> None:
    away = NodeAnswer(node="C", url="", error=TransportError("no node answers"))
    report = drilled(answer("A", voters="AB"), answer("B", voters="AB", paused=True), away)
    of_a, of_b, of_c = ("; ".join(one.problems) for one in report.rehearsals)
    assert "node C does not answer" in of_a
    assert "the others that answer (B) would have no majority" in of_a
    assert "its writers would find no node: B is paused" in of_a
    assert "(A) would have no majority" in of_b and "writers" not in of_b
    assert "majority" not in of_c and not report.passed
    # Their loss is not survived, so nobody goes on by himself or by a removal.
    went_on = [one.what for one in report.rehearsals]
    assert all("nothing is ordered any more" in text for text in went_on[:2])
    assert "the others go on" in went_on[2]


def test_a_site_whose_others_are_witnesses_is_said_to_be_alone() -> None:
    witness = NodeAnswer(
        node="W",
        url="",
        answer={
            "status": {"phase": "WITNESS", "position": 0, "paused": False, "replicas": []},
            "survival": [],
        },
    )
    of_a, _, _ = drilled(answer("A"), witness).rehearsals
    assert "no other node with data answers" in of_a.problems


@pytest.mark.parametrize("is_there", [True, False])
def test_nobody_relies_on_a_follower(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is away is no problem, and one that answers takes no writers."""
    told = answer("F", phase="FOLLOWING")
    follower = told if is_there else replace(told, answer={}, error=TransportError("gone"))
    roster = [{"id": name, "witness": False, "follower": name == "F"} for name in "ABCF"]
    epochs = {"roster": roster, "suspect_timeout": 4.0, "eviction": "auto"}
    monkeypatch.setattr(live_drill, "NodeApi", lambda url: SimpleNamespace(get=lambda _: epochs))
    found = [*map(answer, SITES), follower]
    monkeypatch.setattr(live_drill, "ask_all", lambda *_: found)
    report = run_live("")
    assert report.passed and report.sites == list(SITES)
    found[1:3] = [answer("B", paused=True), answer("C", paused=True)]
    of_a, *_ = run_live("").rehearsals
    assert of_a.problems == ["its writers would find no node: B is paused, C is paused"]


def test_data_that_only_one_site_has_would_be_lost() -> None:
    """`sparktxlog survival` says NO of it, too: both judge by `health.survival`."""
    alone = answer("B")
    assert alone.answer is not None
    for one in alone.answer["survival"]:
        one |= {"rows_held_by": [] if one["site"] == "A" else ["A"], "tables_only_there": []}
    report = drilled(answer("A"), alone, answer("C"))
    of_a, of_b, _ = ("; ".join(one.problems) for one in report.rehearsals)
    assert "no other site that answers has all rows" in of_a and not of_b
    assert not report.passed and "FAILED: loss of A: no other site" in report.verdict()


def test_a_restore_tells_its_time_what_differs_and_whether_the_log_leads_on() -> None:
    image = {"image": "one", "position": 10, "log_id": "old"}
    good = rehearse_restore(15, ["l", "old"], image, 10, lambda: (1.234, {}))
    assert (good.pause_s, good.problems) == ({"restore": 1.23}, [])
    assert "5 transactions behind" in good.what
    bad = rehearse_restore(15, ["l", "old"], image, 11, lambda: (1.0, {"t": ("1:a", "1:b")}))
    assert bad.problems[0] == "table t: 1:a recorded, 1:b counted"
    assert "the log begins after 11" in bad.problems[1]


def test_what_another_cluster_wrote_is_a_problem_and_is_not_restored() -> None:
    """It would restore well, and would have nothing of this cluster."""

    def run() -> Any:
        raise AssertionError("it is not restored")

    feed = {"log_id": "x", "position": 90, "lag_s": 0.0, "what": "read"}
    (problem,) = rehearse_feed_end(15, "l", feed, run).problems
    assert problem.startswith("the feed is of log x, and the cluster has l:")
    image = {"image": "one", "position": 10, "log_id": "x"}
    (problem,) = rehearse_restore(15, ["l", "old"], image, 10, run).problems
    assert problem.startswith("image one is of log x, and the cluster has l after old:")
    good = rehearse_feed_end(95, "x", feed, lambda: (2.5, {}))
    assert (good.problems, good.pause_s) == ([], {"restore": 2.5})
    assert "5 transactions behind" in good.what
