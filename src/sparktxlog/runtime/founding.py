"""How a node begins: the core's settings, from the configuration or as one that joins."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from sparktxlog.config import NodeConfig
from sparktxlog.protocol.recovery import MasterConfig
from sparktxlog.protocol.view import Seat, View
from sparktxlog.runtime.joining import JoinOrder, join_order
from sparktxlog.runtime.standings import INSTANCE
from sparktxlog.storage.interfaces import PutValue

#: Name of the log, given when it was founded.
_LINEAGE = "lineage"
_US = 1_000_000


def configured_seats(config: NodeConfig) -> tuple[Seat, ...]:
    """Return the roster that the configuration describes, in precedence order."""
    return tuple(
        Seat(node_id=place.id, url=place.url, weight=place.weight, witness=place.witness)
        for place in config.places
    )


def core_config(
    config: NodeConfig, *, order: JoinOrder | None = None, incarnation: int = 1
) -> MasterConfig:
    """Return the core's settings.

    Args:
        order: What a node was told that joins: it is no member of the log's first epoch, nor of
            any other one until it is admitted.
        incarnation: Of this node.
    """
    members = config.members
    if order is not None:
        incarnation = max(incarnation, order.incarnation)
        members = tuple(member for member in members if member != config.node_id)
    return MasterConfig(
        node_id=config.node_id,
        members=members,
        quorum=min(config.acquisition_quorum, max(1, len(members))),
        lineage=config.lineage if order is None else order.lineage,
        epoch=1 if order is None else 0,
        incarnation=incarnation,
        suspect_timeout_us=int(config.suspect_timeout * _US),
        start_timeout_us=int(config.start_timeout * _US),
        auto_evict=config.eviction == "auto",
        quorum_rule=config.quorum_rule,
        roster=configured_seats(config),
        # A witness keeps no queue whose ids could be repeated.
        id_window=1 if config.is_witness else config.id_window,
        id_window_us=int(config.id_window_time * _US),
        push_limit_bytes=config.run_limit_bytes,
        inline_limit_bytes=config.inline_limit,
        stage_timeout_us=int(config.stage_timeout * _US),
        idle_round_min_us=int(config.idle_round_min * _US),
        idle_round_max_us=int(config.idle_round_max * _US),
        max_run=config.run_limit_transactions,
        max_incoming_bytes=config.incoming_limit_bytes,
    )


def found_alone(config: NodeConfig, values: Mapping[str, bytes]) -> list[PutValue]:
    """Return the write that gives the log of a node alone its name, if this is its first start.

    A log that one node begins would have the name of any other that a node of this id began, and a
    worker could not tell them apart.  The name of one that several nodes begin together follows
    from the cluster's name and its members, so that all have it before they ever met.  Old logs
    keep theirs.
    """
    if config.peers or INSTANCE in values or join_order(values) is not None:
        return []
    name = f"{config.cluster}-{uuid.uuid4().hex[:12]}"
    return [PutValue(name=_LINEAGE, value=name.encode())]


def with_lineage(
    config: NodeConfig,
    view: View | None,
    order: JoinOrder | None,
    values: Mapping[str, bytes] = MappingProxyType({}),
) -> NodeConfig:
    """Return the settings with the name of the log, where it does not follow from them any more.

    Workers and tables know a log by its first lineage for ever: what `force` makes of it continues
    the same positions and hashes.

    Args:
        values: Kept by the front: the name that the log got when it was founded (`found_alone`).
    """
    if view is not None:
        return replace(config, log_lineage=view.ancestors[0][0] if view.ancestors else view.lineage)
    if order is not None:
        return replace(config, log_lineage=order.log or order.lineage)
    founded = values.get(_LINEAGE, b"").decode()
    return replace(config, log_lineage=founded) if founded else config
