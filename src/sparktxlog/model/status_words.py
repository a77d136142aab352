"""What a node's status says, in words: used by the command line and by the dashboard.

Functions take `/v1/status` as it comes from a node, which may be of an older release.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

_WITHOUT_PART = ("IDLE", "JOINING")
_BAD_VERDICTS = ("DIVERGED", "FOREIGN")
#: Follows a verdict if replicas differ and no majority says which one is right.
CONTESTED = ", contested"


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


def verdict_text(replica: Mapping[str, Any]) -> str:
    """Return the verdict on a replica, and whether it is contested."""
    verdict = str(replica.get("verdict") or "")
    return verdict + CONTESTED if replica.get("contested") else verdict


def alive_text(replica: Mapping[str, Any]) -> str:
    """Return whether a replica's worker reports, or should and does not."""
    return "SILENT" if replica.get("silent") else "yes" if replica.get("alive") else "no"


def awaited_text(waiting: Mapping[str, Any]) -> str:
    """Return which node is missing and why, in one sentence."""
    reasons = {
        "promise": "its timestamp counter (no post since)",
        "acquired": "its confirmation that it holds the data",
        "payload": "its data",
        "self-payload": "this node does not have the data itself",
        "copy": "to be a member again, for the copy of a synchronous transaction",
        "admission": "its confirmation that this node is a member again",
    }
    why = str(waiting.get("why", ""))
    since = waiting.get("since_us")
    text = f"{waiting.get('peer')}: {reasons.get(why, why)}"
    if isinstance(since, (int, float)) and since > 0:
        text += f", for {_age_text(since)}"
    return text


def difference_text(found: Mapping[str, Any]) -> str:
    """Return in which table, and since which position, a site differs from others."""
    others = " and ".join(found["others"])
    whose = (
        "most sites say that it is wrong" if found["convicted"] else "nobody can say who is wrong"
    )
    text = f"Table {found['table']} of site {found['site']} differs from that of {others}: {whose}"
    equal_to, position = found["equal_to"], found["position"]
    if equal_to:
        return f"{text}; equal at position {equal_to:,}, different at {position:,}."
    return f"{text}; different at position {position:,}, before that not compared."


def round_text(found: Mapping[str, Any], now_us: int) -> str:
    """Return for whom the order waited in a round, and how long, in one sentence."""
    ended = found["ended_at"]
    lasted = ((now_us if ended is None else ended) - found["began_at"]) / 1e6
    why = dict.fromkeys(awaited_text({**wait, "since_us": 0}) for wait in found["waits"])
    verb = "has waited" if ended is None else "waited"
    return (
        f"Position {found['position']:,} {verb} {lasted:,.1f} s for {'; '.join(why)}; "
        f"{found['transactions']:,} transactions were in negotiation."
    )


def restricted_text(found: Mapping[str, Any]) -> str:
    """Return what a node can do without a quorum, and which nodes it waits for, in one sentence."""
    levels = found.get("levels") or ["accepted"]
    return (
        f"restricted: too few nodes answer; it has waited for {', '.join(found['waits_for'])} for "
        f"{_age_text(found['since_us'])}; nothing is ordered, the highest level is {levels[-1]}"
    )


def synchronous_text(status: Mapping[str, Any]) -> str:
    """Return what waits of the node's synchronous transactions in one sentence, empty = nothing."""
    found, members = status.get("synchronous") or {}, len(status.get("members") or ())
    parts = []
    if found.get("waiting"):
        text = (
            f"{found['waiting']:,} in {found['waiting_runs']:,} runs with "
            f"{found['size_bytes']:,} bytes wait for a timestamp, the oldest for "
            f"{_age_text(found['oldest_us'])}"
        )
        if found["needs"] > members:
            text += f": too few members, {found['needs']} copies are needed"
        parts.append(
            f"{text}, missing are {', '.join(found['missing'])}" if found["missing"] else text
        )
    if found.get("unconfirmed"):
        parts.append(
            f"{found['unconfirmed']:,} in {found['unconfirmed_runs']:,} runs have too few copies, "
            f"for {_age_text(found['lag_us'])}: not yet confirmed by "
            f"{', '.join(found['unconfirmed_by'])}"
        )
    if not parts:
        return ""
    return (
        f"synchronous transactions of {status['node_id']}: {'; '.join(parts)}.  New ones need "
        f"{status['synchro_quorum']} copies ({status['synchro_rule']}), there are {members} members"
    )


def upgrade_text(found: Mapping[str, Any]) -> str:
    """Return which wire version the log uses, and which nodes hold it back (P31)."""
    waits = [
        f"{node} ({'speaks up to ' + str(peer['newest']) if peer['linked'] else 'not linked'})"
        for node, peer in found["wire_version_waits_for"].items()
    ]
    return (
        f"wire version {found['wire_version']} is in force, {found['wire_versions'][1]} waits for "
        + ", ".join(waits)
    )


def uncompared_text(found: Mapping[str, Any]) -> str:
    """Return, in one sentence, which history a node could not compare."""
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


def batch_text(replica: Mapping[str, Any]) -> str:
    """Return how far a worker is in the batch that it is applying; empty for none."""
    batch = replica.get("batch")
    if not batch:
        return ""
    text = (
        f"stage {batch['stage']} of {batch['stages']}, {batch['act']} of {batch['table']}, for "
        f"{batch['seconds']:,.0f} s"
    )
    left_s = batch["left_s"]
    return text if left_s is None else f"{text}, about {left_s:,.0f} s left"


def last_transfer_text(replica: Mapping[str, Any]) -> str:
    """Return a replica's running catch-up, else the last one, in a few words; empty for none."""
    if running := list(replica.get("running_transfers") or []):
        shown = running[-1]
        text = f"{shown['kind']} running for {shown['running_s']:,.1f} s"
    elif shown := replica.get("last_transfer"):
        text = f"{shown['kind']} to {shown['to_position']:,}: {shown['outcome']}"
        text += f", measured {shown['actual_s']:,.1f} s"
    else:
        return ""
    expected = shown.get("estimated_s")
    return text if expected is None else f"{text}, estimated {expected:,.1f} s"
