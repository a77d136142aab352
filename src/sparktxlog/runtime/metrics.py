"""Metrics of a node in Prometheus' form; names are part of the public interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sparktxlog.config.maintenance_times import ends_at
from sparktxlog.files.stores.counting import RequestCounts, RequestKind
from sparktxlog.health.verdicts import ClusterState, findings, is_diverged, judge, judge_sites
from sparktxlog.model.answers import StoreUse
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.clock import wall_us

_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

_GAUGES = (
    ("position", "End of the synchronized queue."),
    ("epoch", "Epoch that this node is in."),
    ("published", "End of its published part."),
    ("applied", "Position the local replica has applied."),
    ("incoming_runs", "Runs not yet ordered."),
    ("incoming_transactions", "Transactions not yet ordered."),
    ("incoming_bytes", "Bytes of runs not yet ordered."),
    ("unstamped_runs", "Own runs accepted and not stamped yet."),
    ("empty_rounds", "Rounds in a row that added nothing while transactions waited."),
    ("log_bytes", "Bytes of the journal on disk."),
    ("clock_distance_us", "This node's clock against the members' median, microseconds."),
    ("fetching", "Payload transfers under way."),
    (
        "publish_lag_us",
        "How long the oldest ordered transaction has waited to be published, microseconds.",
    ),
    ("publish_waiting", "Submits that wait because publishing is late."),
)
_COMPUTED: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float]], ...] = (
    ("undelivered_runs", "Runs whose data no node can deliver.", lambda s: len(s["undelivered"])),
    (
        "damaged_files",
        "Own staged files that peers wanted and that are damaged.",
        lambda s: len(s["damaged_files"]),
    ),
    (
        "stuck_files",
        "Files and directories of which the disk or mount does not answer.",
        lambda s: len(s["stuck_files"]),
    ),
    (
        "synchronous_waiting",
        "Own synchronous transactions that wait for members.",
        lambda s: s["synchronous"]["waiting"],
    ),
    (
        "synchronous_bytes",
        "Bytes of own runs of synchronous transactions that wait for members.",
        lambda s: s["synchronous"]["size_bytes"],
    ),
    (
        "synchronous_oldest_us",
        "Age of the oldest own synchronous run that waits for members, microseconds.",
        lambda s: s["synchronous"]["oldest_us"] or 0,
    ),
    (
        "synchronous_unconfirmed",
        "Own synchronous transactions with a timestamp and too few holders.",
        lambda s: s["synchronous"]["unconfirmed"],
    ),
    (
        "synchronous_lag_us",
        "How long the oldest of them has had its timestamp, microseconds.",
        lambda s: s["synchronous"]["lag_us"] or 0,
    ),
    ("undecided", "Prepared transactions that nobody decided yet.", lambda s: s["undecided"]),
    (
        "commit_versions_behind",
        "Versions of commit tables that the log has and that are not placed here.",
        lambda s: s["commit_tables"]["behind"],
    ),
    (
        "write_s",
        "Seconds of a write of the journal, the median of the last ones; 0 = too few of late.",
        lambda s: s["write_s"] or 0,
    ),
    ("aside", "1: its disk is slow, and nobody waits for this node.", lambda s: s["aside"]),
    ("failing", "Tasks that fail at the moment.", lambda s: len(s["failing"])),
    ("halted", "1: halted.", lambda s: s["halted"] is not None),
)
_COUNTERS = (
    ("rounds", "Posts since start.", "round"),
    ("task_failures", "Failures of tasks since the start.", "task_failures"),
)
_PEER_GAUGES = (
    ("linked", "1 while the link to the peer is up."),
    ("position", "The peer's position as it posted it."),
    ("write_s", "Seconds of a write of the peer's journal, the median of the last ones."),
    ("aside", "1 while the peer's disk is slow and nobody waits for it."),
    ("clock_offset_us", "The peer's clock minus this node's, microseconds."),
)
_PEER_COUNTERS = (
    ("sent_bytes", "Bytes of requests sent to the peer."),
    ("received_bytes", "Bytes of answers received from the peer."),
    ("fetched_bytes", "Payload bytes fetched from the peer."),
    ("posts", "Posts sent to the peer."),
)

_REPLICA_GAUGES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float]], ...] = (
    ("position", "Position the replica applied.", lambda r: r["position"]),
    ("behind", "Published transactions that it has to apply.", lambda r: r["behind"]),
    ("alive", "1 while it reports.", lambda r: r["alive"]),
    ("in_sync", "1 while its verdict is IN_SYNC.", lambda r: r["verdict"] == "IN_SYNC"),
    ("diverged", "1 while it differs from the log or from others.", is_diverged),
    ("silent", "1 while its worker should report and does not.", lambda r: r["silent"]),
    ("error", "1 while its worker reports an error.", lambda r: bool(r["error"])),
)


class Metrics:
    """Metrics that owners of a node set themselves, and the registry of all metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        #: URL of each bucket, when its requests began to be counted, and their counts.
        self._stores = list[tuple[str, int, RequestCounts]]()
        self.commit_seconds = Histogram(
            "sparktxlog_commit_seconds",
            "An own run from its submit until it is ordered.",
            buckets=_FAST,
            registry=self.registry,
        )
        self.write_seconds = Histogram(
            "sparktxlog_journal_write_seconds",
            "One group commit of the journal, fsync included.",
            buckets=_FAST,
            registry=self.registry,
        )
        self.publish_seconds = Histogram(
            "sparktxlog_publish_seconds", "Publishing one segment.", registry=self.registry
        )
        count = self._counter
        self.refused_peers = count(
            "refused_peer_requests", "Requests of peers that were refused.", "code"
        )
        self.unknown_messages = count(
            "unknown_messages", "Messages of kinds that this release does not know."
        )
        self.budget_refusals = count(
            "budget_refusals", "Requests refused because a budget of tokens is used up.", "budget"
        )
        self._budget_used = Gauge(
            "sparktxlog_budget_used",
            "What tokens have of a budget.",
            ["budget"],
            registry=self.registry,
        )
        self.ordered = count("ordered_transactions", "Transactions ordered since the start.")
        self.donor_leases = Gauge(
            "sparktxlog_donor_leases", "Leases on this node's replica.", registry=self.registry
        )
        self.donor_chunks = count("donor_chunks", "Chunks served to copies.")
        self.donor_file_bytes = count("donor_file_bytes", "Bytes of files served to copies.")
        self.donor_sent_bytes = count(
            "donor_sent_bytes", "Bytes sent to copies, after compression."
        )
        self.worker_silences = count(
            "worker_silences", "Times that a worker of this site went silent."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sparktxlog_{name}", text, labels, registry=self.registry)

    def show_budget(self, name: str, used: Callable[[], float]) -> None:
        """Show what is used of a budget."""
        self._budget_used.labels(name).set_function(used)

    def show_end_of_certificate(self, ends_at: Callable[[], float]) -> None:
        """Show when the certificate of a node with TLS ends; others have no such metric."""
        Gauge(
            "sparktxlog_certificate_ends_at",
            "When this node's certificate ends, seconds since 1970.",
            registry=self.registry,
        ).set_function(ends_at)

    def show_requests(self, url: str, counts: RequestCounts) -> None:
        """Show what a bucket was asked for, too; nodes without one have no such metrics."""
        if not self._stores:
            self.registry.register(_StoreMetrics(self._stores))
            self._store_copies = self._counter(
                "store_copies",
                "Files that were to be copied from other sites' buckets: by the service, or they "
                "came through the nodes after all.",
                "way",
            )
        self._stores.append((url, wall_us(), counts))

    def note_copy(self, by_service: bool) -> None:
        """Count a file of `store-copy-from`; **before calling** show the requests of a bucket."""
        self._store_copies.labels("service" if by_service else "nodes").inc()

    def store_uses(self) -> list[StoreUse]:
        """Return what each bucket was asked for."""
        return [
            {
                "url": url,
                "since": since,
                "asked": {
                    kind.value: {"requests": one.requests, "bytes": one.bytes}
                    for kind, one in counts.now().items()
                },
            }
            for url, since, counts in self._stores
        ]

    def text(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self.registry)


class _StoreMetrics(Collector):
    """What a provider bills."""

    def __init__(self, stores: Sequence[tuple[str, int, RequestCounts]]) -> None:
        self._stores = stores

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the counters of the moment."""
        requests = CounterMetricFamily(
            "sparktxlog_store_requests",
            "Requests to the bucket, without those that the library repeated.",
            labels=["kind"],
        )
        size = CounterMetricFamily(
            "sparktxlog_store_bytes",
            "Bytes that travelled to and from the bucket.",
            labels=["kind"],
        )
        counts = [store.now() for _, _, store in self._stores]
        for kind in RequestKind:
            requests.add_metric([kind.value], sum(one[kind].requests for one in counts))
            size.add_metric([kind.value], sum(one[kind].bytes for one in counts))
        return requests, size


class StatusMetrics(Collector):
    """Metrics from the node's status, which is read when metrics are requested."""

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing: the families exist only while the node runs."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """Return gauges and counters of the moment."""
        status = self._status()
        for name, text in _GAUGES:
            yield GaugeMetricFamily(f"sparktxlog_{name}", text, value=status[name])
        for name, text, value in _COMPUTED:
            yield GaugeMetricFamily(f"sparktxlog_{name}", text, value=value(status))
        for name, text, key in _COUNTERS:
            yield CounterMetricFamily(f"sparktxlog_{name}", text, value=status[key])
        phase = GaugeMetricFamily(
            "sparktxlog_phase", "1 for the phase that this node is in.", labels=["phase"]
        )
        for name in Phase:
            phase.add_metric([name.value], 1 if status["phase"] == name.value else 0)
        yield phase
        tables = GaugeMetricFamily(
            "sparktxlog_commit_tables", "Commit tables at this site.", labels=["state"]
        )
        for name, number in status["commit_tables"]["states"].items():
            tables.add_metric([name], number)
        yield tables
        maintained = GaugeMetricFamily(
            "sparktxlog_maintenance_ends_at",
            "When the declared maintenance of the node ends, seconds since 1970; 0 = none is.",
            labels=["site"],
        )
        maintained.add_metric([status["node_id"]], ends_at(status["maintenance_until"]))
        yield maintained
        yield from verdict_metrics(status)
        yield from _per_peer(status)
        yield from _per_replica(status)


def verdict_metrics(status: Mapping[str, Any]) -> Iterable[GaugeMetricFamily]:
    """Return the verdicts on the cluster and on each site, and all that alerts ask for."""
    state = GaugeMetricFamily(
        "sparktxlog_state",
        "1 for the cluster's state as this node knows it.",
        labels=["state"],
    )
    word = judge(status).state
    for one in ClusterState:
        state.add_metric([one.value], 1 if one is word else 0)
    yield state
    sites = GaugeMetricFamily(
        "sparktxlog_site_verdict",
        "1: the verdict on a site, see docs/verdicts.md.",
        labels=["site", "code"],
    )
    for site, verdict in judge_sites(status).items():
        sites.add_metric([site, verdict.code], 1)
    yield sites
    found = GaugeMetricFamily(
        "sparktxlog_finding",
        "1: what is not as it should be, see docs/verdicts.md; without a site it is of the node.",
        labels=["code", "site", "state"],
    )
    for labels in sorted({(one.code, one.site, one.state.value) for one in findings(status)}):
        found.add_metric(labels, 1)
    yield found


def _per_peer(status: Mapping[str, Any]) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
    for name, text in _PEER_GAUGES:
        gauge = GaugeMetricFamily(f"sparktxlog_peer_{name}", text, labels=["peer"])
        for peer in status["peers"]:
            if peer[name] is not None:
                gauge.add_metric([peer["id"]], float(peer[name]))
        yield gauge
    answers = GaugeMetricFamily(
        "sparktxlog_peer_address_answers",
        "1 while an address answers, of peers that have several.",
        labels=["peer", "address"],
    )
    for peer in status["peers"]:
        for address, good in peer["addresses"].items():
            answers.add_metric([peer["id"], address], 1 if good else 0)
    yield answers
    lag = GaugeMetricFamily(
        "sparktxlog_peer_lag", "Positions that the peer lags behind this node.", labels=["peer"]
    )
    for peer in status["peers"]:
        lag.add_metric([peer["id"]], max(0, status["position"] - peer["position"]))
    yield lag
    for name, text in _PEER_COUNTERS:
        counter = CounterMetricFamily(f"sparktxlog_peer_{name}", text, labels=["peer"])
        for peer in status["peers"]:
            counter.add_metric([peer["id"]], peer[name])
        yield counter


def _per_replica(status: Mapping[str, Any]) -> Iterable[GaugeMetricFamily]:
    for name, text, value in _REPLICA_GAUGES:
        gauge = GaugeMetricFamily(f"sparktxlog_replica_{name}", text, labels=["site", "worker"])
        for replica in status["replicas"]:
            gauge.add_metric([replica["node_id"], replica["worker_id"]], float(value(replica)))
        yield gauge
