"""A state of `tests/testdata/verdicts.json` as nodes would answer it, for those that ask them.

A case has a status and, where it matters, `holds`: what sites hold of the data (site → `rows_after`
and `lacking`, see `SiteData`); without it a site that answers has everything.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric
from tools.metrics_page import alert_rules

from sparktxlog.api.jobs.upkeep import Verified
from sparktxlog.cli.all_nodes import NodeAnswer
from sparktxlog.cli.commands import status_commands
from sparktxlog.cli.drill.drill_report import DrillReport
from sparktxlog.cli.drill.live_drill import examine
from sparktxlog.errors import NotFoundError, TransportError
from sparktxlog.health.survival import KnownSites, Site, losses, survivals
from sparktxlog.health.verdicts import furthest_lines, rows_until
from sparktxlog.model.answers import Survival
from sparktxlog.model.site_data import SiteData
from sparktxlog.runtime.metrics import StatusMetrics
from sparktxlog.worker.verify import comparing
from sparktxlog.worker.verify.histories import SiteHistory

_Status = dict[str, Any]


# -- commands --------------------------------------------------------------------------------------


class OneNode:
    """Stands in for the HTTP client of the commands."""

    status: _Status = {}
    holds: dict[str, Any] = {}

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def get(self, path: str, **_: Any) -> Any:
        if path == "/v1/status":
            return self.status
        if path == "/v1/views/survival":
            return survivals_of(self.status, self.holds)
        assert path == "/v1/worker/plan"
        line = furthest_lines(self.status).get(self.status["node_id"])
        if not line:
            raise NotFoundError("no worker of this site has reported")
        nothing = {"reason": "", "behind": 0, "donor": None, "replay": None, "copy": None}
        return nothing | {"worker_id": line["worker_id"], "plan": line.get("plan") or "up-to-date"}


def with_one_node(patch: pytest.MonkeyPatch, status: _Status, holds: dict[str, Any]) -> None:
    """Let the commands ask a node of this status."""
    patch.setattr(status_commands, "NodeApi", OneNode)
    patch.setattr(OneNode, "status", status)
    patch.setattr(OneNode, "holds", holds)


# -- the loss of a site ----------------------------------------------------------------------------


def survivals_of(status: _Status, holds: dict[str, Any]) -> list[Survival]:
    """Return what the node says of the loss of each site.

    Raises:
        NotFoundError: It is a witness, a follower, or of an older release (definite).
    """
    own, roster = status["node_id"], status.get("roster")
    if status["phase"] in ("WITNESS", "FOLLOWING") or not roster:
        raise NotFoundError("a witness, a follower, or an older release, has no such view")
    roster = [one for one in roster if not one.get("follower")]
    peers = {one["id"]: one for one in status["peers"]}
    away = {*(status.get("suspects") or []), *(n for n, p in peers.items() if not p["linked"])}
    answering = [one["id"] for one in roster if one["id"] not in away]
    weights = {one["id"]: one["weight"] for one in roster}
    voters = {}
    for site in weights:
        left = [name for name in answering if name != site]
        voters[site] = (left, 2 * sum(weights[one] for one in left) > sum(weights.values()))
    knows_log = status["phase"] not in ("IDLE", "JOINING") or status["position"]
    sites = []
    for seat in roster:
        name = seat["id"]
        position = status["position"] if name == own else peers[name]["position"]
        data = SiteData(**{"rows_after": 0} | holds.get(name, {}))
        answers = knows_log if name == own else name not in away
        replica = next(
            (
                one["position"]
                for one in status["replicas"]
                if one["node_id"] == name and one["verdict"] == "IN_SYNC" and not one["contested"]
            ),
            None,
        )
        if not seat["witness"]:
            sites.append(
                Site(
                    name=name,
                    transactions={"A": position},
                    data=data if answers else None,
                    position=position,
                    replica=replica if answers else None,
                )
            )
    tables = (status.get("commit_tables") or {}).get("total") or 0
    return survivals(
        KnownSites(
            position=status["position"],
            ordered={"A": status["position"]},
            sites=sites,
            voters=voters,
            any_rows=rows_until(status) > 0,
            commit_tables={f"t{number}": f"s.t{number}" for number in range(tables)},
        )
    )


def lost_at(status: _Status, holds: dict[str, Any]) -> dict[str, list[str]]:
    """Return site → why its loss would not be survived; only of these."""
    try:
        said = survivals_of(status, holds)
    except NotFoundError:
        return {}
    return {
        one["site"]: losses(one) or ["no majority of the votes is left"]
        for one in said
        if not one["survives"]
    }


def failed_drills(status: _Status, holds: dict[str, Any]) -> dict[str, list[str]]:
    """Return site → what a live drill finds of its loss; only of these.

    The peers that answer are well, and know the same.
    """
    try:
        said = survivals_of(status, holds)
    except NotFoundError:
        return {}
    others = {
        one["id"]: "WITNESS" if one["witness"] else "FOLLOWING"
        for one in status["roster"]
        if one["witness"] or one.get("follower")
    }
    well = {"phase": "NORMAL", "paused": False, "position": status["position"]}
    answers = [_answer(status["node_id"], {"paused": False} | status, said)]
    for peer in status["peers"]:
        if peer["id"] in others and peer["linked"]:
            answers.append(_answer(peer["id"], well | {"phase": others[peer["id"]]}, []))
        elif peer["linked"]:
            answers.append(_answer(peer["id"], well, said))
        else:
            error = TransportError("no answer")
            answers.append(NodeAnswer(node=peer["id"], url="", error=error))
    sites = [one["id"] for one in status["roster"] if one["id"] not in others]
    report = DrillReport(began_at=1, sites=sites, suspect_timeout_s=4.0)
    examine(answers, report)
    found = {one.name.removeprefix("loss of "): one for one in report.rehearsals}
    return {
        site: [*([f"{one.lost} of {one.shown} lost"] if one.lost else []), *one.problems]
        for site, one in found.items()
        if one.lost or one.problems
    }


def _answer(node: str, status: _Status, said: list[Survival]) -> NodeAnswer:
    return NodeAnswer(node=node, url="", answer={"status": status, "survival": said})


# -- `verify --compare` ----------------------------------------------------------------------------


def compared(patch: pytest.MonkeyPatch, status: _Status) -> Verified:
    """Return what `verify --compare` finds, if each site reported every position up to its own."""
    histories = {}
    for site, line in furthest_lines(status).items():
        histories[site] = SiteHistory(site=site)
        bad = line.get("contested") or line.get("verdict") in ("DIVERGED", "FOREIGN")
        for position in range(1, line.get("position", 0) + 1):
            histories[site].add(position, "", {"orders": site if bad else "equal"})
    patch.setattr(comparing, "read_histories", lambda *_: (status["node_id"], histories))
    source: Any = SimpleNamespace(document=lambda path: status if path == "/v1/status" else {})
    patch.setattr(comparing._Suspects, "name_in", lambda _, pair: pair)
    found = comparing.compare_sites(source)
    said = comparing.conclusions(found, None)
    return Verified(counted=None, compared=found, conclusions=said)


# -- alerts ----------------------------------------------------------------------------------------

_rules = cache(alert_rules)
_TEST = re.compile(
    r"(?:(?:max|sum) by \([\w, ]+\) \()?sparktxlog_(\w+)(?:\{([^}]*)\})?\)? (==|>) ([\d.e]+)"
)


def alerts_of(status: _Status) -> list[str]:
    """Return the alerts that a state raises by itself; those on rates need more than one moment."""
    nothing = {"maintenance_until": "", "synchronous": defaultdict(int)}
    names = ("undelivered", "damaged_files", "stuck_files", "failing")
    lists = {name: status.get(name) or [] for name in names}
    tables = {"behind": 0, "states": {}} | (status.get("commit_tables") or {})
    lines = {
        "peers": [defaultdict(int, {"addresses": {}} | one) for one in status["peers"]],
        "replicas": [defaultdict(int, one) for one in status["replicas"]],
    }
    one = {"halted": None} | status | lists | lines | {"commit_tables": tables}
    collected = StatusMetrics(lambda: defaultdict(int, nothing | one)).collect()
    metrics: dict[str, Metric] = {found.name: found for found in collected}
    return [rule["alert"] for rule in _rules() if _fires(rule["expr"], metrics)]


def _fires(expression: str, metrics: dict[str, Metric]) -> bool:
    found = [_TEST.fullmatch(part) for part in expression.split(" or ")]
    return any(_holds(one, metrics) for one in found if one is not None)


def _holds(test: re.Match[str], metrics: dict[str, Metric]) -> bool:
    name, given, operator, number = test.groups()
    wanted = re.findall(r'(\w+)=~?"([^"]*)"', given or "")
    samples = metrics[f"sparktxlog_{name}"].samples if f"sparktxlog_{name}" in metrics else []
    return any(
        sample.value > float(number) if operator == ">" else sample.value == float(number)
        for sample in samples
        if all(re.fullmatch(text, sample.labels[label]) for label, text in wanted)
    )
