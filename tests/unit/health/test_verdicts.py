"""One verdict: a table of states, and what each reader says of each of them.

`tests/testdata/verdicts.json` has a status with all well, and for each state what differs in it; a
field that is null is missing, as in the status of an older release.  `docs/verdicts.md` is made of
the same table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import invoke
from tests.support.judged_states import alerts_of, compared, failed_drills, lost_at, with_one_node

from sparktxlog.health.cluster_status import ClusterStatus
from sparktxlog.health.readiness import readiness
from sparktxlog.health.site_progress import progress_of
from sparktxlog.health.transaction_words import sites_of
from sparktxlog.health.verdicts import (
    ALARM,
    NOTE,
    WARNING,
    ClusterState,
    banner_of,
    findings,
    furthest_lines,
    judge,
    judge_sites,
    replica_lines,
)
from sparktxlog.runtime.metrics import verdict_metrics

TABLE = json.loads((Path(__file__).parents[2] / "testdata" / "verdicts.json").read_text())
CASES = {one["case"]: one for one in TABLE["cases"]}


def status_of(case: dict[str, Any]) -> dict[str, Any]:
    found = TABLE["base"] | case["status"]
    return {name: value for name, value in found.items() if value is not None}


def said_of(status: dict[str, Any]) -> dict[str, Any]:
    """Return what the readers say that need no command: `why`, metrics, …"""
    verdict, progress = judge(status), progress_of(status, None)
    applied = [one for one in sites_of(status["position"], status) if not one["applied"]]
    metrics = {family.name: family.samples for family in verdict_metrics(status)}
    (state,) = [one.labels["state"] for one in metrics["sparktxlog_state"] if one.value]
    return {
        "state": verdict.word,
        "code": verdict.code,
        "text": verdict.text,
        "way_out": verdict.way_out,
        "sites": {
            sample.labels["site"]: sample.labels["code"]
            for sample in metrics["sparktxlog_site_verdict"]
        },
        "metric": state,
        "unready": [one.name for one in readiness(status) if not one.good],
        "why": applied[0]["text"] if applied else "",
        "sensor": ["differs" if progress.differs else "waits", progress.waits_for],
    }


#: Commands with an exit code that the table of states has.
COMMANDS = ("workers", "peers", "plan", "survival")


@pytest.mark.parametrize("name", CASES)
def test_each_reader_says_what_the_table_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, status, holds = CASES[name], status_of(CASES[name]), CASES[name].get("holds", {})
    with_one_node(monkeypatch, status, holds)
    exits = {command: invoke(monkeypatch, command) for command in COMMANDS}
    capsys.readouterr()
    exits["verify --compare"] = compared(monkeypatch, status).code
    said = {
        **said_of(status),
        "exit": invoke(monkeypatch, "status", "--json"),
        "exits": exits,
        "alerts": alerts_of(status),
        "survival": lost_at(status, holds),
        "drill": failed_drills(status, holds),
    }
    assert said == case["says"]
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["verdict"]["code"]) == (judge(status).word, judge(status).code)
    assert invoke(monkeypatch, "status") == case["says"]["exit"]
    words = " ".join(capsys.readouterr().out.split())
    assert " ".join(judge(status).sentence.split()) in words


@pytest.mark.parametrize("name", CASES)
def test_no_reader_contradicts_another(name: str) -> None:
    """The line of a site, its metric and the cluster's word agree, and each way out is there."""
    status = status_of(CASES[name])
    verdict, sites, lines = judge(status), judge_sites(status), replica_lines(status)
    order = list(ClusterState)
    assert all(order.index(one.state) <= order.index(verdict.state) for one in sites.values())
    assert {one["node_id"]: one["code"] for one in lines} == {
        site: one.code for site, one in sites.items()
    }
    assert {one["state"] for one in lines} <= {one.word for one in sites.values()}
    shown = ClusterStatus(status)
    assert shown.state == verdict.word and shown.sites == sites
    first, *others = banner_of(status)
    assert (first["word"], first["text"]) == (verdict.word, verdict.text)
    assert first["way_out"] == verdict.way_out
    assert verdict.text not in [one["text"] for one in others]
    assert {one["severity"] for one in others} <= {ALARM, WARNING}
    if verdict.state is not ClusterState.IN_SYNC:
        assert verdict.sentence in str(shown) and (verdict.way_out or "`" in verdict.text)


@pytest.mark.parametrize("name", CASES)
def test_no_command_says_more_than_the_judge(name: str) -> None:
    """A command about a part is never worse than `status`, and what it finds has an alert."""
    says, status = CASES[name]["says"], status_of(CASES[name])
    parts = {command: says["exits"][command] for command in says["exits"] if command != "survival"}
    if not all(peer["linked"] for peer in status["peers"]):
        assert parts.pop("peers") == 3  # it asks for links, whatever waits for them
    assert max(parts.values()) <= says["exit"]
    found = findings(status)
    if any(one.state is not ClusterState.IN_SYNC and one.severity != NOTE for one in found):
        assert says["alerts"]
    # Data that one site alone has is seen, while there are others that should have it.
    only_there = [why for why in says["survival"].values() if "no majority" not in why[0]]
    away = {one.code for one in found} & {"peer-away", "restricted"}
    alone = len([one for one in status.get("roster") or [] if not one["witness"]]) == 1
    assert not only_there or away or alone or says["exit"]
    assert says["survival"].keys() <= says["drill"].keys()


def test_the_table_has_all_that_can_be_said() -> None:
    """A verdict without a state in the table is one that no reader was asked about."""
    assert len(CASES) >= 40 and len(CASES) == len(TABLE["cases"])
    source = Path(str(judge.__code__.co_filename)).read_text()
    codes = set(re.findall(r'(?:_note|_warning)\(\s*"([a-z-]+)"', source))
    codes |= set(re.findall(r'code(?:=|, way_out = |: )"([a-z-]+)"', source))
    said = {one["says"]["code"] for one in CASES.values()}
    said |= {code for one in CASES.values() for code in one["says"]["sites"].values()}
    assert codes - said == {
        "paused",
        "uncompared",
        "upgrade",
        "peer-away",
        "slow-disk",
        "synchronous-waits",
    }


def test_a_node_that_is_away_has_a_way_out() -> None:
    """`status` and the pages show it with the warning."""
    status = status_of(CASES["a peer does not answer, and nothing waits"])
    (away,) = (one for one in findings(status) if one.code == "peer-away")
    assert away.text == "B does not answer" and "`sparktxlog peer remove B`" in away.way_out
    (away,) = (one for one in findings(status | {"phase": "JOINING"}) if one.code == "peer-away")
    assert away.way_out == "`sparktxlog peer list` says which nodes are linked."


def test_a_site_with_several_replicas_has_the_worst_of_their_verdicts() -> None:
    status = status_of({"status": {}})
    main = next(dict(one) for one in status["replicas"] if one["node_id"] == "A")
    end = main["position"]

    def sites(**changes: Any) -> tuple[str, str, str]:
        other = main | {"name": "reports", "worker_id": "w2", "only": []} | changes
        status["replicas"] = [main | {"name": "main", "only": []}, other]
        found = judge_sites(status)["A"]
        return found.word, found.code, found.sentence

    assert sites()[:2] == ("in sync", "in-sync")
    state, code, text = sites(position=end - 1, lake="/lakes/reports", alive=False)
    assert (state, code) == ("lagging", "worker-ended")
    assert text.startswith(f"Replica A/reports is at position {end - 1} of {end}")
    assert "apply --follow --name reports --lake /lakes/reports" in text
    state, code, text = sites(verdict="DIVERGED", reason="rows are lost")
    assert (state, code) == ("diverged", "diverged")
    assert text.startswith("Site A, worker reports (w2): DIVERGED: rows are lost")
    sites(position=end - 1, only=["bronze.*"])
    assert furthest_lines(status)["A"]["name"] == "main", "the one with all tables says how far"
    status["replicas"] = [one | {"only": ["x.*"]} for one in status["replicas"]]
    assert furthest_lines(status)["A"]["name"] == "reports", "of sets the least one does"
    names = [one["name"] for one in replica_lines(status) if one["node_id"] == "A"]
    assert names == ["main", "reports"]
