"""The checked settings of one node, and what follows from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparktxlog.config.settings_table import SETTINGS
from sparktxlog.model.ids import NodeId
from sparktxlog.model.values import split_urls


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A configured peer; only these are talked to."""

    id: NodeId
    #: Its address, or several, separated by commas and tried in turn.
    url: str
    #: Votes in epoch decisions.
    weight: int = 1
    #: True: it votes only.
    witness: bool = False

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses; the first one is the peer's own `master-url`."""
        return split_urls(self.url)


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
    admin_token: str | None = field(repr=False)
    admin_token_file: Path | None
    #: Number of members of the first epoch, resolved.
    acquisition_quorum: int
    #: The same as a rule for any number of members: default, all, majority or a number.
    quorum_rule: str
    signature_interval: int
    id_window: int
    id_window_time: float
    publish_interval: float
    idle_round_min: float
    idle_round_max: float
    inline_limit: int
    run_limit_transactions: int
    run_limit_bytes: int
    body_limit: int
    connections_limit: int
    incoming_limit_bytes: int
    stage_timeout: float
    worker_heartbeat: float
    worker_dead_after: float
    verify_interval: float
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
    #: Newest wire version to speak, 0 = that of the release; for tests of upgrades, no setting.
    wire_version: int = 0
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
