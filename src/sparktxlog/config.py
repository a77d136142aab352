"""Configuration of a node: one flat table of settings, read from TOML or `.properties`.

Order of precedence: command line > environment (`SPARKTXLOG_<KEY>`, `-` and `.` as `_`) > file >
default.  Relative paths are relative to the directory the process starts in.  Every error names
the file, the key, its value and, where a key is unknown, the nearest valid one.

Names and defaults of the sources (GraphDB-style `node-id`, `master-url`, `peer.<n>.id`,
`NetSpeedBitsPerSec` …) are kept; requirements G39–G47.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparktxlog.errors import ConfigError
from sparktxlog.model.ids import NodeId
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
    read_urls,
    split_urls,
)

ENV_PREFIX = "SPARKTXLOG_"
_PEER_KEY = re.compile(r"peer\.([0-9]{1,4})\.(id|url|weight|role|roles)")
_MAX_FILE_BYTES = 1 << 20
#: Keys of the sources that mean nothing any more (R11): told once, without effect.
_DROPPED_KEYS = ("IncrementalUpdateLimit",)

_log = logging.getLogger("sparktxlog.config")


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
        return _attribute(self.key)


def _attribute(key: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", key).lower().replace("-", "_").replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A configured peer; only these are talked to (G44)."""

    id: NodeId
    #: Its address, or several, separated by commas and tried in turn (V59).
    url: str
    #: Votes in epoch decisions.
    weight: int = 1
    #: True: it votes only.
    witness: bool = False

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses; the first one is the peer's own `master-url`."""
        return split_urls(self.url)


# -- readers of single values ----------------------------------------------------------------------


def _path(value: Any) -> Path:
    return Path(read_text(value)).expanduser().absolute()


# -- the table ------------------------------------------------------------------------------------

SETTINGS: tuple[Setting, ...] = (
    Setting(key="node-id", read=read_node_id, default=None,
            description="Name of this node, unique and stable across all sites (required)."),
    Setting(key="master-url", read=read_url, default=None,
            description="URL under which peers and clients reach this node (required)."),
    Setting(key="listen", read=read_listen, default=None,
            description="host:port to listen on; default: host and port of master-url."),
    Setting(key="cluster", read=read_node_id, default="sparktxlog", shared=True,
            description="Name of the cluster; with the members it names the log's lineage."),
    Setting(key="data-dir", read=_path, default=None,
            description="Directory of the node's own state (required); one process at a time."),
    Setting(key="lake-dir", read=_path, default=None,
            description="Directory of the replica's Delta tables; default: data-dir/lake."),
    Setting(key="payload-dir", read=_path, default=None,
            description="Payload store, seen by node and Spark executors; default: "
            "data-dir/payloads."),
    Setting(key="roles", read=read_roles, default=("master", "replica"),
            description="What the node does: master, replica; or witness, which only votes on "
            "who belongs to the cluster and keeps no data."),
    Setting(key="weight", read=counted(0, MAX_WEIGHT), default=1,
            description="Votes of this node when it is decided who belongs to the cluster; those "
            "of a peer: peer.<n>.weight."),
    Setting(key="suspect-timeout", read=ranged(0, 86_400), default=10.0,
            description="Seconds that a member may owe an answer, or its link be broken, until "
            "the others go on without it, if that is safe; 0: never."),
    Setting(key="start-timeout", read=ranged(0, 86_400), default=30.0,
            description="The same for members that were not heard since this node started."),
    Setting(key="eviction", read=one_of("auto", "manual"), default="auto",
            description="auto: the others go on without a member that is missing; manual: they "
            "wait for it, until an operator removes it."),
    Setting(key="check-addresses", read=one_of("all", "first", "second", "none"), default="all",
            description="Which of a peer's several addresses are tried every suspect-timeout (1 to "
            "60 s) while its link is at another one: all, only the first or second, or none."),
    Setting(key="paused", read=read_switch, default=False,
            description="The node takes no transactions, and does all the rest; set at run time "
            "by `sparktxlog peer pause` and `continue`."),
    Setting(key="cluster-secret", read=read_text, default=None, secret=True,
            description="Secret that signs requests between peers, 16 characters or more; "
            "required with peers."),
    Setting(key="cluster-secret-file", read=_path, default=None,
            description="File that holds the cluster secret."),
    Setting(key="client-token", read=read_text, default=None, secret=True,
            description="Bearer token of clients and workers; required when listening elsewhere "
            "than on loopback."),
    Setting(key="client-token-file", read=_path, default=None,
            description="File that holds the client token."),
    Setting(key="acquisition-quorum", read=read_quorum, default=None,
            description="Members that must hold a transaction before it is ordered: majority, all "
            "or a number; default: all of 2, majority of 3 and more."),
    Setting(key="signature-interval", read=counted(1, 1_000_000_000), default=10_000, shared=True,
            description="Positions between the places where sites compare their tables."),
    Setting(key="id-window", read=counted(1_000, 100_000_000), default=1_000_000, shared=True,
            description="A repeated transaction id is noticed within so many positions."),
    Setting(key="publish-interval", read=ranged(0.01, 3_600), default=0.5,
            description="Least time between two commits to the queue table, seconds."),
    Setting(key="idle-round-min", read=ranged(0.01, 3_600), default=1.0,
            description="First pause between rounds without work, seconds."),
    Setting(key="idle-round-max", read=ranged(0.01, 86_400), default=60.0,
            description="Longest pause between rounds without work, seconds."),
    Setting(key="inline-limit", read=counted(0, 4 << 20), default=65_536,
            description="Bytes of rows of one transaction that may travel with its manifest."),
    Setting(key="run-limit-transactions", read=counted(1, 8_192), default=8_192,
            description="Most transactions in one run."),
    Setting(key="run-limit-bytes", read=counted(65_536, 64 << 20), default=4_194_304,
            description="Most bytes of one run's payload container."),
    Setting(key="body-limit", read=counted(65_536, 1 << 31), default=67_108_864,
            description="Most bytes of one request's body."),
    Setting(key="incoming-limit-bytes", read=counted(1 << 20, 1 << 40), default=536_870_912,
            description="Bytes of runs not yet ordered, beyond which submits are refused as busy."),
    Setting(key="stage-timeout", read=ranged(0.01, 86_400), default=60.0,
            description="Seconds after which a run with staged files is stamped though too few "
            "members hold the files."),
    Setting(key="worker-heartbeat", read=ranged(0.1, 3_600), default=5.0,
            description="Seconds between a worker's reports."),
    Setting(key="worker-dead-after", read=ranged(0.2, 86_400), default=10.0,
            description="Seconds of silence after which a worker counts as dead."),
    Setting(key="tx-log-max-size", read=counted(1, 1 << 40), default=100_000,
            description="Transactions kept in the log once every worker applied them."),
    Setting(key="tx-log-max-depth", read=ranged(0.01, 1_000_000), default=168.0,
            description="Hours that transactions are kept in the log at most."),
    Setting(key="tx-log-max-bytes", read=counted(1 << 20, 1 << 50), default=53_687_091_200,
            description="Bytes of log beyond which transactions are pruned though a worker has "
            "not applied them; that worker then needs a copy."),
    Setting(key="rejoin-keep-bytes", read=counted(0, 1 << 50), default=1_073_741_824,
            description="Bytes of transactions kept for nodes that are no members at the moment; "
            "one that lacks more takes over a snapshot."),
    Setting(key="replication.compression", read=read_switch, default=True, shared=True,
            description="Copies travel compressed (zstd), where a sample of a file says it pays."),
    Setting(key="replication.chunk-bytes", read=counted(65_536, 1 << 28), default=5_242_880,
            description="Size of the chunks in which files of a copy travel."),
    Setting(key="replication.streams", read=counted(1, 256), default=8,
            description="Chunks of a copy that are fetched at once."),
    Setting(key="replication.max-donors", read=counted(1, 64), default=3,
            description="Donors that one copy reads from at most."),
    Setting(key="replication.lease", read=ranged(1, 86_400), default=120.0,
            description="Seconds after which a donor gives up the pins of a silent copy."),
    Setting(key="replication.donor-share", read=ranged(0.01, 1), default=0.1,
            description="Part of the time in which a donor serves copies while transactions of "
            "its own are on their way; 1: copies never yield."),
    Setting(key="backup-dir", read=_path, default=None,
            description="Where the old files of a replica are kept before a copy replaces it; "
            "default: they stay as Delta history only."),
    Setting(key="NetSpeedBitsPerSec", read=counted(1, 1 << 50), default=104_857_600,
            description="Speed of the network between sites, for estimates of copying."),
    Setting(key="FullReplicationTimeFactor", read=ranged(0.01, 1_000), default=1.3,
            description="Copying is chosen when replaying takes so many times longer."),
    Setting(key="MinTimeToConsiderFullReplicationS", read=ranged(0, 10_000_000), default=600.0,
            description="Replays estimated below so many seconds are never replaced by a copy."),
    Setting(key="log-level", read=one_of("debug", "info", "warning", "error"), default="info",
            description="Least level of log records."),
    Setting(key="log-format", read=one_of("json", "console"), default="console",
            description="json: one object per line; console: for people."),
)  # fmt: skip
_BY_KEY = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Checked settings of a node; `SETTINGS` describes each field."""

    node_id: NodeId
    master_url: str
    listen: tuple[str, int]
    cluster: str
    data_dir: Path
    lake_dir: Path
    payload_dir: Path
    roles: tuple[str, ...]
    weight: int
    suspect_timeout: float
    start_timeout: float
    eviction: str
    check_addresses: str
    paused: bool
    cluster_secret: str | None = field(repr=False)
    cluster_secret_file: Path | None
    client_token: str | None = field(repr=False)
    client_token_file: Path | None
    #: Number of members of the first epoch, resolved.
    acquisition_quorum: int
    #: The same as a rule for any number of members: default, all, majority or a number.
    quorum_rule: str
    signature_interval: int
    id_window: int
    publish_interval: float
    idle_round_min: float
    idle_round_max: float
    inline_limit: int
    run_limit_transactions: int
    run_limit_bytes: int
    body_limit: int
    incoming_limit_bytes: int
    stage_timeout: float
    worker_heartbeat: float
    worker_dead_after: float
    tx_log_max_size: int
    tx_log_max_depth: float
    tx_log_max_bytes: int
    rejoin_keep_bytes: int
    replication_compression: bool
    replication_chunk_bytes: int
    replication_streams: int
    replication_max_donors: int
    replication_lease: float
    replication_donor_share: float
    backup_dir: Path | None
    net_speed_bits_per_sec: int
    full_replication_time_factor: float
    min_time_to_consider_full_replication_s: float
    log_level: str
    log_format: str
    peers: tuple[Peer, ...]
    #: Name of the log once it does not follow from the configuration any more; empty before.
    log_lineage: str = ""
    #: Key → where its value was given; what is missing has its default.
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_witness(self) -> bool:
        """Whether this node only votes."""
        return "witness" in self.roles

    @property
    def places(self) -> tuple[Peer, ...]:
        """All configured nodes, this one included, in precedence order: ascending by id."""
        own = Peer(
            id=self.node_id, url=self.master_url, weight=self.weight, witness=self.is_witness
        )
        return tuple(sorted((own, *self.peers), key=lambda place: place.id))

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Members of the first epoch in precedence order: all places that are no witnesses."""
        return tuple(place.id for place in self.places if not place.witness)

    @property
    def lineage(self) -> str:
        """Name of the log: of the first members, the same on every node, and kept for ever."""
        if self.log_lineage:
            return self.log_lineage
        names = "\n".join((self.cluster, *self.members))
        return f"{self.cluster}-{hashlib.sha256(names.encode()).hexdigest()[:12]}"

    def peer(self, node_id: str) -> Peer | None:
        """Return the configured peer of that id, or None."""
        return next((peer for peer in self.peers if peer.id == node_id), None)

    def shared_hash(self) -> str:
        """Return a digest of the settings that must be equal on every member."""
        parts = [f"cluster={self.cluster}"]
        parts += [f"{s.key}={getattr(self, s.attribute)}" for s in SETTINGS if s.shared]
        return _digest(parts)

    def founding_hash(self) -> str:
        """Return a digest of the places and the quorum, as this node would begin the log."""
        parts = [f"{p.id}={p.urls[0]} weight={p.weight} witness={p.witness}" for p in self.places]
        return _digest([*parts, f"quorum={self.acquisition_quorum}"])


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


# -- reading --------------------------------------------------------------------------------------


def load_config(
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> NodeConfig:
    """Read and check a node's configuration.

    Args:
        path: A `.toml` or `.properties` file; None = no file.
        overrides: Values of the command line by key (`node-id`, `peer.1.url`); None is skipped.
        environ: Environment variables; default: those of the process.

    Raises:
        ConfigError: Unknown key or wrong value; fields `file`, `key`, `value` (definite).
    """
    environ = os.environ if environ is None else environ
    values: dict[str, tuple[Any, str]] = {}
    given = {} if path is None else _without_dropped(_read_file(Path(path)), str(path))
    for key, value in given.items():
        _known_key(key, value, str(path))
        values[key] = (value, str(path))
    for key, value, name in _from_environment(environ):
        values[key] = (value, f"environment variable {name}")
    for key, value in _without_dropped(overrides or {}, "command line").items():
        if value is not None:
            _known_key(key, value, "command line")
            values[key] = (value, "command line")
    where = str(path) if path is not None else "configuration"
    return _resolve(values, where)


def _without_dropped(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values without the keys that mean nothing any more, with one warning for each."""
    for key in _DROPPED_KEYS:
        if key in values:
            _log.warning("%s: %s is not supported any more and has no effect", where, key)
    return {key: value for key, value in values.items() if key not in _DROPPED_KEYS}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}",
            hint="Name an existing file with --config.",
            file=str(path),
        ) from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than 1 MiB", file=str(path))
    try:
        text = data.decode()
        if path.suffix == ".properties":
            return _read_properties(text)
        return _flatten(tomllib.loads(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", file=str(path)) from error


def _read_properties(text: str) -> dict[str, Any]:
    values = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"line {number}: expected key=value")
        values[key.strip()] = value.strip()
    return values


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    found = []
    by_name = {
        f"{ENV_PREFIX}{s.key.upper().replace('-', '_').replace('.', '_')}": s.key for s in SETTINGS
    }
    for name, value in sorted(environ.items()):
        if name in by_name:
            found.append((by_name[name], value, name))
        elif match := re.fullmatch(ENV_PREFIX + r"PEER_([0-9]{1,4})_(ID|URL|WEIGHT|ROLES?)", name):
            found.append((f"peer.{match[1]}.{match[2].lower()}", value, name))
    return found


def _known_key(key: str, value: Any, where: str) -> None:
    if key in _BY_KEY or _PEER_KEY.fullmatch(key):
        return
    names = [*_BY_KEY, *(f"peer.1.{part}" for part in _PEER_READERS)]
    lowered = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), list(lowered), n=1, cutoff=0.4)
    meant = _BY_KEY.get(lowered[near[0]]) if near else None
    shown = "(hidden)" if meant is not None and meant.secret else repr(value)[:120]
    raise ConfigError(
        f"{where}: unknown key {key[:80]!r} (value {shown})",
        hint=f"Did you mean {lowered[near[0]]!r}?" if near else "See `sparktxlog config show`.",
        file=where,
        key=key,
        value=shown,
    )


def _wrong(where: str, key: str, value: Any, why: str, hint: str = "") -> ConfigError:
    setting = _BY_KEY.get(key)
    shown = "(hidden)" if setting is not None and setting.secret else repr(value)[:120]
    return ConfigError(
        f"{where}: {key} = {shown}: {why}",
        hint=hint or (setting.description if setting is not None else ""),
        file=where,
        key=key,
        value=shown,
    )


def _missing(where: str, key: str, why: str = "is required") -> ConfigError:
    hint = _BY_KEY[key].description if key in _BY_KEY else ""
    return ConfigError(f"{where}: {key} {why}", hint=hint, file=where, key=key, value="")


def _resolve(values: Mapping[str, tuple[Any, str]], where: str) -> NodeConfig:
    read: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.key not in values:
            read[setting.attribute] = setting.default
            continue
        value, source = values[setting.key]
        try:
            read[setting.attribute] = setting.read(value)
        except ValueError as error:
            raise _wrong(source, setting.key, value, str(error)) from error
    for key in ("node-id", "master-url", "data-dir"):
        if read[_attribute(key)] is None:
            raise _missing(where, key)
    read["origins"] = {
        key: f"file {source}" if source == where else source for key, (_, source) in values.items()
    }
    read["peers"] = _resolve_peers(values, read, where)
    _resolve_places(read)
    _resolve_secrets(read, where)
    _resolve_quorum(read, values, where)
    for low, high in (("idle-round-min", "idle-round-max"), ("worker-heartbeat",
                                                             "worker-dead-after")):  # fmt: skip
        if read[_attribute(low)] > read[_attribute(high)]:
            source = values.get(high, values.get(low, (None, where)))[1]
            raise _wrong(source, high, read[_attribute(high)], f"is less than {low}")
    return NodeConfig(**{f.name: read[f.name] for f in fields(NodeConfig) if f.name in read})


def _resolve_places(read: dict[str, Any]) -> None:
    if read["listen"] is None:
        parts = urlsplit(read["master_url"])
        read["listen"] = (
            parts.hostname or "127.0.0.1",
            parts.port or (443 if parts.scheme == "https" else 80),
        )
    for name, folder in (("lake_dir", "lake"), ("payload_dir", "payloads")):
        if read[name] is None:
            read[name] = read["data_dir"] / folder


def _is_witness(value: Any) -> bool:
    return "witness" in read_roles(value)


_PEER_READERS: dict[str, Callable[[Any], Any]] = {
    "id": read_node_id,
    "url": read_urls,
    "weight": counted(0, MAX_WEIGHT),
    "roles": _is_witness,
}


def _resolve_peers(
    values: Mapping[str, tuple[Any, str]], read: Mapping[str, Any], where: str
) -> tuple[Peer, ...]:
    numbers: dict[int, dict[str, tuple[Any, str]]] = {}
    for key, (value, source) in values.items():
        if match := _PEER_KEY.fullmatch(key):
            part = "roles" if match[2] == "role" else match[2]
            try:
                found = _PEER_READERS[part](value)
            except ValueError as error:
                raise _wrong(source, key, value, str(error)) from error
            numbers.setdefault(int(match[1]), {})[part] = (found, source)
    taken = {read["node_id"]: "node-id", read["master_url"]: "master-url"}
    peers = []
    for number, parts in sorted(numbers.items()):
        for name in ("id", "url"):
            key = f"peer.{number}.{name}"
            if name not in parts:
                raise _missing(where, key)
            value, source = parts[name]
            for one in split_urls(value):
                if one in taken:
                    raise _wrong(source, key, value, f"is already given by {taken[one]}")
                taken[one] = key
        peers.append(
            Peer(
                id=NodeId(parts["id"][0]),
                url=parts["url"][0],
                weight=parts.get("weight", (1, ""))[0],
                witness=parts.get("roles", (False, ""))[0],
            )
        )
    return tuple(peers)


def _resolve_secrets(read: dict[str, Any], where: str) -> None:
    for name in ("cluster-secret", "client-token"):
        file = read[_attribute(f"{name}-file")]
        if file is not None:
            if read[_attribute(name)] is not None:
                raise _wrong(where, f"{name}-file", str(file), f"{name} is given as well")
            try:
                read[_attribute(name)] = read_text(file.read_text())
            except (OSError, ValueError) as error:
                raise _wrong(where, f"{name}-file", str(file), str(error)) from error
    secret = read["cluster_secret"]
    if read["peers"] and secret is None:
        raise _missing(where, "cluster-secret", "is required with peers")
    if secret is not None and len(secret) < 16:
        raise _wrong(where, "cluster-secret", secret, "is shorter than 16 characters")
    if read["client_token"] is None and not _is_loopback(read["listen"][0]):
        raise _missing(
            where, "client-token", f"is required when listening on {read['listen'][0]!r}"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _resolve_quorum(
    read: dict[str, Any], values: Mapping[str, tuple[Any, str]], where: str
) -> None:
    own_witness = read["roles"] == ("witness",)
    members = sum(not witness for witness in (own_witness, *(p.witness for p in read["peers"])))
    if members == 0:
        raise _missing(where, "roles", "leave no member: a witness keeps no data")
    if read["weight"] + sum(peer.weight for peer in read["peers"]) == 0:
        raise _wrong(where, "weight", 0, "nobody has a vote")
    wanted = read["acquisition_quorum"]
    read["quorum_rule"] = "default" if wanted is None else str(wanted)
    if wanted is None:
        wanted = "all" if members <= 2 else "majority"
    number = {"all": members, "majority": members // 2 + 1}.get(wanted, wanted)
    if not isinstance(number, int) or number > members:
        source = values["acquisition-quorum"][1]
        raise _wrong(source, "acquisition-quorum", wanted, f"there are {members} members")
    read["acquisition_quorum"] = number
