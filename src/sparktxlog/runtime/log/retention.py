"""Decides how much of the log is kept, without clock and disk (C4).

Three limits shorten the log from its oldest end, always at the end of a segment, which is a run
end.  They remove only what this node has published and every peer has in its own queue.

- count (`tx-log-max-size`) and age (`tx-log-max-depth`, by the wall clock at ordering, never by
  `ts`) remove only what every worker has applied.  There is at least one worker at each member; a
  member of which none ever reported holds all of the log.  No segment was ordered after its
  successor, so a segment whose clock was wrong is at least as old as the next one.
- bytes (`tx-log-max-bytes`), the hard cap, also removes what workers have not applied, oldest
  first, but never what no replica has applied: no site could lend a copy.

A worker whose position is before the kept log is overrun: it needs a copy, and does not hold the
log back any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from sparktxlog.model.replicas import MAIN, name_of, replica_id, site_of
from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.storage.interfaces import PutValue, SegmentCut, Write

#: Part of the hard cap from which there are warnings about workers that it will overrun.
WARN_AT = 0.8
_PREFIX = "holder:"


class Limit(str, Enum):
    """Which limit shortened the log."""

    COUNT = "tx-log-max-size"
    AGE = "tx-log-max-depth"
    BYTES = "tx-log-max-bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The three limits."""

    transactions: int
    age_us: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A replica of one member, as it reported last."""

    node_id: str
    #: Empty: it never reported.
    worker_id: str = ""
    #: Applied position, 0 = nothing, or never reported.
    position: int = 0
    #: True: its verdict is IN_SYNC, so it can lend a copy.
    known: bool = False
    #: Of its node when it reported: a node that returns with another disk has a new one (P21).
    incarnation: int = 1
    #: Its name at its site.
    name: str = MAIN
    #: It holds all tables: only then its copy needs no others.
    whole: bool = True

    @property
    def replica(self) -> str:
        """The text by which the replica is known."""
        return replica_id(self.node_id, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionView:
    """Inputs of the decision; kept_after ≤ published ≤ position of this node's queue."""

    published: int
    kept_after: int
    #: Peer → position that its queue certainly has.
    peers: Mapping[str, int]
    holders: tuple[Holder, ...]
    limits: Limits
    #: Wall clock, microseconds since 1970 UTC.
    now_us: int
    #: Positions of unfinished copies, from which their targets will replay.
    copies: tuple[int, ...] = ()

    @property
    def agreed(self) -> int:
        """Position up to which this node published and every peer holds the queue."""
        return min([self.published, *self.peers.values()])

    @property
    def waiting(self) -> tuple[Holder, ...]:
        """Holders that can still replay."""
        return tuple(holder for holder in self.holders if holder.position >= self.kept_after)

    @property
    def applied(self) -> int:
        """Position up to which every waiting holder has applied, and no copy needs the log."""
        return min([self.agreed, *(holder.position for holder in self.waiting), *self.copies])

    @property
    def copyable(self) -> int:
        """Position up to which some replica can lend a copy."""
        lenders = (one for one in self.holders if one.known and one.whole)
        best = max((one.position for one in lenders), default=0)
        return min(self.agreed, best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortening:
    """The decision."""

    #: The last cut to expire, None = nothing expires.
    cut: SegmentCut | None
    #: The exceeded limits, in the order found.
    limits: tuple[Limit, ...] = ()
    #: Workers that need a copy from now on.
    overrun: tuple[Holder, ...] = ()
    #: Workers that the hard cap will overrun unless they apply more.
    endangered: tuple[Holder, ...] = ()
    #: Workers, peers and copies that keep the log longer than the limits, ascending.
    held_by: tuple[str, ...] = ()


def decide(
    view: RetentionView, cuts: Iterable[SegmentCut], log_bytes: int, other_bytes: int
) -> Shortening:
    """Return how far the log is shortened.

    Args:
        cuts: Ends of the kept segments, ascending, read as far as needed.
        log_bytes: Bytes of the kept log: files of its segments, and `other_bytes`.
        other_bytes: Bytes in the journal and the log's tables; each kept transaction counts for an
            equal part of them.
    """
    kept = max(view.published - view.kept_after, 1)
    rest, last, done = float(log_bytes), view.kept_after, None
    used: list[Limit] = []
    held = False
    for cut, ordered_at in _dated(cuts, view):
        wanted = _wanted(view, cut, ordered_at, rest)
        if not wanted:
            break
        by_force = Limit.BYTES in wanted and cut.last <= view.copyable
        if cut.last > view.applied and not by_force:
            held = True
            break
        used += [limit for limit in wanted if limit not in used]
        rest -= cut.files_bytes + other_bytes * (cut.last - last) / kept
        last, done = cut.last, cut
    near = log_bytes >= WARN_AT * view.limits.size_bytes
    behind = tuple(holder for holder in view.waiting if holder.position < view.agreed)
    return Shortening(
        cut=done,
        limits=tuple(used),
        overrun=tuple(holder for holder in view.waiting if holder.position < last),
        endangered=tuple(h for h in behind if h.position >= last) if near else (),
        held_by=_held_by(view, last) if held else (),
    )


def _dated(cuts: Iterable[SegmentCut], view: RetentionView) -> Iterator[tuple[SegmentCut, int]]:
    """Return the published cuts, each with the latest time at which it can have been ordered.

    A cut without a usable time (unknown, or in the future) gets that of the next cut with one, or
    else the present.  So the log need not be read to its end.
    """
    undated: list[SegmentCut] = []
    for cut in cuts:
        if cut.last > view.published:
            break
        undated.append(cut)
        if 0 < cut.ordered_at <= view.now_us:
            yield from ((one, cut.ordered_at) for one in undated)
            undated.clear()
    yield from ((cut, view.now_us) for cut in undated)


def _wanted(view: RetentionView, cut: SegmentCut, ordered_at: int, rest: float) -> list[Limit]:
    """Return the limits that the segment at this cut exceeds."""
    limits = view.limits
    found = {
        Limit.COUNT: view.published - cut.last >= limits.transactions,
        Limit.AGE: ordered_at < view.now_us - limits.age_us,
        Limit.BYTES: rest > limits.size_bytes,
    }
    return [limit for limit, met in found.items() if met]


def _held_by(view: RetentionView, last: int) -> tuple[str, ...]:
    """Name the workers, peers and copies before the next cut: those at the least position."""
    sites = {holder.replica for holder in view.waiting if holder.position <= view.applied}
    peers = {node_id for node_id, position in view.peers.items() if position <= view.applied}
    found = {f"worker of {site}" for site in sites} | {f"peer {peer}" for peer in peers}
    if any(position <= view.applied for position in view.copies):
        found.add("a copy under way")
    return tuple(sorted(found)) or (f"position {last}",)


# -- holders of the log ----------------------------------------------------------------------------


class Holders:
    """The last report of each replica of the members; the journal keeps it over a restart.

    Args:
        members: Members of the cluster, each with one replica at least → its incarnation.
    """

    def __init__(self, members: Mapping[str, int], saved: Mapping[str, bytes]) -> None:
        self._members: Mapping[str, int] = members
        self._held: dict[str, Holder] = {}
        for key, value in saved.items():
            if key.startswith(_PREFIX) and value:
                found = msgspec.msgpack.decode(value, type=Holder)
                self._held[found.replica] = found
        self.set_members(members)

    def note(
        self, report: WorkerReport, verdict: ReplicaVerdict, *, whole: bool = True
    ) -> list[Write]:
        """Take in a report; return the writes that keep it.

        A report of a replica of another log is ignored.

        Args:
            whole: Whether its site holds the tables of all groups (P41).
        """
        if report.node_id not in self._members or verdict is ReplicaVerdict.FOREIGN:
            return []
        holder = Holder(
            node_id=report.node_id,
            worker_id=report.worker_id,
            position=report.position,
            known=verdict is ReplicaVerdict.IN_SYNC,
            incarnation=self._members[report.node_id],
            name=report.name,
            whole=whole and not report.only,
        )
        if holder == self._held.get(holder.replica):
            return []
        self._held[holder.replica] = holder
        return [PutValue(name=_PREFIX + holder.replica, value=msgspec.msgpack.encode(holder))]

    def keep_only(self, site: str, names: Collection[str]) -> list[Write]:
        """Forget the replicas of a site but these; return the writes that keep that."""
        gone = [one for one in self._held if site_of(one) == site and name_of(one) not in names]
        for one in gone:
            del self._held[one]
        return [PutValue(name=_PREFIX + one, value=b"") for one in gone]

    def set_members(self, members: Mapping[str, int]) -> None:
        """Set the members and their incarnations.

        A node that is no member any more does not hold the log back.  One that returned with
        another disk has no replica until its worker reports: it lends no copy.
        """
        self._members = members
        self._held = {
            replica: found
            for replica, found in sorted(self._held.items())
            if members.get(found.node_id) == found.incarnation
        }

    def all(self) -> tuple[Holder, ...]:
        """Return the holders by site; a site without any report holds all of the log."""
        sites = {holder.node_id for holder in self._held.values()}
        silent = (
            Holder(node_id=name, incarnation=found)
            for name, found in self._members.items()
            if name not in sites
        )
        return tuple(sorted((*self._held.values(), *silent), key=lambda one: one.replica))
