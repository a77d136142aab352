"""How a node begins: the core's settings, from the configuration or an order to join."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from sparktxlog.config import NodeConfig
from sparktxlog.errors import NewerReleaseError
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.versions import NEWEST, OLDEST
from sparktxlog.protocol.messages.view import Seat, View
from sparktxlog.runtime.membership.join_orders import JoinOrder, join_order
from sparktxlog.runtime.membership.standings import INSTANCE
from sparktxlog.storage.interfaces import PutValue

#: Name of the log, given when it was founded.
_LOG_ID = "log_id"
#: Wire version in force when it was founded; older logs do not have this value.
_VERSION = "founding-version"
_US = 1_000_000


def configured_seats(config: NodeConfig) -> tuple[Seat, ...]:
    """Return the roster that the configuration describes, in precedence order."""
    return tuple(
        Seat(
            node_id=place.id,
            url=place.url,
            weight=place.weight,
            witness=place.witness,
            follower=place.follower,
        )
        for place in config.places
    )


def core_config(
    config: NodeConfig,
    *,
    order: JoinOrder | None = None,
    incarnation: int = 1,
    values: Mapping[str, bytes] = MappingProxyType({}),
) -> MasterConfig:
    """Return the core's settings.

    Args:
        order: The order to join, None = the node founds the log.  A node that joins is no member of
            any epoch until it is admitted.
        values: Of the journal: the wire version in force when the log was founded (`found`).
    """
    members, version = config.members, int(values.get(_VERSION, OLDEST))
    if order is not None:
        incarnation = max(incarnation, order.incarnation)
        members = tuple(member for member in members if member != config.node_id)
        version = OLDEST
    return MasterConfig(
        node_id=config.node_id,
        members=members,
        quorum=min(config.acquisition_quorum, max(1, len(members))),
        log_id=config.log_id if order is None else order.log_id,
        epoch=1 if order is None else 0,
        incarnation=incarnation,
        suspect_timeout_us=int(config.suspect_timeout * _US),
        start_timeout_us=int(config.start_timeout * _US),
        auto_evict=config.eviction != "manual",
        keeps_heard=config.eviction == "unheard",
        guard=tuple(map(frozenset, config.eviction_guard)),
        quorum_rule=config.quorum_rule,
        roster=configured_seats(config),
        follow=config.follow,
        # A witness keeps no queue whose ids could be repeated.
        id_window=1 if config.is_witness else config.id_window,
        id_window_us=int(config.id_window_time * _US),
        condition_window=config.condition_window,
        push_limit_bytes=config.run_limit_bytes,
        inline_limit_bytes=config.inline_limit,
        stage_timeout_us=int(config.stage_timeout * _US),
        synchro_rule=config.synchro_quorum,
        idle_round_min_us=int(config.idle_round_min * _US),
        idle_round_max_us=int(config.idle_round_max * _US),
        max_run=config.run_limit_transactions,
        max_incoming_bytes=config.incoming_limit_bytes,
        newest=newest_version(config),
        version=version,
    )


def found(config: NodeConfig, values: Mapping[str, bytes]) -> list[PutValue]:
    """Return the writes of a node's first start: wire version and name of the log that it founds.

    The log uses this release's wire version from its first epoch on; nodes of an older release
    cannot found it together with this one (P31).

    If one node founds a log, its name has a random part: otherwise a worker could not distinguish
    it from another log of the same cluster and node.  If several nodes found a log, its name
    follows from the cluster's name and its members, so that all know it before they meet.
    """
    if INSTANCE in values or join_order(values) is not None:
        return []
    writes = [PutValue(name=_VERSION, value=str(newest_version(config)).encode())]
    if not config.peers:
        name = f"{config.cluster}-{uuid.uuid4().hex[:12]}"
        writes.append(PutValue(name=_LOG_ID, value=name.encode()))
    return writes


def newest_version(config: NodeConfig) -> int:
    """Return the newest wire version that this node speaks."""
    return config.wire_version or NEWEST


def check_version(config: NodeConfig, core: RecoveredState, directory: Path) -> None:
    """Check that this release speaks the wire version of the log on this disk (P31).

    Raises:
        NewerReleaseError: A newer release raised the log's version (definite).
    """
    newest, version = newest_version(config), OLDEST if core.view is None else core.view.version
    if core.ballot is not None and core.ballot.accepted is not None:
        version = max(version, core.ballot.accepted.view.version)
    if version > newest:
        raise NewerReleaseError(
            f"{directory}: the log uses wire version {version}, this release speaks {OLDEST} to "
            f"{newest}",
            hint="Start the newer release: the log's version never goes back.",
            path=str(directory),
        )


def with_log_id(
    config: NodeConfig,
    view: View | None,
    order: JoinOrder | None,
    values: Mapping[str, bytes] = MappingProxyType({}),
) -> NodeConfig:
    """Return the settings with the log's first log id, if it does not follow from them.

    Workers and tables always know a log by its first log id: a log that `force` made continues the
    same positions and hashes.

    Args:
        values: Of the journal: the name that the log got when it was founded (`found`).
    """
    if view is not None:
        return replace(config, first_log_id=view.ancestors[0][0] if view.ancestors else view.log_id)
    if order is not None:
        return replace(config, first_log_id=order.log or order.log_id)
    founded = values.get(_LOG_ID, b"").decode()
    return replace(config, first_log_id=founded) if founded and not config.peers else config
