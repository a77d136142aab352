"""Which replicas a copy may come from, best first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparktxlog.model.report import ReplicaVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica of the cluster, as the choosing node sees it."""

    node_id: str
    worker_id: str
    verdict: ReplicaVerdict
    #: Applied position, ≥ 0.
    position: int
    #: Its worker was heard lately.
    alive: bool
    #: This node reaches its node now.
    linked: bool
    #: Time to its node and back, seconds.
    round_trip_s: float = 0.0
    #: It differs from another replica, and no majority says which is right.
    contested: bool = False


def choose_donors(
    target_node: str,
    target_position: int,
    candidates: Iterable[Candidate],
    limit: int,
    named: str = "",
) -> list[str]:
    """Return the nodes to copy from, best first.

    A donor is KNOWN, not contested, its node reachable, and not the target itself.  The one
    furthest ahead in the log comes first, among equals one whose worker is alive, then the nearest,
    then the least node id.  A worker that runs now and then only is a good donor: its node serves
    the files.

    Args:
        target_node: Node whose replica is to be replaced.
        target_position: Least position of a donor; 0 for a diverged or an empty
            target, whose own position is worth nothing.
        candidates: All replicas that are known of, the target's may be among them.
        limit: Nodes returned at most, ≥ 0.
        named: Somebody says that this node's replica is right: no other one, even if contested.
    """
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.node_id == target_node or not _is_donor(candidate, target_position, named):
            continue
        known = best.get(candidate.node_id)
        if known is None or _order(candidate) < _order(known):
            best[candidate.node_id] = candidate
    return [candidate.node_id for candidate in sorted(best.values(), key=_order)][:limit]


def _is_donor(candidate: Candidate, least_position: int, named: str) -> bool:
    chosen = candidate.node_id == named if named else not candidate.contested
    healthy = candidate.verdict is ReplicaVerdict.KNOWN and candidate.linked
    return chosen and healthy and candidate.position >= least_position


def _order(candidate: Candidate) -> tuple[int, bool, float, str, str]:
    return (
        -candidate.position,
        not candidate.alive,
        candidate.round_trip_s,
        candidate.node_id,
        candidate.worker_id,
    )
