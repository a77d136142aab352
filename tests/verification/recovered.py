"""What a simulated front says of a queue at start; both models of a disk begin with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sparktxlog.protocol.words.events import RunSubmitted
from sparktxlog.protocol.words.messages import MergeBase, QueueEntry, RunHeader
from sparktxlog.protocol.words.recovery import RecoveredAnnouncement

#: Order key in front of every run.
_NO_KEY = (0, 0, "", 0)


def queue_end(queue: Sequence[QueueEntry]) -> tuple[MergeBase, tuple[int, int, str, int]]:
    """Return merge base and order key of a queue's last run."""
    if not queue:
        return MergeBase(), _NO_KEY
    last, header = queue[-1], queue[-1].header
    base = MergeBase(
        position=last.end, chain_hash=last.chain_hash, origin=header.origin, seq=header.last
    )
    return base, header.key


def in_window(queue: Sequence[QueueEntry], id_window: int) -> list[QueueEntry]:
    """Return the entries whose ids a restarted core must know, oldest first."""
    recent: list[QueueEntry] = []
    for entry in reversed(queue):
        if entry.end <= queue[-1].end - id_window:
            break
        recent.append(entry)
    return recent[::-1]


def announced(submits: Iterable[RunSubmitted]) -> list[RecoveredAnnouncement]:
    """Return own unstamped runs as the front gives them back."""
    return [
        RecoveredAnnouncement(
            ticket=submit.ticket,
            digest=submit.digest,
            size_bytes=submit.size_bytes,
            staged_bytes=submit.staged_bytes,
            facts=submit.facts,
            session=submit.session,
        )
        for submit in submits
    ]


def repeats_in(queue: Sequence[QueueEntry], id_window: int) -> list[tuple[int, int]]:
    """Return (position, position where its id stands first) of the window's repeats."""
    return [
        (entry.position + rejection.index, rejection.first)
        for entry in in_window(queue, id_window)
        for rejection in entry.rejections
        if rejection.first is not None
    ]


class QueuedIds:
    """`OlderIds` of a simulated disk: all ids of its queue and what is on its way there.

    Args:
        ids_of: Returns the ids of a run.
    """

    def __init__(self, queue: Sequence[QueueEntry], ids_of: Callable[[RunHeader], bytes]) -> None:
        self._queue = queue
        self._ids_of = ids_of
        self._unwritten: list[tuple[int, bytes]] = []
        #: Id → its positions, ascending, of so many entries of the queue.
        self._positions: dict[bytes, list[int]] = {}
        self._entries = 0

    def appended(self, position: int, ids: bytes) -> None:
        """Keep the ids of a run that is on its way to the disk."""
        end = self._queue[-1].end if self._queue else 0
        self._unwritten = [item for item in self._unwritten if item[0] > end]
        self._unwritten.append((position, ids))

    def find(self, ids: bytes, after: int) -> list[tuple[int, int]]:
        """Return (index, first position behind `after`) of the ids that are queued there."""
        for entry in self._queue[self._entries :]:
            for at, one in enumerate(_split(self._ids_of(entry.header)), start=entry.position):
                self._positions.setdefault(one, []).append(at)
        self._entries = len(self._queue)
        on_their_way: dict[bytes, int] = {}
        for first, held in self._unwritten:
            for at, one in enumerate(_split(held), start=first):
                on_their_way.setdefault(one, at)
        found: dict[bytes, tuple[int, int]] = {}
        for index, one in enumerate(_split(ids)):
            known = (*self._positions.get(one, ()), on_their_way.get(one, 0))
            queued_at = next((at for at in known if at > after), None)
            if queued_at is not None:
                found[one] = (index, queued_at)
        return sorted(found.values())


def _split(ids: bytes) -> list[bytes]:
    return [ids[at : at + 16] for at in range(0, len(ids), 16)]
