"""What schedulers wait for, read from a node's status; and how they call a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparktxlog.health.verdicts import ClusterState, judge, rows_until
from sparktxlog.model.ids import table_name

#: Scheme of the URIs of tables, and of connections.
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
    verdict, waits_for = judge(status), ""
    if wanted is not None:
        waits_for = _waits_for(status, wanted)
    elif verdict.state is not ClusterState.IN_SYNC:
        waits_for = verdict.text
    elif status.get("incoming_transactions"):
        waits_for = "transactions are not ordered yet"
    elif int(status.get("published") or 0) < position:
        waits_for = f"what is after position {status['published']:,} is not published yet"
    differs = verdict.text if verdict.state is ClusterState.DIVERGED else ""
    return SiteProgress(
        applied=applied, position=position, waits_for=waits_for or differs, differs=differs
    )


def _waits_for(status: Mapping[str, Any], wanted: int) -> str:
    """Return why the site lacks a position: of row tables, or of commit tables."""
    applied, published = int(status["applied"]), int(status.get("published") or 0)
    if published < wanted:
        return f"the log is published up to position {published:,}, {wanted:,} is wanted"
    if applied < min(wanted, rows_until(status)):
        return f"the replica is at position {applied:,}, {wanted:,} is wanted"
    behind = (status.get("commit_tables") or {}).get("behind")
    return f"{behind:,} versions of commit tables are not placed yet" if behind else ""
