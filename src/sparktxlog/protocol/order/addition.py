"""ADD: decides which run is next in the synchronized queue (protocol P7).

The longest common prefix of all masters' queues, cut at the least counter, is the longest prefix
of the agreed order that all acquired.  So the heads of the per-origin streams are merged by order
key, and the walk stops, and never skips, at the first run that is not yet

    covered     ts <= least usable promise of *all* members, and
    acquired    durable here and at `holders_needed` members in all, its origin included.

A step costs O(members), whatever the length of the queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparktxlog.protocol.order.origin_queues import Run, Stream
from sparktxlog.protocol.order.peers import Peer


def head_of(streams: Iterable[Stream]) -> Run | None:
    """Return the incoming run that is first in the agreed order, None if there is none."""
    best: Run | None = None
    for stream in streams:
        if stream.runs:
            run = stream.runs[0]
            if best is None or run.key < best.key:
                best = run
    return best


def least_promise(peers: Sequence[Peer], own: int) -> int:
    """Return m: the least of all members' promises, this node's counter `own` included."""
    least = own
    for peer in peers:
        if peer.counter < least:
            least = peer.counter
    return least


def holders(run: Run, peers: Sequence[Peer]) -> int:
    """Return how many members are known to hold the run durably.

    Its origin made it durable before it sent the header (P4), so it counts at once.
    """
    origin, last = run.header.origin, run.last
    count = 0 if run.facts is None else 1
    for peer in peers:
        if peer.node_id == origin or peer.acquired.get(origin, 0) >= last:
            count += 1
    return count


def holders_needed(run: Run, peers: Sequence[Peer], quorum: int) -> int:
    """Return how many members hold a run before it is appended (P7).

    A synchronous run needs as many as it was accepted with (P34), or all, if there are fewer
    members: it was stamped when there were more.
    """
    if run.facts is None or run.facts.holders <= quorum:
        return quorum
    return min(run.facts.holders, len(peers) + 1)


def may_add(run: Run, peers: Sequence[Peer], least: int, quorum: int) -> bool:
    """Return whether the first run of the agreed order may be appended now."""
    if run.header.ts > least or run.facts is None:
        return False
    return holders(run, peers) >= holders_needed(run, peers, quorum)
