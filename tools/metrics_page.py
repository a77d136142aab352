"""docs/metrics.md: the metrics of a node from its registry, and the alerts from their rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase

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
_PAGE = """# Metrics, alerts and logs of a node

{note}

`GET /metrics` of a node answers in Prometheus' text form; it takes the client token, as a bearer
token. [conf/monitoring](../conf/monitoring/) has what Prometheus, Alertmanager and Grafana need:

| file | is |
|---|---|
| [prometheus.yml](../conf/monitoring/prometheus.yml) | which nodes Prometheus asks, and how |
| [alerts.yml](../conf/monitoring/alerts.yml) | the alerts below |
| [alertmanager.yml](../conf/monitoring/alertmanager.yml) | how maintenance silences them |
| [dashboard.json](../conf/monitoring/dashboard.json) | a dashboard; Grafana imports it |

Names, types and labels are part of the public interface. Counters begin at 0 when a node starts.

## Metrics

| metric | type | labels | unit | means |
|---|---|---|---|---|
{metrics}

A histogram has the series `_bucket` (label `le`), `_sum` and `_count`. Only a node with a
certificate has `sparktxlog_certificate_ends_at`.

## Alerts

| alert | severity | after | says |
|---|---|---|---|
{alerts}

## Logs

A node logs to stderr, one record per line. With `log-format = "json"` a record is one object:

| field | has | its value |
|---|---|---|
| `timestamp`, `level`, `event` | every record | time in UTC, `debug` to `critical`, what happened |
| `node`, `epoch` | every record, `epoch` once it is known | the node that logs, and its epoch |
| `peer` | what is about another node, and what is logged for its request | its id |
| `transaction` | what is logged for a submit | its id |
| `request_id` | what is logged for the request of a client | its header `x-request-id` |
| `reason`, `exception` | what failed | text, and the trace of an error that nobody foresaw |
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


def metrics_page(note: str) -> str:
    """Return docs/metrics.md."""
    metrics, alerts = "\n".join(_metric_lines()), "\n".join(_alert_lines())
    return _PAGE.format(note=note, metrics=metrics, alerts=alerts)
