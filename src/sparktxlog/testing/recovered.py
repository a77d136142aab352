"""What a simulated front says of a queue at start; both models of a disk begin with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparktxlog.protocol.events import RunSubmitted
from sparktxlog.protocol.messages import MergeBase, QueueEntry
from sparktxlog.protocol.recovery import RecoveredAnnouncement

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
