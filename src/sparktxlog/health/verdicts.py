"""Is it well: one verdict for a node's cluster, and what a person must look at.

Functions take `/v1/status` as it comes from a node, which may be of an older release.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from sparktxlog.model.status_words import (
    restricted_text,
    synchronous_text,
    uncompared_text,
    upgrade_text,
    verdict_text,
)

_WITHOUT_PART = ("IDLE", "JOINING")
_BAD_VERDICTS = ("DIVERGED", "FOREIGN")


class ClusterState(str, Enum):
    """The state of the cluster as one node's status shows it."""

    IN_SYNC = "in sync"
    LAGGING = "lagging"
    DIVERGED = "diverged"


def judge_status(status: Mapping[str, Any]) -> ClusterState:
    """Return the state of the cluster as `/v1/status` of one node shows it.

    DIVERGED: a replica or a commit table differs from the log or from another one, or the node
    halted.  LAGGING: the node is not a member of its epoch or has no quorum, one of its tasks
    fails, a node is missing while transactions wait, a replica is behind what is published, a
    worker stands still or is silent, or a commit table lacks versions here.
    A worker that ended, and whose replica has everything, is in sync: a scheduler may run it.
    """
    if status.get("halted"):
        return ClusterState.DIVERGED
    replicas = list(status.get("replicas") or [])
    if any(map(is_diverged, replicas)):
        return ClusterState.DIVERGED
    commit_tables = dict((status.get("commit_tables") or {}).get("states") or {})
    if commit_tables.pop("diverged", 0):
        return ClusterState.DIVERGED
    if status.get("phase") in _WITHOUT_PART or status.get("restricted") or status.get("failing"):
        return ClusterState.LAGGING
    if status.get("waiting_for") and status.get("incoming_transactions"):
        return ClusterState.LAGGING
    if any(replica.get("silent") or replica.get("error") for replica in replicas):
        return ClusterState.LAGGING
    if any(number for state, number in commit_tables.items() if state != "in-sync"):
        return ClusterState.LAGGING
    published = int(status.get("published") or 0)
    if any(int(replica.get("position") or 0) < published for replica in replicas):
        return ClusterState.LAGGING
    return ClusterState.IN_SYNC


def alarms_of(status: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what a person must look at: `severity` is alarm or warning, `text` a sentence."""

    def alarm(text: str) -> dict[str, str]:
        return {"severity": "alarm", "text": text}

    def warning(text: str) -> dict[str, str]:
        return {"severity": "warning", "text": text}

    if until := status.get("maintenance_until"):
        return [warning(f"In maintenance until {until}: other alarms of this node are silent.")]
    found = [alarm(f"This node halted: {status['halted']}")] if status.get("halted") else []
    for line in status.get("replicas") or []:
        if is_diverged(line):
            site = f"Site {line['node_id']}, worker {line['worker_id']}"
            found.append(alarm(f"{site}: {verdict_text(line)}: {line['reason']}"))
    for table in (status.get("commit_tables") or {}).get("tables") or []:
        if table["state"] == "diverged":
            found.append(alarm(f"Commit table {table['name']} differs here: {table['reason']}"))
    if status.get("phase_reason") and status["phase"] not in ("NORMAL", "WITNESS", "FAULT"):
        found.append(warning(f"{status['phase']}: {status['phase_reason']}"))
    found += [warning(f"{name} does not answer") for name in status.get("suspects") or []]
    texts = [one["text"] for one in status.get("warnings") or []]
    texts += [
        f"{one['task']} fails, {one['times']:,} times: {one['text']}"
        for one in status.get("failing") or []
    ]
    if restricted := status.get("restricted"):
        texts.append(restricted_text(restricted))
    if text := synchronous_text(status):
        texts.append(text)
    if uncompared := status.get("uncompared"):
        texts.append(uncompared_text(uncompared))
    if status.get("wire_version_waits_for"):
        texts.append(upgrade_text(status))
    return [*found, *map(warning, texts)]


def is_diverged(replica: Mapping[str, Any]) -> bool:
    """Return whether a replica differs from the log or from others."""
    return replica.get("verdict") in _BAD_VERDICTS or bool(replica.get("contested"))
