"""The synchronized queue's end, and the tail of a longer queue after it (protocol P7, P9, S1, I2).

The whole queue is in storage; ordering needs only its end: position, chain hash, the order key of
the last run, the tables there, and the hashes of the last run ends, to recognise a peer with
another queue.
"""

from __future__ import annotations

from collections import deque

from sparktxlog.errors import QUARANTINE_HINT, InvariantViolation, OtherQueueError
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.protocol.effects.commits import CommitFold
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.effects.last_writes import LastWrites
from sparktxlog.protocol.effects.marking import Marking
from sparktxlog.protocol.messages.actions import PersistQueue
from sparktxlog.protocol.messages.posts import (
    Ahead,
    MergeBase,
    QueueEntry,
    Tail,
    chain_hash,
)
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import View
from sparktxlog.protocol.order.origin_queues import Run, Stream, same_run

#: Chain hashes of the last run ends kept to compare with peers' merge bases.
_RECENT_HASHES = 1_024
#: Entries of tails that wait for their payload; further ones are sent again (P3b).
_MAX_TAIL = 4_096
#: A node with room for fewer requests none: they would be sent again and again while it fetches.
_LEAST_ROOM = _MAX_TAIL // 2


class SynchronizedQueue:
    """End of this node's synchronized queue; grows only at its end (I4)."""

    __slots__ = (
        "_created",
        "_fresh",
        "_recent",
        "base",
        "commits",
        "effects",
        "hash",
        "key",
        "marking",
        "position",
        "tail",
        "watermarks",
        "writes",
    )  # fmt: skip

    def __init__(self, config: MasterConfig, state: RecoveredState) -> None:
        #: Position of the last transaction, 0 = none, and the chain hash there.
        self.position = state.base.position
        self.hash = state.base.chain_hash
        #: Order key of the last run.
        self.key = state.base_key
        #: Merge base: the end at the last `drain`, as in posts.
        self.base = state.base
        #: Per origin: last sequence number in the queue.
        self.watermarks: dict[str, int] = dict(state.watermarks)
        window = IdWindow(config.id_window, config.max_run)
        window.recover(state.recent_ids)
        if window.end != self.position:
            if state.recent_ids:
                raise InvariantViolation(
                    f"recovered ids end at position {window.end}, the queue at {self.position}"
                )
            window.end = self.position
        for at, first in state.repeats:
            window.note_repeat(at, first)
        self.writes = LastWrites(state.writes, config.condition_window)
        #: Prepared transactions that are undecided (P35).
        self.marking = Marking(state.undecided)
        #: Commit tables (P36).
        self.commits = CommitFold(state.commit_tables)
        self.effects = Effects(
            state.tables,
            window,
            state.older_ids,
            config.id_window_us,
            self.writes,
            self.marking,
            self.commits,
        )
        #: Entries of longer queues after the end, in order, not yet appended.
        self.tail: deque[QueueEntry] = deque()
        self._recent: dict[int, bytes] = {self.position: self.hash}
        self._fresh: list[QueueEntry] = []
        self._created: list[tuple[int, TableDefinition]] = []

    @property
    def ahead(self) -> Ahead | None:
        """How far the tail reaches after the end; None = there is none."""
        if not self.tail or self.tail[-1].end <= self.position:
            return None
        last = self.tail[-1]
        room = _MAX_TAIL - len(self.tail)
        return Ahead(
            position=last.end,
            chain_hash=last.chain_hash,
            room=room if room >= _LEAST_ROOM else 0,
        )

    def append(self, run: Run, stream: Stream) -> QueueEntry:
        """Append the first run of a stream.

        Raises:
            InvariantViolation: It does not follow in the agreed order, or leaves a gap (I2).
        """
        header, facts = run.header, run.facts
        if run.key <= self.key or facts is None or header.seq != stream.watermark + 1:
            raise InvariantViolation(
                f"run {run.key} cannot follow {self.key} in the queue (I2)",
                position=self.position + 1,
            )
        stream.pop()
        rejections, created = self.effects.apply(
            self.position + 1, facts, header.ts, header.size_bytes, header.origin
        )
        entry = QueueEntry(
            position=self.position + 1,
            header=header,
            previous_hash=self.hash,
            chain_hash=chain_hash(self.hash, header),
            rejections=rejections,
            verdicts=self.marking.end_run(self.position + header.n),
        )
        self.position += header.n
        self.hash = entry.chain_hash
        self.key = run.key
        self.watermarks[header.origin] = header.last
        self._recent[self.position] = entry.chain_hash
        if len(self._recent) > _RECENT_HASHES:
            del self._recent[next(iter(self._recent))]
        self._fresh.append(entry)
        self._created.extend(created)
        return entry

    def append_tail(self, streams: dict[str, Stream]) -> None:
        """Append the entries of the tail whose payload is here; promises are not needed (P9).

        Raises:
            InvariantViolation: An outcome differs from that of the longer queue (I7).
        """
        tail = self.tail
        while tail:
            expected = tail[0]
            if expected.end <= self.position:
                tail.popleft()
                continue
            stream = streams[expected.header.origin]
            run = stream.runs[0]
            same_run(run.header, expected.header)
            if run.facts is None:
                return
            tail.popleft()
            if _outcomes(self.append(run, stream)) != _outcomes(expected):
                raise InvariantViolation(
                    f"position {expected.position} has another outcome at a forerunner (I7)",
                    position=expected.position,
                )

    def drain(self) -> PersistQueue | None:
        """Return the entries appended since the last call, and move the merge base to the end."""
        if not self._fresh:
            return None
        entries, tables = tuple(self._fresh), tuple(self._created)
        self._fresh, self._created = [], []
        last = entries[-1].header
        self.base = MergeBase(
            position=self.position, chain_hash=self.hash, origin=last.origin, seq=last.last
        )
        return PersistQueue(
            entries=entries,
            tables=tables,
            writes=self.writes.take(),
            undecided=self.marking.take_changes(),
            commit_tables=self.commits.take_changes(),
        )

    def check_base(self, sender: str, base: MergeBase) -> None:
        """Compare a peer's merge base with this queue, if the hash there is remembered.

        Raises:
            OtherQueueError: The queues differ (I1).
        """
        mine = self._recent.get(base.position)
        if mine is not None and mine != base.chain_hash:
            raise OtherQueueError(
                f"{sender} has another queue up to position {base.position} (I1)",
                hint=QUARANTINE_HINT,
                peer=sender,
                position=base.position,
            )

    def check_final(self, view: View) -> None:
        """Compare this queue with the former epoch's final queue in a decided view.

        Raises:
            InvariantViolation: This queue has runs of earlier epochs after its end (I4, P28).
        """
        if self.position > view.end.position and self.key[0] < view.epoch:
            raise InvariantViolation(
                f"this node's queue ends at {self.position}, and {view.log_id} went on from "
                f"{view.end.position} as epoch {view.epoch} (I4, P28)",
                hint=QUARANTINE_HINT,
                position=view.end.position,
            )

    def continue_tail(self, tail: Tail, epoch: int) -> list[QueueEntry]:
        """Return the entries of a tail that continue the known ones, their hash links verified.

        The caller registers each one's header, then puts it into `tail`.  Entries of later epochs
        than `epoch`, that of this node, are left out: a member first ends its own with the final
        queue (P18), and the view of a later one may bring other rules into force (P31).

        Raises:
            InvariantViolation: The sender has another queue (P9, P28).
        """
        end, previous = self.position, self.hash
        if self.tail and self.tail[-1].end > end:
            end, previous = self.tail[-1].end, self.tail[-1].chain_hash
        found: list[QueueEntry] = []
        for entry in tail.entries:
            if entry.end <= end:
                continue
            if entry.position > end + 1 or entry.header.epoch > epoch:
                break
            if len(self.tail) + len(found) >= _MAX_TAIL:
                break
            linked = entry.position == end + 1 and entry.previous_hash == previous
            if not linked or entry.chain_hash != chain_hash(previous, entry.header):
                raise InvariantViolation(
                    f"{tail.sender} has another queue after position {end} (P9, P28)",
                    hint=QUARANTINE_HINT,
                    peer=tail.sender,
                    position=end,
                )
            found.append(entry)
            end, previous = entry.end, entry.chain_hash
        return found


def _outcomes(entry: QueueEntry) -> list[tuple[int, int, str]]:
    # A node that took over a summary may not know the first position of a repeated id.
    found = [(0, rejection.index, rejection.code) for rejection in entry.rejections]
    for one in entry.verdicts:
        found.append((one.position, one.index, one.rejection.code if one.rejection else ""))
    return found
