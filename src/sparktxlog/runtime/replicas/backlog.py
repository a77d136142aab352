"""What a replica still has to replay, counted from the published segments.

Segments are read in pages and not kept, so a long backlog takes no memory.  The sum of each worker
is kept and continued when more is published, so it is cheap to ask again; it starts again when the
worker has moved.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from sparktxlog.catchup.estimates import Workload
from sparktxlog.errors import ExpiredError
from sparktxlog.model.replicas import holds
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.storage.interfaces import Segment
from sparktxlog.storage.journal.journal import Journal

_PAGE = 500
#: Sums that are kept; usually there are one or a few workers at a site.
_MAX_WORKERS = 16
_PLACED = (OperationKind.APPEND.value, OperationKind.OVERWRITE.value)
_KEYED = (
    OperationKind.UPSERT.value,
    OperationKind.DELETE_KEYS.value,
    OperationKind.DELETE_WHERE.value,
)


@dataclass(slots=True, kw_only=True)
class _Sum:
    """Work of the segments after `position` up to `end`, and the content of the last batch."""

    position: int
    end: int
    batches: int = 0
    merges: int = 0
    transactions: int = 0
    appended_bytes: int = 0
    merged_bytes: int = 0
    #: Segments of the batch that is still open, and its tables with keyed operations.
    segments: int = 0
    keyed: set[str] = field(default_factory=set)

    def add(self, segment: Segment, interval: int, only: tuple[str, ...]) -> None:
        if not self.segments:
            self.batches += 1
        self.segments += 1
        self.transactions += segment.transactions
        for effect in segment.effects:
            if not holds(only, effect.table):
                continue
            size_bytes = sum(file.size_bytes for file in effect.files)
            if effect.kind in _PLACED:
                self.appended_bytes += size_bytes
            elif effect.kind in _KEYED:
                self.merged_bytes += size_bytes
                self.merges += effect.table not in self.keyed
                self.keyed.add(effect.table)
        self.end = segment.last
        # As the worker batches: up to a signature boundary, and no more than it asks for at once.
        if segment.last // interval > (segment.first - 1) // interval or self.segments >= _PAGE:
            self.segments = 0
            self.keyed.clear()

    def workload(self) -> Workload:
        return Workload(
            batches=self.batches,
            merges=self.merges,
            transactions=self.transactions,
            appended_bytes=self.appended_bytes,
            merged_bytes=self.merged_bytes,
        )


class Backlog:
    """Counts what is published after a position.

    Args:
        signature_interval: Where batches end, positions (S2a).
    """

    def __init__(self, journal: Journal, signature_interval: int) -> None:
        self._journal = journal
        self._interval = signature_interval
        self._sums: OrderedDict[str, _Sum] = OrderedDict()

    def measure(
        self, worker_id: str, position: int, published: int, only: tuple[str, ...] = ()
    ) -> Workload | None:
        """Return the work of a replay from `position`; blocks, one call at a time.

        Args:
            only: Patterns of the tables that the worker's replica holds; empty = all.

        Returns:
            None if the published segments do not reach back to the position.
        """
        total = self._sums.pop(worker_id, None)
        if total is None or total.position != position:
            total = _Sum(position=position, end=position)
        while total.end < published:
            try:
                page = self._journal.read_segments(total.end, _PAGE)
            except ExpiredError:
                return None
            if not page or page[0].first > total.end + 1:
                return None
            for segment in page:
                total.add(segment, self._interval, only)
        self._sums[worker_id] = total
        while len(self._sums) > _MAX_WORKERS:
            self._sums.popitem(last=False)
        return total.workload()
