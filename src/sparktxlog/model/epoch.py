"""An epoch as a node remembers it: one row of `log/epochs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterSeat:
    """A place in the roster of an epoch."""

    id: str
    url: str
    #: Votes; 0 = none.
    weight: int
    witness: bool
    follower: bool = False
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnd:
    """Where the queue of the epoch before ends."""

    position: int
    #: Hexadecimal; zeros at position 0.
    chain_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """An epoch that a node entered; key (log id, epoch)."""

    log_id: str
    epoch: int
    #: In precedence order, as `roster`.
    members: tuple[str, ...]
    quorum: int
    quorum_rule: str
    roster: tuple[RosterSeat, ...]
    begins_after: QueueEnd
    #: Compared with the epoch that this node entered before, sorted; None = it remembers none.
    joined: tuple[str, ...] | None
    left: tuple[str, ...] | None
    #: Nodes that neither joined nor left, and whose seat is new, removed or changed.
    changed: tuple[str, ...] | None
    #: Phase of this node when it entered the epoch.
    phase: str
    #: Wall clock of this node, microseconds since 1970 UTC.
    taken_up_at: int


class FollowedNode(TypedDict):
    """From which node a follower gets the queue, and how far it is."""

    #: None = there is none.
    upstream: str | None
    linked: bool
    #: Seconds since it was heard; None = not since the follower's start.
    heard_s: float | None
    #: Transactions that other queues are known to have and this one does not, and for how long.
    lacks: int
    lags_s: float
    #: Followers, this one too, that follow only each other: no member is among what they are set
    #: to follow, so they get nothing; empty = there is no such circle, as far as they greeted.
    circle: list[str]
