"""Read-only values that show a master's state: for operators, the dashboard and tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.view import Phase, Seat
from sparktxlog.protocol.order.addition import holders, holders_needed
from sparktxlog.protocol.order.origin_queues import Run
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.unstamped import Staging


class AwaitReason(str, Enum):
    """Why a member delays the next position."""

    #: No usable promise up to the run's timestamp: it is silent, or its headers are missing.
    PROMISE = "promise"
    #: It has not reported that it acquired the run, and the quorum needs it.
    ACQUIRED = "acquired"
    #: It does not hold the files of an announced run yet (late stamping, P1a).
    PAYLOAD = "payload"
    #: This node itself does not have the run's payload yet.
    SELF_PAYLOAD = "self-payload"
    #: It has a place and is no member; a synchronous transaction needs its copy (P34).
    COPY = "copy"
    #: It has not admitted this node yet, which asks for it (P21).
    ADMISSION = "admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A member that this node waits for, and why."""

    peer: NodeId
    why: AwaitReason
    #: Shell's time since when, microseconds.
    since: int
    #: Order key of the run that waits; None for an announced one, which has no key yet, and where
    #: no run waits.
    key: tuple[int, int, str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRun:
    """A run that has no position yet."""

    header: RunHeader
    #: Header and payload are durable here.
    acquired: bool
    #: Shell's time when the header came, microseconds.
    since: int
    #: Empty for a run that waits only for runs before it.
    waits: tuple[Awaited, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """What this node knows of another member."""

    peer: NodeId
    linked: bool
    #: Shell's time of its last post, microseconds; None = none yet.
    last_post_at: int | None
    #: No post for `silent_after_us` although transactions wait.
    silent: bool
    round: int
    #: Usable promise (counter, last_seq); counter -1 = none yet.
    counter: int
    last_seq: int
    position: int
    busy: bool
    #: Own transactions whose headers it holds; None = unknown yet.
    known_of_me: int | None
    acquired: dict[str, int] = field(default_factory=dict)
    #: Its clock minus this node's, microseconds; None = not measured.
    clock_offset_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronousStatus:
    """Own synchronous transactions that wait for members or for their holders (P34)."""

    #: Accepted and not stamped: runs, transactions in them, their bytes, shell's time of the
    #: oldest, and the most holders that one of them needs.
    waiting_runs: int = 0
    waiting: int = 0
    size_bytes: int = 0
    oldest_since: int | None = None
    needs: int | None = None
    #: Stamped, and too few members are known to hold them yet: runs, transactions in them, shell's
    #: time of the oldest, and the members that have not confirmed all of them.
    unconfirmed_runs: int = 0
    unconfirmed: int = 0
    unconfirmed_since: int | None = None
    unconfirmed_by: tuple[NodeId, ...] = ()


def synchronous_status(
    staging: Staging, own: Iterable[Run], peers: Sequence[Peer], quorum: int
) -> SynchronousStatus:
    """Return what waits of the own synchronous transactions; `own` are the stamped runs."""
    waiting = staging.synchronous()
    unconfirmed = [
        run
        for run in own
        if run.facts is not None
        and run.facts.holders
        and holders(run, peers) < holders_needed(run, peers, quorum)
    ]
    # They are of one origin, in its order: a member that holds the last one holds all.
    last = unconfirmed[-1] if unconfirmed else None
    return SynchronousStatus(
        waiting_runs=len(waiting),
        waiting=sum(run.submit.facts.n for run in waiting),
        size_bytes=sum(run.submit.size_bytes for run in waiting),
        oldest_since=min((run.submitted_at for run in waiting), default=None),
        needs=max((run.holders for run in waiting), default=None),
        unconfirmed_runs=len(unconfirmed),
        unconfirmed=sum(run.header.n for run in unconfirmed),
        unconfirmed_since=min((run.seen_at for run in unconfirmed), default=None),
        unconfirmed_by=()
        if last is None
        else tuple(p.node_id for p in peers if p.acquired.get(last.header.origin, 0) < last.last),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterStatus:
    """State of a master at one moment."""

    node_id: NodeId
    epoch: int
    #: End of the synchronized queue.
    position: int
    chain_hash: bytes
    counter: int
    reserved: int
    incoming_runs: int
    incoming_transactions: int
    incoming_bytes: int
    #: Per origin: durable here up to this sequence number.
    acquired: dict[str, int]
    #: Own runs accepted and not stamped yet (P1a).
    unstamped_runs: int
    #: Posts since the start.
    round: int
    #: Rounds in a row that added nothing while transactions waited.
    empty_rounds: int
    busy: bool
    waiting_for: tuple[Awaited, ...]
    peers: tuple[PeerStatus, ...]
    #: This node's clock against the members' median, microseconds.
    clock_distance_us: int
    #: Empty, or why this node has halted.
    halted: str = ""
    phase: Phase = Phase.NORMAL
    log_id: str = ""
    #: Members of the epoch in precedence order; the first one is on duty.
    members: tuple[NodeId, ...] = ()
    roster: tuple[Seat, ...] = ()
    #: Acquisition quorum of the epoch.
    quorum: int = 0
    #: Members that are missing at the moment.
    suspects: tuple[NodeId, ...] = ()
    synchronous: SynchronousStatus = SynchronousStatus()
    #: After it no row table was written to, changed or dropped: workers have nothing to apply.
    rows_until: int = 0


def compared(mine: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """Say how one vector of sequence numbers stands to another one; what is left out is 0.

    Returns:
        `equal`, `ahead`, `behind`, or `apart`: each has something that the other one lacks, so
        neither can be called the later one.
    """
    origins = mine.keys() | theirs.keys()
    ahead = any(mine.get(one, 0) > theirs.get(one, 0) for one in origins)
    behind = any(mine.get(one, 0) < theirs.get(one, 0) for one in origins)
    if ahead and behind:
        return "apart"
    return "ahead" if ahead else "behind" if behind else "equal"


def peer_status(peer: Peer, *, now: int, silent_after_us: int, busy: bool) -> PeerStatus:
    """Return the displayed state of a peer; idle peers post seldom and are not silent."""
    silent = now - (peer.last_post_at or 0) > silent_after_us
    return PeerStatus(
        peer=peer.node_id,
        linked=peer.linked,
        last_post_at=peer.last_post_at,
        silent=not peer.linked or (silent and busy),
        round=max(peer.newest[1], 0),
        counter=peer.counter,
        last_seq=peer.last_seq,
        position=peer.base.position,
        busy=peer.busy,
        known_of_me=peer.known_of_me,
        acquired=dict(sorted(peer.acquired.items())),
        clock_offset_us=peer.clock_offset_us,
    )


def awaited(
    *,
    head: Run | None,
    staging: Staging,
    peers: Sequence[Peer],
    self_id: NodeId,
    quorum: int,
    last_added_at: int,
) -> tuple[Awaited, ...]:
    """Return the members that delay the next run, and announced runs after it.

    Args:
        head: First incoming run in the agreed order.
        last_added_at: Shell's time of the last ADD, microseconds: nobody held up `head` before.
    """
    found: list[Awaited] = []
    if head is not None:
        since = max(head.seen_at, last_added_at)
        found += awaited_by(head, peers=peers, self_id=self_id, quorum=quorum, since=since)
    for run in staging.awaited():
        sites = {site for one in run.copies for site in one.sites}
        for peer in peers:
            if run.submit.digest not in peer.held and (not sites or peer.node_id in sites):
                found.append(
                    Awaited(
                        peer=peer.node_id,
                        why=AwaitReason.PAYLOAD,
                        since=run.submitted_at,
                        key=None,
                    )
                )
    return tuple(found)


def awaited_by(
    run: Run, *, peers: Sequence[Peer], self_id: NodeId, quorum: int, since: int
) -> tuple[Awaited, ...]:
    """Return the members that a run of the incoming queue waits for, if no run is before it.

    Args:
        since: Shell's time since when, microseconds.
    """
    found = [
        _awaited(peer.node_id, AwaitReason.PROMISE, since, run)
        for peer in peers
        if peer.counter < run.header.ts
    ]
    if run.facts is None:
        found.append(_awaited(self_id, AwaitReason.SELF_PAYLOAD, since, run))
    if holders(run, peers) < holders_needed(run, peers, quorum):
        origin = run.header.origin
        for peer in peers:
            if peer.node_id != origin and peer.acquired.get(origin, 0) < run.last:
                found.append(_awaited(peer.node_id, AwaitReason.ACQUIRED, since, run))
    return tuple(found)


def _awaited(peer: NodeId, why: AwaitReason, since: int, head: Run) -> Awaited:
    return Awaited(peer=peer, why=why, since=since, key=head.key)
