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

from sparktxlog.cli import status_commands
from sparktxlog.health.cluster_status import ClusterStatus
from sparktxlog.health.readiness import readiness
from sparktxlog.health.transaction_words import sites_of
from sparktxlog.health.verdicts import (
    ClusterState,
    banner_of,
    findings,
    judge,
    judge_sites,
    replica_lines,
)
from sparktxlog.integrations.site_progress import progress_of
from sparktxlog.runtime.metrics import verdict_metrics

TABLE = json.loads((Path(__file__).parents[2] / "testdata" / "verdicts.json").read_text())
CASES = {one["case"]: one for one in TABLE["cases"]}


def status_of(case: dict[str, Any]) -> dict[str, Any]:
    found = TABLE["base"] | case["status"]
    return {name: value for name, value in found.items() if value is not None}


def said_of(status: dict[str, Any]) -> dict[str, Any]:
    """Return what the readers say that need no command: pages and banner, `why`, metrics, …"""
    verdict, progress = judge(status), progress_of(status, None)
    applied = [one for one in sites_of(status["position"], status) if not one["applied"]]
    one = banner_of(status)[0]
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
        "banner": [one["word"] or one["severity"], one["text"]],
        "why": applied[0]["text"] if applied else "",
        "sensor": ["differs" if progress.differs else "waits", progress.waits_for],
    }


class OneNode:
    """Stands in for the HTTP client of the commands."""

    status: dict[str, Any] = {}

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def get(self, path: str, **_: Any) -> Any:
        assert path == "/v1/status"
        return self.status


@pytest.mark.parametrize("name", CASES)
def test_each_reader_says_what_the_table_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, status = CASES[name], status_of(CASES[name])
    assert said_of(status) | {"exit": case["says"]["exit"]} == case["says"]
    monkeypatch.setattr(status_commands, "NodeApi", OneNode)
    monkeypatch.setattr(OneNode, "status", status)
    assert invoke(monkeypatch, "status", "--json") == case["says"]["exit"]
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
    if verdict.state is not ClusterState.IN_SYNC:
        assert verdict.sentence in str(shown) and (verdict.way_out or "`" in verdict.text)


def test_the_table_has_all_that_can_be_said() -> None:
    """A verdict without a state in the table is one that no reader was asked about."""
    assert len(CASES) >= 40 and len(CASES) == len(TABLE["cases"])
    source = Path(str(judge.__code__.co_filename)).read_text()
    codes = set(re.findall(r'(?:_note|_warning)\(\s*"([a-z-]+)"', source))
    codes |= set(re.findall(r'code(?:=|, way_out = |: )"([a-z-]+)"', source))
    said = {one["says"]["code"] for one in CASES.values()}
    said |= {code for one in CASES.values() for code in one["says"]["sites"].values()}
    assert codes - said == {"paused", "uncompared", "upgrade", "peer-away", "synchronous-waits"}


def test_a_node_that_is_away_has_a_way_out() -> None:
    """`status`, `doctor` and the pages show it with the warning."""
    status = status_of(CASES["a peer does not answer, and nothing waits"])
    (away,) = (one for one in findings(status) if one.code == "peer-away")
    assert away.text == "B does not answer" and "`sparktxlog peer remove B`" in away.way_out
    (away,) = (one for one in findings(status | {"phase": "JOINING"}) if one.code == "peer-away")
    assert away.way_out == "`sparktxlog peer list` says which nodes are linked."
