"""Parts of docs/metrics.md: metrics of a node from its registry, alerts from their rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase

from sparktxlog.files.stores.counting import RequestCounts
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.metrics import Metrics, StatusMetrics

MONITORING = Path(__file__).resolve().parents[1] / "conf" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
#: End of a name → unit.
_UNITS = {
    "_bytes": "bytes",
    "_us": "microseconds",
    "_seconds": "seconds",
    "_ends_at": "seconds since 1970",
}
_METRICS = """| metric | type | labels | unit | means |
|---|---|---|---|---|
"""
_ALERTS = """| alert | severity | after | says |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMetric:
    """A metric as `/metrics` names it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """Unit of its values, empty = a number of something."""
        bare = self.name.removesuffix("_total")
        return next((unit for end, unit in _UNITS.items() if bare.endswith(end)), "")


def listed_metrics() -> list[ListedMetric]:
    """Return all metrics of a node, by name, from a registry as a node makes it."""
    metrics = Metrics()
    metrics.show_end_of_certificate(lambda: 0.0)
    metrics.show_requests("s3://lake/site-a", RequestCounts())
    own = {one._name: one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)}
    families = [*metrics.registry.collect(), *StatusMetrics(_empty_status).collect()]
    found = []
    for family in families:
        labelled: Any = own.get(family.name, family)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = tuple(getattr(labelled, "_labelnames", ()))
        found.append(
            ListedMetric(name=name, kind=family.type, labels=labels, text=family.documentation)
        )
    return sorted(found, key=lambda one: one.name)


def _empty_status() -> dict[str, Any]:
    """Return a status without peers and replicas: it has every family, and no sample of them."""
    nothing: dict[str, Any] = {
        "undelivered": (),
        "damaged_files": (),
        "stuck_files": (),
        "failing": (),
        "peers": (),
        "replicas": (),
        "halted": None,
        "phase": Phase.NORMAL.value,
        "maintenance_until": "",
        "synchronous": defaultdict(int),
        "commit_tables": {"behind": 0, "states": {}},
    }
    return defaultdict(int, nothing)


def alert_rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def _metric_lines() -> Iterator[str]:
    for one in listed_metrics():
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{one.name}` | {one.kind} | {labels} | {one.unit} | {one.text} |"


def _alert_lines() -> Iterator[str]:
    for rule in alert_rules():
        name, notes = rule["alert"], rule["annotations"]
        link = notes["runbook"].removeprefix("docs/")
        after = rule.get("for", "at once")
        says = notes["summary"].replace("{{ ", "`").replace(" }}", "`")
        yield f"| [{name}]({link}) | {rule['labels']['severity']} | {after} | {says} |"


def table_of_metrics() -> str:
    """Return a row for each metric."""
    return _METRICS + "\n".join(_metric_lines())


def table_of_alerts() -> str:
    """Return a row for each alert, with a link to what to do."""
    return _ALERTS + "\n".join(_alert_lines())
