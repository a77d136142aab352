"""Checks that a node's queue is the beginning of a peer's, before a summary replaces it.

A node that is too far behind takes over a summary, and with it the peer's history (P21).  It must
not do so if its own history is another one: what only it has would be lost silently (P28).

Equal hashes at one position mean that everything before is equal (S1), and a peer prunes its queue
from the beginning.  So it is enough to ask the peer for the run after the end of this queue.  If
the peer does not have it any more, the summary may still refute: it has the hash at the end of the
epoch before its view, the numbers of each origin, and the ids of its last positions.  Only the hash
at this queue's end proves that both are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from sparktxlog.errors import ExpiredError, NotFoundError, TransportError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.protocol.messages.posts import Tail
from sparktxlog.protocol.messages.recovery import RecoveredState
from sparktxlog.storage.interfaces import QueueSummary
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.transport.peer_link import PeerLink

#: Refusals that mean: the peer does not have that part of the queue, or not any more.
_NOT_THERE = (ExpiredError.http_status, NotFoundError.http_status)
_ID_BYTES = 16

#: Transaction ids in pieces: (first position, ids), ascending.
Ids = Iterable[tuple[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of a comparison of two queues."""

    #: Empty, or why this queue is not the beginning of the other one.
    differs: str = ""
    #: False: both may be equal or not; nothing that both have shows it.
    certain: bool = True


async def compare_queues(
    journal: Journal, core: RecoveredState, link: PeerLink, summary: QueueSummary
) -> Compared:
    """Compare a node's queue at its start with a peer's longer one.

    Args:
        core: Content of the journal at the start.
        summary: The peer's.

    Raises:
        TransportError: The peer does not answer: ask again.
        RemoteProtocolError: It sent no valid answer (definite).
    """
    base = core.base
    if not base.position:
        return Compared()
    differs = await asyncio.to_thread(contradiction, journal, core, summary)
    if differs:
        return Compared(differs=differs)
    if _known_hashes(summary).get(base.position) == base.chain_hash:
        return Compared()
    try:
        tail = await link.get_run_after(base.position)
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
    following = tail.entries[0]
    if following.position != base.position + 1:
        return f"no run of it ends at position {base.position}"
    if following.previous_hash != base.chain_hash:
        return (
            f"its hash at position {base.position} is {following.previous_hash.hex()[:12]}, "
            f"here {base.chain_hash.hex()[:12]}"
        )
    return ""


def contradiction(journal: Journal, core: RecoveredState, summary: QueueSummary) -> str:
    """Return why a queue is not the beginning of a summary's, empty = no difference found."""
    for origin, seq in sorted(core.watermarks.items()):
        theirs = summary.watermarks.get(origin, 0)
        if theirs < seq:
            return f"it has {theirs} transactions of {origin}, the queue here {seq}"
    view, base = summary.view, core.base
    if view is not None and view.end.position < base.position and core.base_key[0] < view.epoch:
        return f"it went on from {view.end.position} as epoch {view.epoch}"
    for position, chain_hash in sorted(_known_hashes(summary).items()):
        stored = journal.read_entry_at(position) if position <= base.position else None
        if stored is None:
            continue
        here = stored.entry
        if (here.end, here.chain_hash) != (position, chain_hash):
            return f"its hash at position {position} is {chain_hash.hex()[:12]}, not the one here"
    return _other_ids(core, summary)


def _known_hashes(summary: QueueSummary) -> dict[int, bytes]:
    """Return position → chain hash: before the last run, and at the end of the epoch before."""
    found: dict[int, bytes] = {}
    if summary.last is not None:
        found[summary.last.entry.position - 1] = summary.last.entry.previous_hash
    if summary.view is not None:
        for known in (summary.view.base, summary.view.end):
            found[known.position] = known.chain_hash
    found.pop(0, None)
    return found


def _other_ids(core: RecoveredState, summary: QueueSummary) -> str:
    """Compare the transaction ids at positions that both have; empty = no difference."""
    last = summary.last
    end = () if last is None else ((last.entry.position, last.ids),)
    theirs = chain(summary.recent_ids, end)
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
