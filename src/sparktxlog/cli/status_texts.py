"""What a node's answers mean: in sync, lagging or diverged; who is awaited; the latest runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from sparktxlog.cli.node_api import NodeApi
from sparktxlog.cli.output import ExitCode
from sparktxlog.model.operation import LONGEST_RUN
from sparktxlog.worker.apply.cutting import runs_behind

_WITHOUT_PART = ("IDLE", "JOINING")
_BAD_VERDICTS = ("DIVERGED", "FOREIGN")
#: Stands behind a verdict where replicas differ and nobody can say who is right.
CONTESTED = ", contested"


def judge_status(status: Mapping[str, Any]) -> ExitCode:
    """Return what a node's `/v1/status` says about the cluster as this node sees it.

    DIVERGED: a replica differs from the log or from another one, or the node halted.  LAGGING: the
    node is no member of its epoch or has no quorum, a task of it fails, a peer is awaited while
    transactions wait, a replica is behind what is published, or a worker stands still or went
    silent without an end.
    One that ended, and whose replica has everything, is in sync: workers may run from a scheduler.
    """
    if status.get("halted"):
        return ExitCode.DIVERGED
    replicas = list(status.get("replicas") or [])
    if any(r.get("verdict") in _BAD_VERDICTS or r.get("contested") for r in replicas):
        return ExitCode.DIVERGED
    if status.get("phase") in _WITHOUT_PART or status.get("restricted") or status.get("failing"):
        return ExitCode.LAGGING
    if status.get("waiting_for") and status.get("incoming_transactions"):
        return ExitCode.LAGGING
    if any(replica.get("silent") or replica.get("error") for replica in replicas):
        return ExitCode.LAGGING
    published = int(status.get("published") or 0)
    if any(int(replica.get("position") or 0) < published for replica in replicas):
        return ExitCode.LAGGING
    return ExitCode.IN_SYNC


def state_word(code: ExitCode) -> str:
    """Return the word for a judged state."""
    words = {ExitCode.IN_SYNC: "in sync", ExitCode.LAGGING: "lagging"}
    return words.get(code, "diverged")


def verdict_text(replica: Mapping[str, Any]) -> str:
    """Return the verdict on a replica, and whether another one contests it."""
    verdict = str(replica.get("verdict") or "")
    return verdict + CONTESTED if replica.get("contested") else verdict


def alive_text(replica: Mapping[str, Any]) -> str:
    """Return whether a replica's worker reports, and whether it should."""
    return "SILENT" if replica.get("silent") else "yes" if replica.get("alive") else "no"


def awaited_text(waiting: Mapping[str, Any]) -> str:
    """Return who is awaited and why, in one sentence."""
    reasons = {
        "promise": "its timestamp counter (no post since)",
        "acquired": "its confirmation that it holds the data",
        "payload": "its data",
        "self-payload": "this node does not have the data itself",
        "admission": "its confirmation that this node is a member again",
    }
    why = str(waiting.get("why", ""))
    since = waiting.get("since_us")
    text = f"{waiting.get('peer')}: {reasons.get(why, why)}"
    if isinstance(since, (int, float)) and since > 0:
        text += f", for {_age_text(since)}"
    return text


def restricted_text(found: Mapping[str, Any]) -> str:
    """Return what a node can do without a quorum, and whom it waits for, in one sentence."""
    levels = found.get("levels") or ["accepted"]
    return (
        f"restricted: too few nodes answer, it waits for {', '.join(found['waits_for'])}, for "
        f"{_age_text(found['since_us'])}; nothing is ordered, level {levels[-1]} is possible"
    )


def upgrade_text(found: Mapping[str, Any]) -> str:
    """Return by which wire version the log works, and which nodes keep it there (P31)."""
    waits = [
        f"{node} ({'speaks up to ' + str(peer['newest']) if peer['linked'] else 'not linked'})"
        for node, peer in found["wire_version_waits_for"].items()
    ]
    return (
        f"wire version {found['wire_version']} is in force, {found['wire_versions'][1]} waits for "
        + ", ".join(waits)
    )


def uncompared_text(found: Mapping[str, Any]) -> str:
    """Return what a node says of a history that it could not compare, in one sentence."""
    kept = int(found.get("kept") or 0)
    text = (
        f"not compared: the history up to position {int(found['position']):,}, replaced by a "
        f"snapshot of {found['peer']} at {int(found['snapshot_position']):,}"
    )
    if kept:
        text += f"; {kept:,} transactions are kept in log/quarantine as {found['quarantine_id']}"
    return text


def _age_text(since_us: float) -> str:
    return f"{since_us / 1e6:,.1f} s"


def latest_runs(api: NodeApi, limit: int) -> list[dict[str, Any]]:
    """Return the last `limit` runs of a node's queue, ascending; fewer where runs are long."""
    info = api.get("/v1/info")
    after = max(int(info.get("kept_after", 0)), int(info["position"]) - LONGEST_RUN)
    return list(deque(runs_behind(api.get, after), maxlen=limit))
