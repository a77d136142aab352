"""The settings of a node: each is declared once, as a field of `NodeConfig`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sparktxlog.config.maintenance_times import read_until, read_windows
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.ids import NodeId, full_table_name, local_path
from sparktxlog.model.transactions.operation import LONGEST_RUN
from sparktxlog.model.values import (
    MAX_WEIGHT,
    counted,
    one_of,
    ranged,
    read_bucket,
    read_buckets,
    read_holders,
    read_listen,
    read_node_id,
    read_node_ids,
    read_quorum,
    read_role,
    read_roles,
    read_sets,
    read_switch,
    read_text,
    read_url,
    split_urls,
)

ENV_PREFIX = "SPARKTXLOG_"
#: Shorter secrets and tokens can be guessed.
LEAST_CHARACTERS = 16
#: Bits of a file's mode by which other users read or write it.
OTHERS = 0o006


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how its value is read, its default and what it means."""

    #: Converts the value of a file, variable or argument; ValueError says what is wrong.
    read: Callable[[Any], Any]
    #: None = no default; `checking` knows which settings are required.
    default: Any = None
    #: Its name in files and on the command line; default: the field's name, with hyphens.
    key: str = ""
    #: True: must be equal on all members; peers compare it when they greet each other.
    shared: bool = False
    secret: bool = False
    description: str = ""
    #: The field of `NodeConfig`.
    attribute: str = ""

    def __call__(self, description: str) -> Any:
        """Return the field of `NodeConfig` that holds this setting."""
        described = replace(self, description=description)
        return field(default=self.default, repr=not self.secret, metadata={"setting": described})


def variable_of(key: str) -> str:
    """Return the name of a key's environment variable."""
    return ENV_PREFIX + key.upper().replace("-", "_").replace(".", "_")


def _path(value: Any) -> Path:
    try:
        return Path(local_path(read_text(value), "it")).expanduser().absolute()
    except InvalidRequestError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error


def _tables_path(value: Any) -> Path:
    """Read a directory of Delta tables; delta-rs follows links, and takes `%20` for a space."""
    path = _path(value)
    if found := re.search("%[0-9A-Fa-f]{2}", str(path.resolve())):
        raise ValueError(
            f"expected a directory without {found[0]} in its path, which readers of Delta tables "
            "take for another character; rename it"
        )
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredPeer:
    """A configured peer; a node talks to no other node."""

    id: NodeId
    #: Its address, or several, separated by commas and tried in turn.
    url: str
    #: Votes in epoch decisions.
    weight: int = 1
    #: True: it votes only.
    witness: bool = False
    #: True: it follows the queue without a vote, and nobody waits for it.
    follower: bool = False

    @property
    def may_be_member(self) -> bool:
        """Whether it is a member of the first epoch."""
        return not (self.witness or self.follower)

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses; the first one is the peer's own `master-url`."""
        return split_urls(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGrant:
    """A client with a token of its own, and the tables that it may write."""

    name: str
    token: str = field(repr=False)
    token_file: Path
    #: `schema.table` or `schema.*`, in lower case.
    write: frozenset[str]

    def may_write(self, table: str) -> bool:
        """Return whether it may write a table, or with `schema.*` all tables of a schema."""
        full = granted_name(table)
        return full in self.write or f"{full.partition('.')[0]}.*" in self.write


def granted_name(table: str) -> str:
    """Return the name of a table, or a pattern, as grants have it: with a schema, in lower case."""
    return full_table_name(table).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Checked settings of a node."""

    node_id: NodeId = Setting(read_node_id)(
        "Name of this node, unique and stable across all sites (required)."
    )
    master_url: str = Setting(read_url)(
        "URL under which peers and clients reach this node (required)."
    )
    listen: tuple[str, int] = Setting(read_listen)(
        "host:port to listen on; default: host and port of master-url."
    )
    cluster: str = Setting(read_node_id, "sparktxlog", shared=True)(
        "Name of the cluster; the log id begins with it."
    )
    data_dir: Path = Setting(_tables_path)(
        "Directory of the node's own state (required); one process at a time."
    )
    lake_dir: Path = Setting(_tables_path)(
        "Directory of the replica's Delta tables; default: data-dir/lake."
    )
    lake_url: str | None = Setting(read_bucket)(
        "Prefix in a bucket, such as s3://lake/rows-of-a, in which the row tables lie instead; no "
        "other site has it (docs/stores.md). lake-dir then has only the worker's locks and notes."
    )
    commit_table_dir: Path = Setting(_tables_path)(
        "Directory of commit tables (docs/catalog.md), shared by node and Spark executors; "
        "default: data-dir/commit_tables."
    )
    commit_table_url: str | None = Setting(read_bucket)(
        "Prefix in a bucket, such as s3://lake/site-a, in which commit tables lie instead; no "
        "other site has it (docs/stores.md). commit-table-dir then has only what is on its way "
        "there, and what was set aside."
    )
    store_endpoint: str = Setting(read_url, "")(
        "URL of the server that has the site's buckets, if it is not the provider's own, such as "
        "https://minio.site-a.example:9000."
    )
    store_region: str = Setting(read_text, "")(
        "Region of the site's buckets; default: what AWS_REGION says."
    )
    store_allow_http: bool = Setting(read_switch, False)(
        "true: store-endpoint may be http://, over which all bytes travel unencrypted."
    )
    store_credentials_file: Path | None = Setting(_path)(
        "File of lines NAME=VALUE with the credentials of the site's buckets, such as "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, which no other user may read; default: the "
        "environment, or the role of the machine."
    )
    store_copy_from: tuple[str, ...] = Setting(read_buckets, ())(
        "Prefixes in buckets of S3, separated by commas: payload-url and commit-table-url of other "
        "sites, at the same store-endpoint, which this node's credentials may read. Files then "
        "come from there by copies of the service, not through the nodes (docs/store-access.md)."
    )
    store_vend_role: str = Setting(read_role, "")(
        "ARN of a role whose sessions the catalog gives to clients as credentials for a table of "
        "commit-table-url, each for the prefix of one table (docs/store-access.md); default: it "
        "gives none."
    )
    store_vend_time: int = Setting(ranged(900, 43_200, whole=True), 3_600)(
        "Seconds that such credentials last; clients get new ones before they end."
    )
    store_vend_sas: bool = Setting(read_switch, False)(
        "true: the catalog gives clients signatures of Azure (SAS), each for the prefix of one "
        "table of commit-table-url, by AZURE_STORAGE_ACCOUNT_KEY. The account needs a hierarchical "
        "namespace (docs/store-access.md)."
    )
    store_sts_endpoint: str = Setting(read_url, "")(
        "URL of the service STS that begins these sessions; default: that of AWS in store-region."
    )
    reader_table_dir: Path | None = Setting(_tables_path)(
        "Directory in which the node keeps a plain Delta table for each commit table, as "
        "schema/table, for readers without a catalog; best on the file system of commit-table-dir, "
        "else all files are copied. Default: none."
    )
    payload_dir: Path = Setting(_path)(
        "Payload store; Spark executors write there if they see it, and upload otherwise "
        "(docs/api.md); default: data-dir/payloads."
    )
    payload_url: str | None = Setting(read_bucket)(
        "Prefix in a bucket, such as s3://lake/staged-at-a, in which staged files lie instead; no "
        "other site has it (docs/stores.md). payload-dir then has only what is on its way there."
    )
    roles: tuple[str, ...] = Setting(read_roles, ("master", "replica"))(
        "What the node does: master, replica; or witness, which only votes on epochs and keeps no "
        "data; or follower, alone or with replica: it follows the queue without a vote, and takes "
        "no transactions (docs/replicas.md)."
    )
    follow: tuple[NodeId, ...] = Setting(read_node_ids, ())(
        "Ids of the nodes that a follower gets the queue and all data from, the preferred one "
        "first; they may be followers, too. Default: the members."
    )
    weight: int = Setting(counted(0, MAX_WEIGHT), 1)(
        "Votes of this node in epoch decisions, which choose the members. Votes of a peer: "
        "peer.<n>.weight."
    )
    suspect_timeout: float = Setting(ranged(0, 86_400), 10.0)(
        "Seconds without an answer from a member, or with a broken link to it, after which the "
        "others go on without it if that is safe; 0: never."
    )
    start_timeout: float = Setting(ranged(0, 86_400), 30.0)(
        "The same for members that have not answered since this node started."
    )
    eviction: str = Setting(one_of("auto", "unheard", "manual"), "auto")(
        "auto: the others go on without a missing member; unheard: only without one that no other "
        "member hears either (docs/epochs.md); manual: they wait for it until an operator removes "
        "it. Set the same at all members."
    )
    eviction_guard: tuple[tuple[NodeId, ...], ...] = Setting(read_sets, ())(
        "Sets of members, such as ['A+B', 'C+D']: nobody goes on without a missing member, except "
        "where all of at least one set are there (docs/epochs.md). Default: none. Set the same at "
        "all members."
    )
    fork_hook: Path | None = Setting(_path)(
        "Program that gets both branches as JSON on its input, after this node gave way to another "
        "log by `sparktxlog peer quarantine` (docs/losing-sites.md); it is run until it ends with "
        "0."
    )
    check_addresses: str = Setting(one_of("all", "first", "second", "none"), "all")(
        "Which of a peer's several addresses are tried every suspect-timeout (1 to 60 s) while its "
        "link is at another one: all, only the first or second, or none."
    )
    paused: bool = Setting(read_switch, False)(
        "true: the node takes no transactions, but does all else; set at run time by `sparktxlog "
        "peer pause` and `continue`."
    )
    maintenance_windows: str = Setting(read_windows, "")(
        "When scheduled recounts, and jobs with --in-window, may run, in UTC: 'daily 02:00-06:00; "
        "sat,sun 00:00-24:00'; default: always."
    )
    maintenance_until: str = Setting(read_until, "")(
        "The node is in maintenance until this time (UTC): its alarms are silent; set at run time "
        "by `sparktxlog maintenance begin` and `end`."
    )
    cluster_secret: str | None = Setting(read_text, secret=True)(
        "Secret that signs requests between peers, 16 characters or more; required with peers."
    )
    cluster_secret_file: Path | None = Setting(_path)(
        "File that holds the cluster secret, which no other user may read."
    )
    cluster_secret_also: str | None = Setting(read_text, secret=True)(
        "Another secret that peers may sign with, while cluster-secret is replaced "
        "(docs/access.md)."
    )
    cluster_secret_also_file: Path | None = Setting(_path)(
        "File that holds that other secret, which no other user may read."
    )
    grants_file: Path | None = Setting(_path)(
        "TOML file with clients that have tokens of their own and may write only the tables it "
        "names; needs client-token."
    )
    tls_cert_file: Path | None = Setting(_path)(
        "PEM file with this node's certificate, which makes the node speak TLS "
        "(docs/access.md). Its subjectAltName has node-id as a DNS name, and each host and "
        "address of the node's URLs."
    )
    tls_key_file: Path | None = Setting(_path)(
        "PEM file with the private key of that certificate, without passphrase, which no other "
        "user may read."
    )
    tls_ca_file: Path | None = Setting(_path)(
        "PEM file with the authority, or several, that sign the certificates of all nodes."
    )
    tls_mode: str = Setting(one_of("require", "allow-http"), "require")(
        "What a node with a certificate does without TLS: require: nothing; allow-http: clients "
        "and peers may also use http, while a cluster changes over to https."
    )
    client_token: str | None = Setting(read_text, secret=True)(
        "Bearer token of clients and workers, 16 characters or more; required when listening "
        "elsewhere than on loopback."
    )
    client_token_file: Path | None = Setting(_path)(
        "File that holds the client token, which no other user may read."
    )
    client_token_also: str | None = Setting(read_text, secret=True)(
        "Another token that clients may show, while client-token is replaced (docs/access.md)."
    )
    client_token_also_file: Path | None = Setting(_path)(
        "File that holds that other token, which no other user may read."
    )
    admin_token: str | None = Setting(read_text, secret=True)(
        "Bearer token of operators, 16 characters or more. Operators may do what clients may, and "
        "change members and settings, force, pause and shorten the log. Default: client-token "
        "allows both."
    )
    admin_token_file: Path | None = Setting(_path)(
        "File that holds the admin token, which no other user may read."
    )
    acquisition_quorum: int = Setting(read_quorum)(
        "Members that must hold a transaction before it is ordered: majority, all or a number; "
        "default: all of 2, majority of 3 and more. It applies to the first epoch; `sparktxlog "
        "peer set-quorum` changes it later."
    )
    synchro_quorum: str = Setting(read_holders, "")(
        "Members that must hold a synchronous transaction before it is ordered, its origin "
        "included: a number, or an expression over N, the number of nodes with data, such as "
        "N/2+1, which is the default. It applies to the first epoch; `sparktxlog peer "
        "set-synchro-quorum` changes it later."
    )
    synchro_timeout: float = Setting(ranged(0.01, 86_400), 5.0)(
        "Seconds after which a synchronous transaction is withdrawn that waits for members."
    )
    signature_interval: int = Setting(counted(1, 1_000_000_000), 10_000, shared=True)(
        "Number of positions between two comparisons of the sites' tables."
    )
    id_window: int = Setting(counted(1_000, 100_000_000), 1_000_000, shared=True)(
        "A repeated transaction id is recognised within at least this many positions. This many ids"
        " are in memory, 24 bytes each."
    )
    id_window_time: float = Setting(ranged(60, 366 * 86_400), 86_400.0, shared=True)(
        "A repeated transaction id is also recognised for so many seconds. Ids that are older than "
        "id-window positions are on disk, 20 bytes each."
    )
    condition_window: int = Setting(counted(1_000, 1_000_000_000), 1_000_000, shared=True)(
        "A transaction whose condition was read more than this many positions ago is answered as a"
        " conflict."
    )
    publish_interval: float = Setting(ranged(0.01, 3_600), 0.5)(
        "Time between two Delta commits to the queue table, seconds; less while readers wait for "
        "what is ordered, or with 30,000 transactions."
    )
    log_checkpoint_interval: int = Setting(counted(2, 100_000), 100)(
        "Commits between two checkpoints of a Delta table in `log/` of this node. Fewer: readers "
        "open fewer files, and the publisher works more: a checkpoint took it some 20 ms here."
    )
    publish_lag_limit: float = Setting(ranged(0.1, 86_400), 10.0)(
        "Seconds that ordered transactions may wait to be published.  Above that this node holds "
        "up new ones of its clients, and refuses them as busy after a second; it begins to hold "
        "them up, for a second at most, a second after publish-interval."
    )
    slow_write_limit: float = Setting(ranged(0, 3_600), 0.0)(
        "Seconds that a write of the journal may take, the median of the last ones.  Above that "
        "this node stands aside: the others order without it, as long as two with data are left, "
        "until its writes take less than half. 0: it stays a member, and all commits wait for it."
    )
    lag_interval: float = Setting(ranged(0.1, 86_400), 10.0)(
        "Seconds between two measurements of how far replicas are behind (`log/lag`)."
    )
    lag_retention: int = Setting(counted(60, 3_650 * 86_400), 30 * 86_400)(
        "Seconds for which `log/lag` and `log/rounds` are kept, at least; default: 30 days."
    )
    idle_round_min: float = Setting(ranged(0.01, 3_600), 1.0)(
        "First pause between rounds without work, seconds."
    )
    idle_round_max: float = Setting(ranged(0.01, 86_400), 60.0)(
        "Longest pause between rounds without work, seconds."
    )
    inline_limit: int = Setting(counted(0, 4 << 20), 65_536)(
        "Most bytes of rows, or of files of a commit, that are sent with their transaction."
    )
    run_limit_transactions: int = Setting(counted(1, LONGEST_RUN), LONGEST_RUN)(
        "Most transactions in one run."
    )
    run_limit_bytes: int = Setting(counted(65_536, 64 << 20), 4_194_304)(
        "Most bytes of one run's payload container."
    )
    body_limit: int = Setting(counted(65_536, 1 << 31), 33_554_432)(
        "Most bytes of one request's body, and, if more than 16 MiB, of all requests of a token "
        "that are in memory at the same time; those of all tokens may have 1.5 times as much. "
        "Beyond that requests are refused."
    )
    upload_limit_bytes: int = Setting(counted(1 << 20, 1 << 50), 64 << 30)(
        "Most bytes of files that were uploaded and that no transaction names yet; at most half of "
        "the disk of payload-dir."
    )
    upload_expiry: float = Setting(ranged(60, 30 * 86_400), 86_400.0)(
        "Seconds without progress after which an unfinished upload, or a commit table that was "
        "given a place and never created, is given up."
    )
    connections_limit: int = Setting(counted(16, 65_536), 1_024)(
        "Most open connections of clients and workers; connections of peers are counted separately."
    )
    incoming_limit_bytes: int = Setting(counted(1 << 20, 1 << 40), 536_870_912)(
        "Bytes of own runs not yet ordered; above that submits are refused as busy. A quarter is "
        "for synchronous ones that wait for members, the rest for all others."
    )
    whole_cluster_above_bytes: int = Setting(counted(0, 1 << 50), 0)(
        "Transactions and runs of more bytes (files and rows) are refused while a site is missing "
        "or no member: `members-missing`, definite. So no site has to catch up with a bulk load; "
        "the price: any one site that is down stops such loads. 0: none is refused."
    )
    stage_timeout: float = Setting(ranged(0.01, 86_400), 60.0)(
        "Seconds after which a run with staged files is stamped even if too few members hold the "
        "files."
    )
    worker_heartbeat: float = Setting(ranged(0.1, 3_600), 5.0)(
        "Seconds between a worker's reports."
    )
    worker_dead_after: float = Setting(ranged(0.2, 86_400), 10.0)(
        "Seconds without a report after which a worker counts as dead; at least worker-heartbeat."
    )
    verify_interval: float = Setting(ranged(0, 1_000_000), 168.0)(
        "Hours between two recounts of a row table by a worker with --follow, and of a commit "
        "table by the node; 0: never."
    )
    tx_log_max_size: int = Setting(counted(1, 1 << 40), 100_000)(
        "Transactions that the log keeps after all workers applied them."
    )
    tx_log_max_depth: float = Setting(ranged(0.01, 1_000_000), 168.0)(
        "Longest time that the log keeps transactions, hours."
    )
    tx_log_max_bytes: int = Setting(counted(1 << 20, 1 << 50), 53_687_091_200)(
        "Most bytes of the log. Above that transactions are pruned even if a worker has not applied"
        " them; that worker then needs a copy."
    )
    rejoin_keep_bytes: int = Setting(counted(0, 1 << 50), 1_073_741_824)(
        "Bytes of transactions kept for nodes that are not members at the moment; a node that lacks"
        " more fetches a summary of the queue."
    )
    replication_compression: bool = Setting(read_switch, True, key="replication.compression")(
        "Files that this node sends for copies are compressed (zstd) where that makes them smaller."
    )
    replication_chunk_bytes: int = Setting(
        counted(65_536, 1 << 28), 5_242_880, key="replication.chunk-bytes"
    )("Size of the chunks of a copied file, bytes.")
    replication_streams: int = Setting(counted(1, 256), 8, key="replication.streams")(
        "Number of chunks of a copy that are fetched at the same time."
    )
    replication_lease: float = Setting(ranged(1, 86_400), 120.0, key="replication.lease")(
        "Seconds without a request after which a donor releases the files of a copy."
    )
    replication_donor_share: float = Setting(ranged(0.01, 1), 0.1, key="replication.donor-share")(
        "Share of a donor's time that copies get while its own transactions wait; 1: copies never "
        "wait for transactions."
    )
    backup_dir: Path | None = Setting(_path)(
        "Attic for the old files of a replica that a copy replaces; default: they stay only in the "
        "history of the Delta tables. Those of a lake in a bucket go to the attic there."
    )
    net_speed_bits_per_sec: int = Setting(
        counted(1, 1 << 50), 104_857_600, key="NetSpeedBitsPerSec"
    )("Speed of the network between sites, bit/s, for estimates of copies.")
    full_replication_time_factor: float = Setting(
        ranged(0.01, 1_000), 1.3, key="FullReplicationTimeFactor"
    )("A copy is chosen if a replay is estimated to take this many times longer.")
    min_time_to_consider_full_replication_s: float = Setting(
        ranged(0, 10_000_000), 600.0, key="MinTimeToConsiderFullReplicationS"
    )("A replay that is estimated at so many seconds or fewer is never replaced by a copy.")
    log_level: str = Setting(one_of("debug", "info", "warning", "error"), "info")(
        "Lowest level of log records."
    )
    log_format: str = Setting(one_of("json", "console"), "console")(
        "json: one object per line; console: for people."
    )
    tracing_endpoint: str | None = Setting(read_url)(
        "URL of an OpenTelemetry collector that takes spans by OTLP over HTTP, such as "
        "http://10.0.0.1:4318; needs the extra 'otel' (docs/node-pages.md). Default: what "
        "OTEL_EXPORTER_OTLP_ENDPOINT says, else no spans."
    )
    #: Acquisition quorum as a rule for any number of members: default, all, majority or a number.
    quorum_rule: str = "default"
    peers: tuple[ConfiguredPeer, ...] = ()
    #: What `grants-file` says.
    grants: tuple[ClientGrant, ...] = ()
    #: Log id, once it no longer follows from the configuration; empty before.
    first_log_id: str = ""
    #: Newest wire version to speak, 0 = that of the release; not a setting, for tests of upgrades.
    wire_version: int = 0
    #: Key → where its value was given; missing keys have their defaults.
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def uses_tls(self) -> bool:
        """Whether this node has a certificate."""
        return self.tls_cert_file is not None

    @property
    def is_witness(self) -> bool:
        """Whether this node only votes."""
        return "witness" in self.roles

    @property
    def is_follower(self) -> bool:
        """Whether this node begins as a follower; the decided roster may say otherwise later."""
        return "follower" in self.roles

    @property
    def places(self) -> tuple[ConfiguredPeer, ...]:
        """All configured nodes, this one included, in precedence order: ascending by id."""
        own = ConfiguredPeer(
            id=self.node_id,
            url=self.master_url,
            weight=0 if self.is_follower else self.weight,
            witness=self.is_witness,
            follower=self.is_follower,
        )
        return tuple(sorted((own, *self.peers), key=lambda place: place.id))

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Members of the first epoch in precedence order: no witnesses, and no followers."""
        return tuple(place.id for place in self.places if place.may_be_member)

    @property
    def log_id(self) -> str:
        """Log id: made of the first members, the same on every node, and never changed."""
        if self.first_log_id:
            return self.first_log_id
        names = "\n".join((self.cluster, *self.members))
        return f"{self.cluster}-{hashlib.sha256(names.encode()).hexdigest()[:12]}"

    def peer(self, node_id: str) -> ConfiguredPeer | None:
        """Return the configured peer of that id, or None."""
        return next((peer for peer in self.peers if peer.id == node_id), None)

    def shared_hash(self) -> str:
        """Return a digest of the settings that must be equal on every member."""
        shared = (s for s in SETTINGS if s.shared)
        parts = [f"{one.key}={getattr(self, one.attribute)}" for one in shared]
        return _digest([f"cluster={self.cluster}", *parts])

    def founding_hash(self) -> str:
        """Return a digest of the places and the quorum with which this node would found the log."""
        parts = [
            f"{p.id}={p.urls[0]} weight={p.weight} witness={p.witness} follower={p.follower}"
            for p in self.places
        ]
        if self.synchro_quorum:
            parts.append(f"synchro-quorum={self.synchro_quorum}")
        return _digest([*parts, f"quorum={self.acquisition_quorum}"])


SETTINGS: tuple[Setting, ...] = tuple(
    replace(found, attribute=item.name, key=found.key or item.name.replace("_", "-"))
    for item in fields(NodeConfig)
    if (found := item.metadata.get("setting"))
)
BY_KEY = {found.key: found for found in SETTINGS}
#: Each may also be in a file, which KEY-file names.
SECRETS = tuple(found for found in SETTINGS if found.secret)


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
