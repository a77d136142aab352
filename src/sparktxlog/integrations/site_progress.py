"""What schedulers wait for, read from a node's status; and how they call a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparktxlog.health.verdicts import ClusterState, alarms_of, judge_status
from sparktxlog.model.ids import table_name

#: Of the URIs of tables, and of connections.
SCHEME = "sparktxlog"
#: The default of the setting `cluster`.
CLUSTER = "sparktxlog"


def schema_and_table(table: str) -> tuple[str, str]:
    """Return both parts of a table's name; `orders` is in schema `default`."""
    schema, _, name = table_name(table).rpartition(".")
    return schema or "default", name


def table_uri(table: str, cluster: str = CLUSTER) -> str:
    """Return how a table is called outside, the same at all sites: `sparktxlog://CLUSTER/SCHEMA/TABLE`.

    Raises:
        InvalidNameError: No table can have this name (definite).
    """
    schema, name = schema_and_table(table)
    return f"{SCHEME}://{cluster}/{schema}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProgress:
    """How far a site is, compared with what somebody waits for."""

    #: The position that the site's replica has applied.
    applied: int
    #: The last position of the log that the node knows.
    position: int
    #: Why it is not reached yet, in a sentence; empty = it is.
    waits_for: str
    #: What waiting does not mend: replicas that differ, a node that halted; empty = nothing.
    differs: str


def progress_of(status: Mapping[str, Any], wanted: int | None) -> SiteProgress:
    """Return how far a site is, by the status of its node.

    Args:
        status: The answer of `/v1/status`.
        wanted: Position that the site's replica must have applied; None = all replicas of all sites
            have applied the whole log, and are equal.
    """
    applied, position = int(status["applied"]), int(status["position"])
    state = judge_status(status)
    alarms = [one["text"] for one in alarms_of(status)]
    waits_for = ""
    if wanted is not None:
        if applied < wanted:
            waits_for = f"the replica is at position {applied:,}, {wanted:,} is wanted"
    elif lacking := _without_replica(status):
        waits_for = f"no worker has reported for {', '.join(lacking)}"
    elif late := [
        f"{line['node_id']} at {line['position']:,}"
        for line in status["replicas"]
        if line["position"] < position
    ]:
        waits_for = f"replicas are behind position {position:,}: {', '.join(late)}"
    elif state is not ClusterState.IN_SYNC or status.get("incoming_transactions"):
        waits_for = (alarms or ["transactions are not ordered yet"])[0]
    differs = alarms[0] if state is ClusterState.DIVERGED and alarms else ""
    return SiteProgress(applied=applied, position=position, waits_for=waits_for, differs=differs)


def _without_replica(status: Mapping[str, Any]) -> list[str]:
    """Return the members with data that no worker has reported for."""
    known = {line["node_id"] for line in status["replicas"]}
    places = {place["id"] for place in status["roster"] if place["member"] and not place["witness"]}
    return sorted(places - known)
