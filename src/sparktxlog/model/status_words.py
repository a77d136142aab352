"""What a node's status says, in words: used by the command line and by the dashboard.

Functions take `/v1/status` as it comes from a node, which may be of an older release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparktxlog.model.replicas import MAIN, replica_id

#: Follows a verdict if replicas differ and no majority says which one is right.
CONTESTED = ", contested"


def verdict_text(replica: Mapping[str, Any]) -> str:
    """Return the verdict on a replica, and whether it is contested."""
    verdict = str(replica.get("verdict") or "")
    return verdict + CONTESTED if replica.get("contested") else verdict


def replica_of(line: Mapping[str, Any]) -> str:
    """Return the text by which the replica of a line is known: `A`, or `A/reports`."""
    return replica_id(str(line.get("node_id") or ""), str(line.get("name") or MAIN))


def worker_of(line: Mapping[str, Any]) -> str:
    """Return how the worker of a line is called at its site."""
    name, worker = line.get("name") or MAIN, str(line.get("worker_id") or "")
    return worker if name == MAIN else f"{name} ({worker})"


def tables_text(line: Mapping[str, Any]) -> str:
    """Return which row tables a replica holds."""
    return ", ".join(line.get("only") or ()) or "all"


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
    """Return which nodes the order waited for in a round, and how long, in one sentence."""
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
            text += f": too few members, {found['needs']} holders are needed"
        parts.append(
            f"{text}, missing are {', '.join(found['missing'])}" if found["missing"] else text
        )
    if found.get("unconfirmed"):
        parts.append(
            f"{found['unconfirmed']:,} in {found['unconfirmed_runs']:,} runs have too few holders, "
            f"for {_age_text(found['lag_us'])}: not yet confirmed by "
            f"{', '.join(found['unconfirmed_by'])}"
        )
    if not parts:
        return ""
    return (
        f"synchronous transactions of {status['node_id']}: {'; '.join(parts)}.  New ones "
        f"need {status['synchro_quorum']} holders ({status['synchro_rule']}), there are {members} "
        "members"
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
        f"summary of {found['peer']}'s queue at {int(found['summary_position']):,}"
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
