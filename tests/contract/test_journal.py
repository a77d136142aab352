"""What a journal promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.storage_samples import ORDERS, entries_of, ids_in, ids_of, run_of

from sparktxlog.errors import ExpiredError, InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import MergeBase, Rejection
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropAnnouncement,
    ForgetPayloads,
    MarkPublished,
    PutAnnouncement,
    PutReservation,
    PutRun,
    PutValue,
    Segment,
)
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.payload_log import LEAST_BYTES


class Bench:
    """A journal that can be closed and opened again."""

    def __init__(self, open_journal: Callable[[], Journal]) -> None:
        self._open = open_journal
        self.journal = open_journal()

    def reopen(self) -> Journal:
        self.journal.close()
        self.journal = self._open()
        return self.journal


@pytest.fixture(params=[LEAST_BYTES, 0], ids=["small", "large"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    """Give a journal that has containers in its tables, and one that has them in files."""
    monkeypatch.setattr(journal_module, "LEAST_BYTES", request.param)
    made = Bench(lambda: Journal(tmp_path / "data"))
    yield made
    made.journal.close()


def segment(first: int, last: int) -> Segment:
    return Segment(
        first=first,
        last=last,
        from_hash="00",
        to_hash="01",
        epoch=1,
        transactions=last - first + 1,
        rejected=0,
    )


def published(first: int, last: int, version: int = 1) -> MarkPublished:
    return MarkPublished(position=last, version=version, segment=segment(first, last))


def test_a_new_journal_is_empty(bench: Bench) -> None:
    state = bench.journal.load(100)
    assert state.core.base == MergeBase()
    assert state.published == 0
    assert state.published_version == -1
    assert list(state.core.incoming) == []
    assert bench.journal.read_queue(0, 10, payloads=True) == []
    assert bench.journal.read_entry_at(1) is None
    assert bench.journal.read_hash_at(0) == bytes(32)


def test_runs_wait_in_the_incoming_queue_until_they_are_appended(bench: Bench) -> None:
    own, foreign = run_of(seq=1, n=3), run_of(origin="b", seq=1, n=100)
    bench.journal.write([own, foreign, PutReservation(counter=77), PutValue(name="x", value=b"1")])

    state = bench.reopen().load(1000)
    waiting = {run.header.origin: run for run in state.core.incoming}
    assert waiting["a"].header == own.header
    assert waiting["a"].facts.ids == ids_in(own)
    assert waiting["b"].facts.touches[0].table == "orders"
    assert state.core.reserved == 77
    assert state.values == {"x": b"1"}
    assert state.core.watermarks == {}
    assert bench.journal.read_payload("b", 1, 1) == foreign.payload
    assert bench.journal.read_payload("b", 2, 1) is None


def test_appended_runs_are_the_queue(bench: Bench) -> None:
    runs = [run_of(seq=1, n=3), run_of(origin="b", seq=1, n=2), run_of(seq=4, n=1)]
    refusal = (Rejection(index=1, code="unknown-table", text="no such table"),)
    entries = entries_of(runs, rejections={1: refusal})
    bench.journal.write(runs)
    bench.journal.write([AppendQueue(entries=entries[:2], ordered_at=5, tables=((2, ORDERS),))])

    state = bench.reopen().load(1000)
    assert state.core.base == MergeBase(
        position=5, chain_hash=entries[1].chain_hash, origin="b", seq=2
    )
    assert state.core.base_key == runs[1].header.key
    assert state.core.watermarks == {"a": 3, "b": 2}
    assert [run.header for run in state.core.incoming] == [runs[2].header]
    assert list(state.core.tables) == [ORDERS]
    assert b"".join(ids for _, ids in state.core.recent_ids) == ids_in(runs[0]) + ids_in(runs[1])
    assert state.core.recent_ids[0][0] == 1

    assert bench.journal.read_created(2, 5) == {(2, "orders"): ORDERS}
    assert bench.journal.read_created(3, 9) == bench.journal.read_created(1, 1) == {}
    later = replace(ORDERS, is_sync=True, schema_version=2)
    bench.journal.write([AppendQueue(entries=entries[2:], ordered_at=6, tables=((6, later),))])
    found = [bench.journal.read_definitions(position) for position in (1, 5, 6)]
    assert found == [{}, {"orders": ORDERS}, {"orders": later}]

    assert bench.journal.read_drops(0) == {}

    stored = bench.journal.read_queue(0, 10, payloads=True)
    assert [item.entry for item in stored] == list(entries)
    assert stored[1].entry.rejections == refusal
    assert stored[0].ordered_at == 5
    assert stored[0].payload == runs[0].payload
    assert bench.journal.read_queue(0, 1, payloads=False)[0].payload is None
    later_runs = bench.journal.read_queue(1, 9, payloads=False)
    assert [item.entry.position for item in later_runs] == [4, 6]


def test_drops_are_found_by_position(bench: Bench) -> None:
    """The first one after a position is the end of the table that was there."""
    again = replace(ORDERS, schema_version=3, first_version=3)
    runs = [run_of(seq=1, n=9)]
    tables = ((2, ORDERS), (3, ORDERS.dropped()), (5, again), (8, again.dropped()))
    bench.journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1, tables=tables)])
    found = [bench.journal.read_definitions(position) for position in (2, 3, 5, 8)]
    assert found == [{"orders": ORDERS}, {}, {"orders": again}, {}]
    for after, drop in ((0, 3), (2, 3), (3, 8), (7, 8)):
        assert bench.journal.read_drops(after) == {"orders": drop}
    assert bench.journal.read_drops(8) == {}
    assert bench.journal.read_created(3, 5) == {
        (3, "orders"): ORDERS.dropped(),
        (5, "orders"): again,
    }
    assert [table.is_dropped for table in bench.reopen().load(10).core.tables] == [
        False,
        True,
        False,
        True,
    ]


def test_entries_and_hashes_are_found_by_position(bench: Bench) -> None:
    runs = [run_of(seq=1, n=3), run_of(seq=4, n=2)]
    entries = entries_of(runs)
    bench.journal.write([*runs, AppendQueue(entries=entries, ordered_at=1)])
    for position, entry in ((1, 0), (3, 0), (4, 1), (5, 1)):
        held = bench.journal.read_entry_at(position)
        assert held is not None
        assert held.entry == entries[entry]
    assert bench.journal.read_entry_at(6) is None
    assert bench.journal.read_entry_at(0) is None
    assert bench.journal.read_hash_at(3) == entries[0].chain_hash
    assert bench.journal.read_hash_at(2) is None
    assert bench.journal.read_hash_at(6) is None


def test_the_id_window_bounds_what_is_loaded(bench: Bench) -> None:
    runs = [run_of(seq=1 + 3 * i, n=3) for i in range(10)]
    bench.journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])
    pieces = bench.reopen().load(7).core.recent_ids
    # Positions 24 … 30 are wanted; their runs are whole.
    assert pieces[0][0] == 22
    assert b"".join(ids for _, ids in pieces) == b"".join(ids_in(run) for run in runs[7:])


def test_an_entry_out_of_place_changes_nothing(bench: Bench) -> None:
    runs = [run_of(seq=1, n=2), run_of(seq=3, n=2)]
    entries = entries_of(runs)
    bench.journal.write(runs)
    with pytest.raises(InvariantViolation):
        bench.journal.write([AppendQueue(entries=(entries[1],), ordered_at=1)])
    with pytest.raises(InvariantViolation):
        bench.journal.write(
            [PutReservation(counter=9), AppendQueue(entries=(*entries, entries[1]), ordered_at=1)]
        )
    assert bench.journal.load(10).core.base.position == 0
    assert bench.journal.load(10).core.reserved == 0
    assert bench.journal.find_transaction(ids_in(runs[0])[:16]) == (runs[0].header, 0)
    bench.journal.write([AppendQueue(entries=entries, ordered_at=1)])
    assert bench.journal.load(10).core.base.position == 4


def test_a_run_that_was_never_received_cannot_be_ordered(bench: Bench) -> None:
    (entry,) = entries_of([run_of(seq=1)])
    with pytest.raises(InvariantViolation):
        bench.journal.write([AppendQueue(entries=(entry,), ordered_at=1)])


def test_a_repeated_run_is_kept_once_and_a_different_one_refused(bench: Bench) -> None:
    run = run_of(seq=1, n=2)
    bench.journal.write([run, run])
    assert len(list(bench.journal.load(10).core.incoming)) == 1
    with pytest.raises(InvariantViolation):
        bench.journal.write([run_of(seq=1, n=2, ids=ids_of(999, 2))])
    assert bench.journal.read_payload("a", 1, 1) == run.payload


def test_an_announcement_is_replaced_by_its_run(bench: Bench) -> None:
    run = run_of(seq=1, n=1)
    other = run_of(seq=2, n=1)
    for ticket, item in ((8, run), (7, other)):
        bench.journal.write(
            [
                PutAnnouncement(
                    ticket=ticket, digest=item.header.digest, payload=item.payload, session="s"
                )
            ]
        )
    found = list(bench.reopen().load(10).core.announcements)
    assert [item.ticket for item in found] == [8, 7]
    assert found[0].facts.ids == ids_in(run)
    assert found[0].size_bytes == len(run.payload)
    assert found[0].session == "s"
    assert bench.journal.read_announced(run.header.digest) == run.payload

    bench.journal.write([replace(run, ends_announcement=True)])
    assert bench.journal.read_announced(run.header.digest) is None
    assert [item.ticket for item in bench.reopen().load(10).core.announcements] == [7]


@pytest.mark.parametrize("origin", ["a", "b"])
def test_an_equal_run_that_is_not_its_own_leaves_an_announcement(bench: Bench, origin: str) -> None:
    """A client tried another node, too; or the node joined anew, and peers hold its earlier run.

    That run may never be ordered.  It took the payload away that the node was to stamp.
    """
    run = run_of(seq=1, origin=origin)
    digest = run.header.digest
    bench.journal.write([PutAnnouncement(ticket=3, digest=digest, payload=run.payload)])
    bench.journal.write([run])
    state = bench.reopen().load(10)
    assert [item.ticket for item in state.core.announcements] == [3]
    assert bench.journal.read_announced(digest) == run.payload
    own = replace(run.header, origin=NodeId("a"), incarnation=2, seq=5)
    bench.journal.write([PutRun(header=own, payload=run.payload, ends_announcement=True)])
    assert not bench.reopen().load(10).core.announcements


def test_the_former_name_of_a_run_that_waits_for_a_stamp_is_free(bench: Bench) -> None:
    """A copy of the disk gave the run's number to another one, and the others have that.

    The node returned under another incarnation; so its own run is kept as unstamped.  It stopped
    for good when the other run came.
    """
    mine, theirs = run_of(seq=1), run_of(seq=1, ids=ids_of(999, 1))
    digest = mine.header.digest
    bench.journal.write([mine])
    bench.journal.write([PutAnnouncement(ticket=1, digest=digest, payload=mine.payload)])
    bench.journal.write([theirs])
    bench.journal.write([AppendQueue(entries=entries_of([theirs]), ordered_at=1)])
    state = bench.reopen().load(10)
    entry = bench.journal.read_entry_at(1)
    assert entry is not None and entry.entry == entries_of([theirs])[0]
    assert bench.journal.read_payload("a", 1, 1) == theirs.payload
    assert not list(state.core.incoming)
    assert [item.ticket for item in state.core.announcements] == [1]
    assert bench.journal.read_announced(digest) == mine.payload


def test_a_withdrawn_announcement_is_gone(bench: Bench) -> None:
    run, other = run_of(seq=1, n=1), run_of(seq=2, n=1)
    for ticket, item in ((8, run), (7, other)):
        digest = item.header.digest
        bench.journal.write([PutAnnouncement(ticket=ticket, digest=digest, payload=item.payload)])
    gone = DropAnnouncement(digest=run.header.digest, code="payload-store", text="lost", at=1)
    bench.journal.write([gone])
    assert bench.journal.read_announced(run.header.digest) is None
    assert bench.journal.find_transaction(ids_in(run)) is None
    assert bench.journal.find_withdrawn(ids_in(run)) == ("payload-store", "lost")
    assert bench.journal.find_withdrawn(ids_in(other)) is None
    assert [item.ticket for item in bench.reopen().load(10).core.announcements] == [7]


@pytest.mark.parametrize("n", [1, 64, 65, 1000])
def test_a_waiting_transaction_is_found_by_id(bench: Bench, n: int) -> None:
    run = run_of(seq=1, n=n)
    ids = ids_in(run)
    bench.journal.write([run])
    for journal in (bench.journal, bench.reopen()):
        assert journal.find_transaction(ids[-16:]) == (run.header, n - 1)
        assert journal.find_transaction(ids[:16]) == (run.header, 0)
        assert journal.find_transaction(bytes(16)) is None
    bench.journal.write([AppendQueue(entries=entries_of([run]), ordered_at=1)])
    assert bench.journal.find_transaction(ids[:16]) is None


def test_an_id_is_not_found_across_the_border_of_two_ids(bench: Bench) -> None:
    run = run_of(seq=1, n=100)
    bench.journal.write([run])
    assert bench.journal.find_transaction(ids_in(run)[8:24]) is None


def test_published_segments_are_read_in_order(bench: Bench) -> None:
    runs = [run_of(seq=1 + 2 * i, n=2) for i in range(3)]
    bench.journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])
    bench.journal.write([published(1, 2, version=4)])
    bench.journal.write([published(3, 6, version=9)])
    state = bench.reopen().load(10)
    assert (state.published, state.published_version) == (6, 9)
    assert bench.journal.read_segments(0, 10) == [segment(1, 2), segment(3, 6)]
    assert bench.journal.read_segments(2, 10) == [segment(3, 6)]
    assert bench.journal.read_segments(3, 10) == [segment(3, 6)]
    assert bench.journal.read_segments(6, 10) == []
    with pytest.raises(InvariantViolation):
        bench.journal.write([published(7, 8)])
    with pytest.raises(InvariantViolation):
        bench.journal.write([published(3, 4)])


def test_payloads_are_forgotten_only_once_published(bench: Bench) -> None:
    runs = [run_of(seq=1 + 2 * i, n=2) for i in range(3)]
    bench.journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])
    bench.journal.write([ForgetPayloads(position=6)])
    assert bench.journal.read_payload("a", 1, 1) == runs[0].payload
    # Position 3 is inside the second run, whose payload is still wanted.
    bench.journal.write([published(1, 6), ForgetPayloads(position=3)])
    assert bench.journal.read_payload("a", 1, 1) is None
    assert bench.journal.read_payload("a", 1, 3) == runs[1].payload
    payloads = [item.payload for item in bench.journal.read_queue(0, 9, payloads=True)]
    assert payloads == [None, runs[1].payload, runs[2].payload]
    bench.journal.write([ForgetPayloads(position=6)])
    assert [i.payload for i in bench.reopen().read_queue(0, 9, payloads=True)] == [None] * 3


def test_rows_behind_the_id_window_are_pruned(bench: Bench) -> None:
    runs = [run_of(seq=1 + 2 * i, n=2) for i in range(5)]
    entries = entries_of(runs)
    bench.journal.load(4)
    bench.journal.write([*runs, AppendQueue(entries=entries, ordered_at=1)])
    bench.journal.write([published(1, 10), ForgetPayloads(position=10)])
    assert [e.entry for e in bench.journal.read_queue(6, 9, payloads=False)] == list(entries[3:])
    with pytest.raises(ExpiredError) as caught:
        bench.journal.read_queue(5, 9, payloads=False)
    assert caught.value.definite
    assert bench.journal.read_entry_at(6) is None
    assert bench.journal.read_hash_at(6) == entries[2].chain_hash
    with pytest.raises(ExpiredError) as caught:  # a run ended there; nobody knows its hash any more
        bench.journal.read_hash_at(4)
    assert caught.value.fields["position"] == 4
    state = bench.reopen().load(4)
    assert state.core.base.position == 10
    assert state.core.watermarks == {"a": 10}
    # The queue goes on where it ended.
    late = run_of(seq=11, n=2)
    more = entries_of([late], after=10, previous=entries[-1].chain_hash)
    bench.journal.write([late, AppendQueue(entries=more, ordered_at=2)])
    assert bench.journal.load(4).core.base.position == 12


def test_the_merge_base_survives_any_window(bench: Bench) -> None:
    run = run_of(seq=1, n=5)
    bench.journal.load(0)
    bench.journal.write([run, AppendQueue(entries=entries_of([run]), ordered_at=1)])
    bench.journal.write([published(1, 5), ForgetPayloads(position=5)])
    assert bench.reopen().load(0).core.base.position == 5


def test_values_are_replaced(bench: Bench) -> None:
    bench.journal.write([PutValue(name="k", value=b"1")])
    bench.journal.write([PutValue(name="k", value=b"2"), PutReservation(counter=1)])
    bench.journal.write([PutReservation(counter=2)])
    state = bench.reopen().load(1)
    assert state.values == {"k": b"2"}
    assert state.core.reserved == 2


def test_size_grows_with_what_is_kept(bench: Bench) -> None:
    before = bench.journal.size_bytes()
    bench.journal.write([run_of(seq=1, padding=300_000)])
    assert bench.journal.size_bytes() >= before + 300_000
