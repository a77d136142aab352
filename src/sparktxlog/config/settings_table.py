"""The settings of a node: their keys, how values are read, defaults and meaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparktxlog.model.operation import LONGEST_RUN
from sparktxlog.model.values import (
    MAX_WEIGHT,
    counted,
    one_of,
    ranged,
    read_listen,
    read_node_id,
    read_quorum,
    read_roles,
    read_switch,
    read_text,
    read_url,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its key, how its value is read, its default and what it means."""

    key: str
    #: Turns the value of a file, variable or argument into the field's; ValueError says why not.
    read: Callable[[Any], Any]
    #: None = no default; whether it must be given is checked as a whole.
    default: Any
    description: str
    #: True: equal on all members, compared when peers greet each other.
    shared: bool = False
    secret: bool = False

    @property
    def attribute(self) -> str:
        """Name of the field in `NodeConfig`."""
        return attribute(self.key)


def attribute(key: str) -> str:
    """Return the name of a key's field in `NodeConfig`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", key).lower().replace("-", "_").replace(".", "_")


ENV_PREFIX = "SPARKTXLOG_"


def variable_of(key: str) -> str:
    """Return the name of a key's environment variable."""
    return ENV_PREFIX + key.upper().replace("-", "_").replace(".", "_")


def _path(value: Any) -> Path:
    return Path(read_text(value)).expanduser().absolute()


SETTINGS: tuple[Setting, ...] = (
    Setting(key="node-id", read=read_node_id, default=None,
            description="Name of this node, unique and stable across all sites (required)."),
    Setting(key="master-url", read=read_url, default=None,
            description="URL under which peers and clients reach this node (required)."),
    Setting(key="listen", read=read_listen, default=None,
            description="host:port to listen on; default: host and port of master-url."),
    Setting(key="cluster", read=read_node_id, default="sparktxlog", shared=True,
            description="Name of the cluster; the log's lineage begins with it."),
    Setting(key="data-dir", read=_path, default=None,
            description="Directory of the node's own state (required); one process at a time."),
    Setting(key="lake-dir", read=_path, default=None,
            description="Directory of the replica's Delta tables; default: data-dir/lake."),
    Setting(key="payload-dir", read=_path, default=None,
            description="Payload store, seen by node and Spark executors; default: "
            "data-dir/payloads."),
    Setting(key="roles", read=read_roles, default=("master", "replica"),
            description="What the node does: master, replica; or witness, which only votes on "
            "the members of the cluster and keeps no data."),
    Setting(key="weight", read=counted(0, MAX_WEIGHT), default=1,
            description="Votes of this node in decisions on the members of the cluster. Votes "
            "of a peer: peer.<n>.weight."),
    Setting(key="suspect-timeout", read=ranged(0, 86_400), default=10.0,
            description="Seconds without an answer from a member, or with a broken link to it, "
            "after which the others go on without it, if that is safe; 0: never."),
    Setting(key="start-timeout", read=ranged(0, 86_400), default=30.0,
            description="The same for members that were not heard since this node started."),
    Setting(key="eviction", read=one_of("auto", "manual"), default="auto",
            description="auto: the others go on without a missing member; manual: they wait "
            "for it until an operator removes it."),
    Setting(key="check-addresses", read=one_of("all", "first", "second", "none"), default="all",
            description="Which of a peer's several addresses are tried every suspect-timeout (1 to "
            "60 s) while its link is at another one: all, only the first or second, or none."),
    Setting(key="paused", read=read_switch, default=False,
            description="The node takes no transactions but does everything else; set at run time "
            "by `sparktxlog peer pause` and `continue`."),
    Setting(key="cluster-secret", read=read_text, default=None, secret=True,
            description="Secret that signs requests between peers, 16 characters or more; "
            "required with peers."),
    Setting(key="cluster-secret-file", read=_path, default=None,
            description="File that holds the cluster secret, which no other user may read."),
    Setting(key="client-token", read=read_text, default=None, secret=True,
            description="Bearer token of clients and workers, 16 characters or more; required when "
            "listening elsewhere than on loopback."),
    Setting(key="client-token-file", read=_path, default=None,
            description="File that holds the client token, which no other user may read."),
    Setting(key="admin-token", read=read_text, default=None, secret=True,
            description="Bearer token of operators, 16 characters or more. It allows everything "
            "that clients may do, and to change members and settings, force, pause and shorten the "
            "log; default: client-token allows both."),
    Setting(key="admin-token-file", read=_path, default=None,
            description="File that holds the admin token, which no other user may read."),
    Setting(key="acquisition-quorum", read=read_quorum, default=None,
            description="Members that must hold a transaction before it is ordered: majority, all "
            "or a number; default: all of 2, majority of 3 and more. It counts in the first "
            "epoch; afterwards `sparktxlog peer set-quorum` changes it."),
    Setting(key="signature-interval", read=counted(1, 1_000_000_000), default=10_000, shared=True,
            description="Number of positions between two comparisons of the sites' tables."),
    Setting(key="id-window", read=counted(1_000, 100_000_000), default=1_000_000, shared=True,
            description="A repeated transaction id is recognised within at least this many "
            "positions. This many ids are in memory, 24 bytes each."),
    Setting(key="id-window-time", read=ranged(60, 366 * 86_400), default=86_400.0, shared=True,
            description="It is also recognised within this time, seconds. Ids that are older than "
            "id-window positions are on disk, 20 bytes each."),
    Setting(key="publish-interval", read=ranged(0.01, 3_600), default=0.5,
            description="Least time between two commits to the queue table, seconds."),
    Setting(key="idle-round-min", read=ranged(0.01, 3_600), default=1.0,
            description="First pause between rounds without work, seconds."),
    Setting(key="idle-round-max", read=ranged(0.01, 86_400), default=60.0,
            description="Longest pause between rounds without work, seconds."),
    Setting(key="inline-limit", read=counted(0, 4 << 20), default=65_536,
            description="Most bytes of rows of one transaction that are sent with its manifest."),
    Setting(key="run-limit-transactions", read=counted(1, LONGEST_RUN), default=LONGEST_RUN,
            description="Most transactions in one run."),
    Setting(key="run-limit-bytes", read=counted(65_536, 64 << 20), default=4_194_304,
            description="Most bytes of one run's payload container."),
    Setting(key="body-limit", read=counted(65_536, 1 << 31), default=33_554_432,
            description="Most bytes of one request's body. All bodies that are read at once "
            "may take one and a half times as much; then submits are refused as busy."),
    Setting(key="connections-limit", read=counted(16, 65_536), default=1_024,
            description="Most open connections of clients and workers; connections of peers are "
            "counted separately."),
    Setting(key="incoming-limit-bytes", read=counted(1 << 20, 1 << 40), default=536_870_912,
            description="Bytes of runs not yet ordered; above that submits are refused as busy."),
    Setting(key="stage-timeout", read=ranged(0.01, 86_400), default=60.0,
            description="Seconds after which a run with staged files is stamped even if too few "
            "members hold the files."),
    Setting(key="worker-heartbeat", read=ranged(0.1, 3_600), default=5.0,
            description="Seconds between a worker's reports."),
    Setting(key="worker-dead-after", read=ranged(0.2, 86_400), default=10.0,
            description="Seconds of silence after which a worker counts as dead; not less than "
            "worker-heartbeat."),
    Setting(key="verify-interval", read=ranged(0, 1_000_000), default=168.0,
            description="Hours between two recounts of a table by a worker that follows; 0: "
            "never."),
    Setting(key="tx-log-max-size", read=counted(1, 1 << 40), default=100_000,
            description="Transactions that the log keeps after every worker applied them."),
    Setting(key="tx-log-max-depth", read=ranged(0.01, 1_000_000), default=168.0,
            description="Longest time that the log keeps transactions, hours."),
    Setting(key="tx-log-max-bytes", read=counted(1 << 20, 1 << 50), default=53_687_091_200,
            description="Most bytes of the log. Above that transactions are pruned even if a "
            "worker has not applied them; that worker then needs a copy."),
    Setting(key="rejoin-keep-bytes", read=counted(0, 1 << 50), default=1_073_741_824,
            description="Bytes of transactions kept for nodes that are not members at the moment; "
            "a node that lacks more takes over a snapshot."),
    Setting(key="replication.compression", read=read_switch, default=True, shared=True,
            description="Files of copies are compressed (zstd) if a sample says that it pays."),
    Setting(key="replication.chunk-bytes", read=counted(65_536, 1 << 28), default=5_242_880,
            description="Size of the chunks of a copied file, bytes."),
    Setting(key="replication.streams", read=counted(1, 256), default=8,
            description="Number of chunks of a copy that are fetched at the same time."),
    Setting(key="replication.max-donors", read=counted(1, 64), default=3,
            description="Most donors of one copy."),
    Setting(key="replication.lease", read=ranged(1, 86_400), default=120.0,
            description="Seconds after which a donor releases the files of a silent copy."),
    Setting(key="replication.donor-share", read=ranged(0.01, 1), default=0.1,
            description="Share of the time for copies while the donor's own transactions "
            "wait; 1: copies never wait for transactions."),
    Setting(key="backup-dir", read=_path, default=None,
            description="Directory for the old files of a replica that a copy replaces; "
            "default: they stay only in the history of the Delta tables."),
    Setting(key="NetSpeedBitsPerSec", read=counted(1, 1 << 50), default=104_857_600,
            description="Speed of the network between sites, bit/s, for estimates of copies."),
    Setting(key="FullReplicationTimeFactor", read=ranged(0.01, 1_000), default=1.3,
            description="A copy is chosen if a replay takes this many times longer."),
    Setting(key="MinTimeToConsiderFullReplicationS", read=ranged(0, 10_000_000), default=600.0,
            description="A replay estimated at up to so many seconds is never replaced by a copy."),
    Setting(key="log-level", read=one_of("debug", "info", "warning", "error"), default="info",
            description="Lowest level of log records."),
    Setting(key="log-format", read=one_of("json", "console"), default="console",
            description="json: one object per line; console: for people."),
)  # fmt: skip
BY_KEY = {setting.key: setting for setting in SETTINGS}
