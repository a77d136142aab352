"""Which replicas a copy may come from, best first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparktxlog.model.replicas import MAIN, replica_id
from sparktxlog.model.report import ReplicaVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica of the cluster, as the choosing node sees it."""

    node_id: str
    worker_id: str
    verdict: ReplicaVerdict
    #: Applied position, ≥ 0.
    position: int
    #: Whether its worker reported lately.
    alive: bool
    #: Whether this node is linked to its node.
    linked: bool
    #: Round-trip time to its node, seconds.
    round_trip_s: float = 0.0
    #: It differs from another replica, and no majority says which is right.
    contested: bool = False
    #: Its name at its site.
    name: str = MAIN
    #: Its files are at the target's site, and the log can be replayed from its position on.
    here: bool = False

    @property
    def replica(self) -> str:
        """The text by which the replica is known."""
        return replica_id(self.node_id, self.name)


def choose_donors(
    target: str,
    target_position: int,
    candidates: Iterable[Candidate],
    limit: int,
    named: str = "",
) -> list[str]:
    """Return the replicas to copy from, as `model.replicas` names them, best first.

    A donor is IN_SYNC and not contested, its node is reachable, and it is not the target itself.
    Those of the target's own site come first: no network carries their files.  Donors are sorted by
    position (highest first), live worker, round-trip time and node id.  The worker of a donor need
    not run: its node serves the files.

    Args:
        target: The replica that is to be replaced.
        target_position: Least position of a donor; 0 for a diverged or empty target, whose own
            position does not count.
        candidates: All known replicas that have the tables; the target may be among them.
        limit: Replicas returned at most, ≥ 0.
        named: An operator says that this replica is right: only it, even if contested.
    """
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.replica == target or not _is_donor(candidate, target_position, named):
            continue
        known = best.get(candidate.replica)
        if known is None or _order(candidate) < _order(known):
            best[candidate.replica] = candidate
    return [candidate.replica for candidate in sorted(best.values(), key=_order)][:limit]


def _is_donor(candidate: Candidate, least_position: int, named: str) -> bool:
    chosen = candidate.replica == named if named else not candidate.contested
    healthy = candidate.verdict is ReplicaVerdict.IN_SYNC and candidate.linked
    return chosen and healthy and candidate.position >= least_position


def _order(candidate: Candidate) -> tuple[bool, int, bool, float, str, str]:
    return (
        not candidate.here,
        -candidate.position,
        not candidate.alive,
        candidate.round_trip_s,
        candidate.replica,
        candidate.worker_id,
    )
