"""Alerts and dashboard: what they ask for is there, can be parsed, and each alert has a runbook."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from tests.service.local_nodes import cluster
from tools.metrics_page import MONITORING, alert_rules, listed_metrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
#: What Prometheus itself adds.
_OF_PROMETHEUS, _OF_TARGETS = {"up"}, {"job", "instance"}
_SERIES = {"histogram": ("_bucket", "_sum", "_count")}


def _targets() -> Iterator[tuple[str, str]]:
    """Yield a name and an expression, of alerts and of panels."""
    for rule in alert_rules():
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], note["expr"]


EXPRESSIONS = list(_targets())


def _parts(expression: Any) -> Iterator[Any]:
    """Yield an expression and all that is in it."""
    yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "vs"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from _parts(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from _parts(inner)


def test_the_walk_finds_all_names() -> None:
    """The text of an expression has no other name that looks like a metric."""
    for name, text in EXPRESSIONS:
        found = {one.name for one in _selectors(text)}
        assert found >= set(re.findall(r"\bsparktxlog_\w+", text)), name
        assert found, name


def _selectors(text: str) -> list[Any]:
    kinds = promql_parser.VectorSelector
    return [one for one in _parts(promql_parser.parse(text)) if isinstance(one, kinds)]


def _series() -> dict[str, set[str]]:
    """Return the series of a node → their labels."""
    found = {}
    for metric in listed_metrics():
        for end in _SERIES.get(metric.kind, ("",)):
            labels = {*metric.labels, *_OF_TARGETS, *(["le"] if end == "_bucket" else [])}
            found[metric.name + end] = labels
    return found


@pytest.mark.parametrize(("name", "text"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_what_is_asked_for_is_there(name: str, text: str) -> None:
    series = _series()
    for selector in _selectors(text):
        if selector.name in _OF_PROMETHEUS:
            continue
        assert selector.name in series, f"{name}: no metric {selector.name}"
        wanted = {one.name for one in selector.matchers.matchers}
        assert wanted <= series[selector.name], f"{name}: labels of {selector.name}"


@pytest.mark.parametrize("text", ["sum by (job (up)", "rate(up)[5m]", "up{job=}", "up >"])
def test_a_broken_expression_is_found(text: str) -> None:
    with pytest.raises(ValueError):
        promql_parser.parse(text)


def test_the_listed_metrics_are_those_of_a_real_node(tmp_path: Path) -> None:
    """Name, type, labels and meaning; a node without a certificate, or a bucket, lacks those."""

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            families = list(nodes["A"].base.metrics.registry.collect())
        real = {
            (f"{one.name}_total" if one.type == "counter" else one.name): one for one in families
        }
        listed = {one.name: one for one in listed_metrics()}
        assert set(listed) - set(real) == {
            "sparktxlog_certificate_ends_at",
            "sparktxlog_store_bytes_total",
            "sparktxlog_store_copies_total",
            "sparktxlog_store_requests_total",
        }
        assert set(real) <= set(listed)
        for name, family in real.items():
            assert (listed[name].kind, listed[name].text) == (family.type, family.documentation)
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(listed[name].labels), sample

    asyncio.run(main())


def test_each_alert_has_severity_summary_and_runbook() -> None:
    rules = alert_rules()
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names)) >= 15
    page = (ROOT / "docs" / "monitoring.md").read_text()
    headings = re.findall(r"^### (Sparktxlog\w+)$", page, re.MULTILINE)
    assert headings == names, "a section for each alert, in their order"
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        notes = rule["annotations"]
        assert notes["summary"].endswith((".", "s."))
        assert notes["runbook"] == f"docs/monitoring.md#{rule['alert'].lower()}"
        used = set(re.findall(r"\$labels\.(\w+)", notes["summary"]))
        assert used <= _labels_of(rule), rule["alert"]


def test_a_declared_maintenance_silences_each_alert_about_its_node_or_site() -> None:
    """Also while the node is down, when Prometheus has no newer sample of its metrics."""
    found = yaml.safe_load((MONITORING / "alertmanager.yml").read_text())["inhibit_rules"]
    source, *others = sorted(alert_rules(), key=lambda rule: rule["labels"]["severity"] != "info")
    labels = {rule["alert"]: _labels_of(rule) for rule in (source, *others)}
    assert source["expr"].startswith("last_over_time(")
    for rule in found:
        assert rule["source_matchers"] == [f'alertname="{source["alert"]}"']
        assert rule["target_matchers"] == ['severity=~"critical|warning"']
        assert set(rule["equal"]) <= labels[source["alert"]]
    for rule in others:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert any(set(one["equal"]) <= labels[rule["alert"]] for one in found), rule["alert"]
    assert "site" in labels["SparktxlogLinkDown"]


def _labels_of(rule: dict[str, Any]) -> set[str]:
    """Return the labels of an alert."""
    kept, series = _kept_labels(rule["expr"]), _series()
    if kept is None:
        kept = set().union(*(series.get(s.name, _OF_TARGETS) for s in _selectors(rule["expr"])))
    return kept | set(rule["labels"])


def _kept_labels(text: str) -> set[str] | None:
    """Return the labels that an aggregation keeps; None = all of the series."""
    found = re.findall(r"\bby \(([^)]*)\)", text)
    return {label for names in found for label in re.split(r",\s*", names)} if found else None


def test_panels_stand_beside_each_other() -> None:
    """Ids differ, no two panels lie on one another, and each says what it shows."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not own & cells, panel["title"]
        cells |= own
        assert panel["type"] == "row" or panel["description"].endswith(".")


def test_prometheus_asks_as_a_node_answers() -> None:
    found = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = found["scrape_configs"]
    assert found["rule_files"] == ["alerts.yml"] and job["job_name"] == "sparktxlog"
    assert all(
        target.endswith(":7070") for one in job["static_configs"] for target in one["targets"]
    )
