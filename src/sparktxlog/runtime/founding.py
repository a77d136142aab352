"""How a node begins: the core's settings, from the configuration or as one that joins."""

from __future__ import annotations

from dataclasses import replace

from sparktxlog.config import NodeConfig
from sparktxlog.protocol.recovery import MasterConfig
from sparktxlog.protocol.view import Seat, View
from sparktxlog.runtime.joining import JoinOrder

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
        push_limit_bytes=config.run_limit_bytes,
        inline_limit_bytes=config.inline_limit,
        stage_timeout_us=int(config.stage_timeout * _US),
        idle_round_min_us=int(config.idle_round_min * _US),
        idle_round_max_us=int(config.idle_round_max * _US),
        max_run=config.run_limit_transactions,
        max_incoming_bytes=config.incoming_limit_bytes,
    )


def with_lineage(config: NodeConfig, view: View | None, order: JoinOrder | None) -> NodeConfig:
    """Return the settings with the name of the log, where it does not follow from them any more.

    Workers and tables know a log by its first lineage for ever: what `force` makes of it continues
    the same positions and hashes.
    """
    if view is not None:
        return replace(config, log_lineage=view.ancestors[0][0] if view.ancestors else view.lineage)
    return config if order is None else replace(config, log_lineage=order.log or order.lineage)
