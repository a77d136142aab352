"""What a replay consists of, counted from segments in pages."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparktxlog.errors import ExpiredError
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.replicas.backlog import Backlog
from sparktxlog.storage.interfaces import Segment, TableEffect


def effect(table: str, kind: str, size_bytes: int) -> TableEffect:
    file = StagedFile(path="x/t/f.parquet", size_bytes=size_bytes, rows=1, digest="")
    return TableEffect(table=table, kind=kind, first=1, last=1, files=(file,))


def segment(first: int, last: int, *effects: TableEffect) -> Segment:
    return Segment(
        first=first,
        last=last,
        from_hash="",
        to_hash="",
        epoch=1,
        transactions=last - first + 1,
        rejected=0,
        effects=effects,
    )


@dataclass
class Segments:
    """Stands for the journal."""

    kept: list[Segment] = field(default_factory=list)
    reads: int = 0
    expired: bool = False

    def read_segments(self, after: int, limit: int) -> list[Segment]:
        self.reads += 1
        if self.expired:
            raise ExpiredError("pruned")
        return [s for s in self.kept if s.last > after][:limit]


def backlog_of(journal: Segments, interval: int = 10) -> Backlog:
    return Backlog(journal, interval)  # type: ignore[arg-type]


def test_batches_end_at_signature_boundaries_and_merge_a_table_once() -> None:
    journal = Segments(
        [
            segment(1, 4, effect("t", "append", 100), effect("k", "upsert", 10)),
            segment(5, 10, effect("k", "delete_keys", 5), effect("o", "overwrite", 7)),
            segment(11, 12, effect("k", "upsert", 1)),
        ]
    )
    found = backlog_of(journal).measure("w", 0, 12)
    assert found is not None
    assert (found.batches, found.merges, found.transactions) == (2, 2, 12)
    assert (found.appended_bytes, found.merged_bytes) == (107, 16)
    partly = backlog_of(journal).measure("w", 10, 12)
    assert partly is not None
    assert (partly.batches, partly.merges, partly.transactions) == (1, 1, 2)


def test_asking_again_reads_nothing_and_growth_reads_only_what_is_new() -> None:
    journal = Segments([segment(p, p, effect("k", "upsert", 1)) for p in range(1, 2_001)])
    backlog = backlog_of(journal, 10_000)
    first = backlog.measure("w", 0, 2_000)
    assert first is not None
    # 500 segments are what a worker takes at once.
    assert (first.batches, first.merges) == (4, 4)
    reads = journal.reads
    assert backlog.measure("w", 0, 2_000) == first
    assert journal.reads == reads
    journal.kept.append(segment(2_001, 2_001))
    grown = backlog.measure("w", 0, 2_001)
    assert grown is not None
    assert (grown.transactions, journal.reads) == (2_001, reads + 1)
    fresh = backlog_of(journal, 10_000).measure("w", 0, 2_001)
    assert grown == fresh


def test_a_gap_or_an_expired_log_cannot_be_replayed() -> None:
    journal = Segments([segment(5, 6)])
    assert backlog_of(journal).measure("w", 0, 6) is None
    assert backlog_of(journal).measure("w", 4, 6) is not None
    assert backlog_of(journal).measure("w", 4, 9) is None
    journal.expired = True
    assert backlog_of(journal).measure("w", 4, 6) is None
