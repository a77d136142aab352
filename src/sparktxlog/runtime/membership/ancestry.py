"""Whether a node's queue is the beginning of a peer's: found out before a snapshot replaces it.

A node that lags too far takes over a snapshot, and with it the peer's history (P21).  If its
own is another one it must not: what only it has would be cut off silently (P28).

Equal hashes at one position mean that all before is equal (S1), and a peer prunes its queue from
the beginning.  So one question is complete: the peer's run after the end of the own queue.  Where
the peer keeps it no more, the snapshot itself may still tell: it has the hash where the epoch
before its view ended, the numbers of each origin, and the ids of its last positions.  Only the
hash at the own end proves anything; all else can refute.  If nothing does, no node can tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from sparktxlog.errors import ExpiredError, NotFoundError, TransportError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.protocol.words.messages import Tail
from sparktxlog.protocol.words.recovery import RecoveredState
from sparktxlog.storage.interfaces import QueueSnapshot
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.transport.peer_link import PeerLink

#: Refusals that mean: that part of the queue is not there (any more), or nobody tells it here.
_NOT_THERE = (ExpiredError.http_status, NotFoundError.http_status)
_ID_BYTES = 16

#: Pieces of transaction ids: (first position, ids), ascending.
Ids = Iterable[tuple[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a comparison of two queues came to."""

    #: Empty, or why the own queue is no beginning of the other one.
    differs: str = ""
    #: False: nothing that both know tells the one or the other.
    certain: bool = True


async def compare_queues(
    journal: Journal, core: RecoveredState, link: PeerLink, snapshot: QueueSnapshot
) -> Compared:
    """Compare a node's queue, as it was at its start, with a peer's that reaches further.

    Args:
        core: What the journal held at the start.
        snapshot: The peer's.

    Raises:
        TransportError: The peer does not answer: ask again.
        RemoteProtocolError: It sent no valid answer (definite).
    """
    base = core.base
    if not base.position:
        return Compared()
    differs = await asyncio.to_thread(contradiction, journal, core, snapshot)
    if differs:
        return Compared(differs=differs)
    if _known_hashes(snapshot).get(base.position) == base.chain_hash:
        return Compared()
    try:
        tail = await link.get_run_behind(base.position)
    except TransportError as error:
        if error.fields.get("status") not in _NOT_THERE:
            raise
        return Compared(certain=False)
    return Compared(differs=_unlinked(core, tail), certain=bool(tail.entries))


def _unlinked(core: RecoveredState, tail: Tail) -> str:
    """Return why a peer's run does not follow this queue, empty if it does."""
    base = core.base
    if not tail.entries:
        return ""
    behind = tail.entries[0]
    if behind.position != base.position + 1:
        return f"no run of it ends at position {base.position}"
    if behind.previous_hash != base.chain_hash:
        return (
            f"its hash at position {base.position} is {behind.previous_hash.hex()[:12]}, "
            f"here {base.chain_hash.hex()[:12]}"
        )
    return ""


def contradiction(journal: Journal, core: RecoveredState, snapshot: QueueSnapshot) -> str:
    """Return why a queue is no beginning of one whose snapshot lies after it, empty = unknown."""
    for origin, seq in sorted(core.watermarks.items()):
        told = snapshot.watermarks.get(origin, 0)
        if told < seq:
            return f"it has {told} transactions of {origin}, the queue here {seq}"
    view, base = snapshot.view, core.base
    if view is not None and view.end.position < base.position and core.base_key[0] < view.epoch:
        return f"it went on from {view.end.position} as epoch {view.epoch}"
    for position, chain_hash in sorted(_known_hashes(snapshot).items()):
        stored = journal.read_entry_at(position) if position <= base.position else None
        if stored is None:
            continue
        here = stored.entry
        if (here.end, here.chain_hash) != (position, chain_hash):
            return f"its hash at position {position} is {chain_hash.hex()[:12]}, not the one here"
    return _other_ids(core, snapshot)


def _known_hashes(snapshot: QueueSnapshot) -> dict[int, bytes]:
    """Return position → chain hash: before the last run, and where the epoch before ended."""
    found: dict[int, bytes] = {}
    if snapshot.last is not None:
        found[snapshot.last.entry.position - 1] = snapshot.last.entry.previous_hash
    if snapshot.view is not None:
        for known in (snapshot.view.base, snapshot.view.end):
            found[known.position] = known.chain_hash
    found.pop(0, None)
    return found


def _other_ids(core: RecoveredState, snapshot: QueueSnapshot) -> str:
    """Compare transaction ids where both know them."""
    last = snapshot.last
    end = () if last is None else ((last.entry.position, last.ids),)
    theirs = chain(snapshot.recent_ids, end)
    position = first_difference(core.recent_ids, theirs)
    if position is None:
        return ""
    here = transaction_id_to_text(_id_at(core.recent_ids, position))
    return f"it has another transaction at position {position}; here it is {here}"


def first_difference(own: Sequence[tuple[int, bytes]], other: Ids) -> int | None:
    """Return the first position at which two sequences of ids differ, None if none is known."""
    for first, ids in other:
        for mine_first, mine in own:
            start = max(first, mine_first)
            end = min(first + len(ids) // _ID_BYTES, mine_first + len(mine) // _ID_BYTES)
            if start >= end:
                continue
            left = mine[(start - mine_first) * _ID_BYTES : (end - mine_first) * _ID_BYTES]
            right = ids[(start - first) * _ID_BYTES : (end - first) * _ID_BYTES]
            if left != right:
                return start + next(
                    index
                    for index in range(end - start)
                    if left[index * _ID_BYTES : (index + 1) * _ID_BYTES]
                    != right[index * _ID_BYTES : (index + 1) * _ID_BYTES]
                )
    return None


def _id_at(pieces: Ids, position: int) -> bytes:
    for first, ids in pieces:
        at = (position - first) * _ID_BYTES
        if 0 <= at < len(ids):
            return ids[at : at + _ID_BYTES]
    raise KeyError(position)
