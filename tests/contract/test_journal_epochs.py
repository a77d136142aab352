"""What every `Journal` promises about epochs: votes, views, new stamps, summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_journal import Bench, bench, published
from tests.support.storage_samples import (
    ORDERS,
    TemporaryJournal,
    entries_of,
    ids_in,
    ids_of,
    run_of,
)

from sparktxlog.codec import wire
from sparktxlog.codec.containers.payload import read_manifest, void_payload, voided_run
from sparktxlog.errors import ExpiredError, InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.operation import Block, OperationKind, StagedFile
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.balloting import BallotState, Decide, Vote
from sparktxlog.protocol.messages.posts import MergeBase, QueueEntry, RunHeader
from sparktxlog.protocol.messages.recovery import MasterConfig, RecoveredState
from sparktxlog.protocol.messages.view import Ballot, Seat, View
from sparktxlog.storage.interfaces import (
    AppendQueue,
    ForgetPayloads,
    PutAnnouncement,
    PutBallot,
    PutReservation,
    PutRestamp,
    PutRun,
    PutValue,
    PutView,
    QueueSummary,
    ResetJournal,
    Write,
)
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.journal.summary_files import open_summary, write_summary

__all__ = ["bench"]

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def view_of(epoch: int = 2, **fields: object) -> View:
    """Return a view with something in every field."""
    header = run_of(origin="b", seq=5, n=2).header
    end = MergeBase(position=9, chain_hash=bytes(range(32)), origin="b", seq=6)
    values: dict[str, object] = {
        "log_id": "demo-1",
        "epoch": epoch,
        "roster": (
            Seat(node_id=A, url="https://a,https://a2", weight=2),
            Seat(node_id=B, incarnation=3),
            Seat(node_id=C, weight=1, witness=True),
        ),
        "members": (A, B),
        "quorum_rule": "majority",
        "base": MergeBase(position=7, chain_hash=bytes(31) + b"\xff", origin="a", seq=3),
        "tail": (header,),
        "end": end,
        "ancestors": (("demo-0", 4), ("demo-00", 1)),
    }
    return View(**(values | fields))  # type: ignore[arg-type]


def put_view(view: View, incarnation: int = 1, node: NodeId = A) -> PutView:
    return PutView(view=view, node_id=node, incarnation=incarnation)


def stamped(run: PutRun, epoch: int, ts: int) -> RunHeader:
    return replace(run.header, epoch=epoch, ts=ts)


def waiting(journal: Journal) -> set[tuple[str, int, int]]:
    found = journal.load(1000).core.incoming
    return {(r.header.origin, r.header.incarnation, r.header.seq) for r in found}


# -- votes and views -------------------------------------------------------------------------------


def test_votes_and_views_come_back_exactly(bench: Bench) -> None:
    state = bench.journal.load(10)
    assert (state.core.view, state.core.ballot, state.incarnation) == (None, None, 1)
    ballot = BallotState(
        epoch=2,
        promised=Ballot(number=7, node="b"),
        accepted=Vote(ballot=Ballot(number=6, node="a"), view=view_of(3)),
    )
    bench.journal.write([PutBallot(state=BallotState(epoch=2)), put_view(view_of(), incarnation=4)])
    bench.journal.write([PutBallot(state=ballot)])
    state = bench.reopen().load(10)
    assert state.core.view == view_of()
    assert state.core.ballot == ballot
    assert state.incarnation == 4
    # Tuples stay tuples: a view is compared and hashed.
    assert hash(state.core.view) == hash(view_of())
    assert isinstance(state.core.view, View)
    assert isinstance(state.core.view.base.chain_hash, bytes)


def test_a_view_drops_what_others_stamped_and_is_not_in_the_queue(bench: Bench) -> None:
    ordered, own = run_of(origin="b", seq=1, n=3), run_of(seq=1, n=2)
    late, long = run_of(origin="b", seq=4, n=2), run_of(origin="c", seq=1, n=100)
    old_self = run_of(seq=1, n=1, incarnation=2, ids=ids_of(77, 1))
    bench.journal.write([ordered, own, late, long, replace(old_self)])
    bench.journal.write([AppendQueue(entries=entries_of([ordered]), ordered_at=1)])
    bench.journal.write([put_view(view_of())])

    assert waiting(bench.journal) == {("a", 1, 1)}
    assert bench.journal.read_payload("b", 1, 1) == ordered.payload
    assert bench.journal.read_payload("a", 1, 1) == own.payload
    for gone in (late, long, old_self):
        header = gone.header
        assert bench.journal.read_payload(header.origin, header.incarnation, header.seq) is None
        assert bench.journal.find_transaction(ids_in(gone)[:16]) is None
    assert bench.journal.find_transaction(ids_in(own)[16:]) == (own.header, 1)
    assert waiting(bench.reopen()) == {("a", 1, 1)}
    assert bench.journal.load(10).core.watermarks == {"b": 3}


def test_a_higher_incarnation_leaves_own_runs_of_before_behind(bench: Bench) -> None:
    before, now = run_of(seq=1, n=1), run_of(seq=2, n=1, incarnation=2)
    bench.journal.write([before, now, put_view(view_of(), incarnation=2)])
    assert waiting(bench.journal) == {("a", 2, 2)}


def test_a_dropped_run_may_come_again_in_the_same_write(bench: Bench) -> None:
    run = run_of(origin="b", seq=1, n=2)
    again = PutRun(header=stamped(run, 2, 99), payload=run.payload)
    bench.journal.write([run, put_view(view_of()), again])
    assert bench.journal.find_transaction(ids_in(run)[:16]) == (again.header, 0)
    assert [r.header for r in bench.reopen().load(10).core.incoming] == [again.header]
    assert bench.journal.find_transaction(ids_in(run)[:16]) == (again.header, 0)


def test_a_write_that_fails_leaves_the_epoch_as_it_was(bench: Bench) -> None:
    foreign, own = run_of(origin="b", seq=1), run_of(seq=1)
    bench.journal.write([foreign, own])
    missing = PutRestamp(header=stamped(run_of(seq=9), 2, 5))
    with pytest.raises(InvariantViolation):
        bench.journal.write(
            [
                PutBallot(state=BallotState(epoch=1)),
                PutRestamp(header=stamped(own, 2, 50)),
                put_view(view_of(), incarnation=2),
                missing,
            ]
        )
    state = bench.journal.load(10)
    assert (state.core.view, state.core.ballot, state.incarnation) == (None, None, 1)
    assert waiting(bench.journal) == {("a", 1, 1), ("b", 1, 1)}
    assert bench.journal.find_transaction(ids_in(foreign)) == (foreign.header, 0)
    assert bench.journal.find_transaction(ids_in(own)) == (own.header, 0)
    assert bench.journal.read_payload("b", 1, 1) == foreign.payload


# -- new stamps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 64, 65])
def test_a_new_stamp_is_seen_everywhere(bench: Bench, n: int) -> None:
    run = run_of(seq=1, n=n)
    header = stamped(run, 3, 12_345)
    bench.journal.write([run])
    bench.journal.write([put_view(view_of(3)), PutRestamp(header=header)])
    assert bench.journal.find_transaction(ids_in(run)[-16:]) == (header, n - 1)
    (waits,) = bench.reopen().load(10).core.incoming
    assert waits.header == header
    assert waits.facts.ids == ids_in(run)
    assert bench.journal.find_transaction(ids_in(run)[-16:]) == (header, n - 1)
    # It enters the queue under its new stamp.
    (entry,) = entries_of([PutRun(header=header, payload=run.payload)])
    bench.journal.write([AppendQueue(entries=(entry,), ordered_at=1)])
    assert bench.journal.load(10).core.base_key == (3, 12_345, "a", 1)
    assert bench.journal.read_queue(0, 9, payloads=True)[0].payload == run.payload
    assert bench.journal.find_transaction(ids_in(run)[-16:]) is None


def test_only_a_waiting_run_of_the_same_content_is_stamped_anew(bench: Bench) -> None:
    run = run_of(seq=1)
    bench.journal.write([run])
    other = replace(stamped(run, 2, 50), digest=bytes(32))
    for header in (other, replace(run.header, seq=2), replace(run.header, incarnation=2)):
        with pytest.raises(InvariantViolation):
            bench.journal.write([PutRestamp(header=header)])
    bench.journal.write([AppendQueue(entries=entries_of([run]), ordered_at=1)])
    with pytest.raises(InvariantViolation):
        bench.journal.write([PutRestamp(header=stamped(run, 2, 50))])
    assert bench.journal.load(10).core.base_key == run.header.key


def test_a_run_that_its_origin_stamped_anew_is_the_later_one(bench: Bench) -> None:
    run = run_of(origin="b", seq=1, n=2)
    later = PutRun(header=stamped(run, 2, 99), payload=run.payload)
    bench.journal.write([run, later])
    bench.journal.write([run])
    assert [r.header for r in bench.reopen().load(10).core.incoming] == [later.header]
    assert bench.journal.find_transaction(ids_in(run)[:16]) == (later.header, 0)


def test_a_run_that_a_copy_of_its_origin_stamped_is_the_one_that_is_taken(bench: Bench) -> None:
    """P10: one number twice in one epoch; the core says which one stands."""
    run = run_of(origin="b", seq=1, n=2)
    for ts in (99, 98):
        taken = PutRun(header=stamped(run, run.header.epoch, ts), payload=run.payload)
        bench.journal.write([run, taken])
        assert [r.header for r in bench.reopen().load(10).core.incoming] == [taken.header]
        bench.journal.write([run])


# -- own runs of a former incarnation --------------------------------------------------------------


def test_a_node_that_lost_its_disk_takes_in_its_own_former_runs(bench: Bench) -> None:
    """They come by tails; its sequence numbers go on behind them, under its new incarnation."""
    former = [run_of(seq=1, n=2), run_of(seq=3, n=1)]
    other, new = run_of(origin="b", seq=1, n=1), run_of(seq=4, n=2, incarnation=2)
    bench.journal.write([put_view(view_of(), incarnation=2), *former, other])
    entries = entries_of([former[0], other, former[1], new])
    bench.journal.write([AppendQueue(entries=entries[:3], ordered_at=1), new])
    assert bench.reopen().load(10).core.watermarks == {"a": 3, "b": 1}
    bench.journal.write([AppendQueue(entries=entries[3:], ordered_at=2)])
    state = bench.reopen().load(10)
    assert state.core.watermarks == {"a": 5, "b": 1}
    assert state.incarnation == 2
    payloads = [item.payload for item in bench.journal.read_queue(0, 9, payloads=True)]
    assert payloads == [former[0].payload, other.payload, former[1].payload, new.payload]
    assert bench.journal.read_payload("a", 1, 3) == former[1].payload
    assert bench.journal.read_payload("a", 2, 4) == new.payload
    assert bench.journal.read_payload("a", 1, 4) is None


# -- payloads for nodes that are behind ------------------------------------------------------------


def sized(journal: Journal, count: int, padding: int = 10_000) -> list[PutRun]:
    """Order and publish `count` runs of one transaction and about `padding` bytes each."""
    runs = [run_of(seq=1 + i, padding=padding) for i in range(count)]
    journal.write([*runs, AppendQueue(entries=entries_of(runs), ordered_at=1)])
    journal.write([published(1, count)])
    return runs


def held(journal: Journal, count: int) -> list[int]:
    return [i for i in range(1, count + 1) if journal.read_payload("a", 1, i) is not None]


def test_payloads_are_spared_for_a_node_that_is_behind(bench: Bench) -> None:
    bench.journal.load(1_000)
    sized(bench.journal, 10)
    spare = ForgetPayloads(position=9, spare_after=4, spare_bytes=1 << 30)
    bench.journal.write([spare])
    assert held(bench.journal, 10) == [5, 6, 7, 8, 9, 10]
    bench.journal.write([replace(spare, spare_after=6)])
    assert held(bench.reopen(), 10) == [7, 8, 9, 10]
    # Nobody is behind any more.
    bench.journal.write([ForgetPayloads(position=9)])
    assert held(bench.journal, 10) == [10]


def test_beyond_the_bound_the_oldest_go_first(bench: Bench) -> None:
    bench.journal.load(1_000)
    sized(bench.journal, 10)
    bench.reopen()
    spare = ForgetPayloads(position=9, spare_after=2, spare_bytes=35_000)
    bench.journal.write([spare])
    # Three runs of about 10,800 bytes fit; what members need is not forgotten for it.
    assert held(bench.journal, 10) == [8, 9, 10]
    bench.journal.write([replace(spare, spare_bytes=0)])
    assert held(bench.journal, 10) == [10]


def test_what_is_spared_can_be_read_by_a_node_that_returns(bench: Bench) -> None:
    bench.journal.load(2)
    runs = sized(bench.journal, 8, padding=0)
    bench.journal.write([ForgetPayloads(position=8, spare_after=3, spare_bytes=1 << 20)])
    stored = bench.journal.read_queue(3, 100, payloads=True)
    assert [item.payload for item in stored] == [run.payload for run in runs[3:]]
    assert bench.journal.read_hash_at(3) is not None


# -- summaries -------------------------------------------------------------------------------------


def history(count: int = 12) -> tuple[list[PutRun], tuple[QueueEntry, ...]]:
    """Return runs of three origins, two of them under two incarnations."""
    runs, seqs = [], {"a": 0, "b": 0, "c": 0}
    for i in range(count):
        origin, n = "abc"[i % 3], 1 + i % 4
        incarnation = 2 if origin == "b" and i > 6 else 1
        runs.append(run_of(origin=origin, seq=seqs[origin] + 1, n=n, incarnation=incarnation))
        seqs[origin] += n
    return runs, entries_of(runs)


def filled(journal: Journal, runs: Sequence[PutRun], entries: Sequence[QueueEntry]) -> Journal:
    """Order runs; the table `orders` comes into being with the second one."""
    tables = ((entries[1].end, ORDERS),)
    appended = AppendQueue(
        entries=tuple(entries), ordered_at=7, tables=tables, writes=writes_of(entries[1:])
    )
    journal.write([*runs, appended])
    return journal


def writes_of(entries: Sequence[QueueEntry]) -> tuple[tuple[str, TableWrites], ...]:
    """Return the writes of runs that all wrote to one table."""
    return tuple(("orders", TableWrites(version=e.end, position=e.end)) for e in entries)


def publish_upto(journal: Journal, entry: QueueEntry) -> None:
    journal.write([published(1, entry.end)])


def core_of(state: RecoveredState) -> dict[str, object]:
    """Return what must be the same, whatever way a node got there."""
    end = state.recent_ids[-1][0] + len(state.recent_ids[-1][1]) // 16 - 1
    return {
        "base": state.base,
        "base_key": state.base_key,
        "watermarks": state.watermarks,
        "tables": list(state.tables),
        "writes": dict(state.writes),
        "ids": b"".join(ids for _, ids in state.recent_ids)[-16 * 15 :],
        "end": end,
    }


def joined(summary: QueueSummary) -> QueueSummary:
    """Return the summary with its ids in one piece: how they are cut means nothing."""
    ids = b"".join(ids for _, ids in summary.recent_ids)
    return replace(summary, recent_ids=((summary.recent_ids[0][0], ids),))


@pytest.mark.parametrize("upto", [3, 7, 12])
def test_a_reset_node_loads_what_one_with_the_whole_log_loads(
    bench: Bench, upto: int, tmp_path: Path
) -> None:
    runs, entries = history()
    giver = filled(TemporaryJournal(), runs, entries)
    giver.load(15)
    publish_upto(giver, entries[upto - 1])
    summary = giver.read_summary()
    assert summary.position == entries[upto - 1].end
    # It travels as a file.
    write_summary(summary, tmp_path / "summary")
    summary = open_summary(tmp_path / "summary")
    assert joined(summary) == joined(giver.read_summary())

    whole = filled(TemporaryJournal(), runs[:upto], entries[:upto])
    bench.journal.write([PutReservation(counter=5), PutValue(name="x", value=b"1")])
    bench.journal.write([ResetJournal(summary=summary, node_id=NodeId("d"))])
    state = bench.reopen().load(15)
    assert core_of(state.core) == core_of(whole.load(15).core)
    position = summary.position
    assert (state.published, state.kept_after, state.published_version) == (position, position, -1)
    assert state.core.reserved == 5
    assert state.values == {"x": b"1"}
    assert bench.journal.read_hash_at(position) == entries[upto - 1].chain_hash
    assert bench.journal.read_queue(position, 9, payloads=True) == []
    assert bench.journal.read_segments(position, 9) == []
    with pytest.raises(ExpiredError):
        bench.journal.read_queue(position - 1, 9, payloads=False)
    # A summary of a summary is the same again, and the core starts from it.
    assert joined(bench.journal.read_summary()) == joined(summary)
    config = MasterConfig(
        node_id=NodeId("d"), members=(A, NodeId("d")), quorum=1, log_id="x", id_window=15
    )
    master = Master(config, state.core, 0)
    assert master.base.position == position
    assert master.writes("orders") == TableWrites(version=position, position=position)
    located = master.locate(ids_in(runs[upto - 1])[:16])
    assert located == entries[upto - 1].position


def test_a_summary_has_the_view_and_all_ids_on_disk() -> None:
    runs, entries = history()
    journal = TemporaryJournal()
    journal.load(8)
    filled(journal, runs, entries)
    publish_upto(journal, entries[8])
    journal.write([put_view(view_of()), ForgetPayloads(position=entries[8].end)])
    summary = joined(journal.read_summary())
    assert summary.view == view_of()
    # Ids that are older than the window, too.
    assert summary.recent_ids[0][1] == b"".join(ids_in(run) for run in runs[:8])


def test_the_window_before_a_summary_is_whole_while_publishing_lags(bench: Bench) -> None:
    runs, entries = history()
    bench.journal.load(6)
    filled(bench.journal, runs, entries)
    publish_upto(bench.journal, entries[5])
    bench.journal.write([ForgetPayloads(position=entries[-1].end)])
    summary = bench.journal.read_summary()
    first = summary.recent_ids[0][0]
    assert first <= summary.position - 6 + 1
    assert summary.watermarks == {
        "a": runs[3].header.last,
        "b": runs[4].header.last,
        "c": runs[5].header.last,
    }


def test_the_queue_goes_on_behind_a_summary(bench: Bench) -> None:
    runs, entries = history()
    giver = filled(TemporaryJournal(), runs, entries)
    giver.load(9)
    publish_upto(giver, entries[6])
    bench.journal.load(9)
    bench.journal.write([ResetJournal(summary=giver.read_summary(), node_id=NodeId("d"))])
    rest = entries[7:]
    appended = AppendQueue(entries=rest, ordered_at=7, writes=writes_of(rest))
    bench.journal.write([*runs[7:], appended])
    assert core_of(bench.reopen().load(15).core) == core_of(giver.load(15).core) | {
        "ids": core_of(bench.journal.load(15).core)["ids"]
    }
    end = entries[-1].end
    bench.journal.write([published(entries[7].position, end), ForgetPayloads(position=end)])
    after = entries[6].end
    assert [s.last for s in bench.journal.read_segments(after, 9)] == [end]
    bench.journal.load(1)
    bench.journal.write([ForgetPayloads(position=end)])
    # What the summary brought has left the window by now.
    assert bench.journal.load(1_000).core.recent_ids[0][0] == entries[-1].position
    extent = bench.journal.read_extent()
    assert (extent.kept_after, extent.resets) == (after, 1)


def test_a_reset_keeps_own_waiting_runs_and_nothing_else(bench: Bench) -> None:
    runs, entries = history()
    giver = filled(TemporaryJournal(), runs, entries)
    giver.load(100)
    publish_upto(giver, entries[-1])
    summary = giver.read_summary()
    mark = summary.watermarks["a"]
    bench.journal.load(100)
    filled(bench.journal, runs[:2], entries[:2])
    bench.journal.write([published(1, entries[1].end)])
    done, own = run_of(seq=mark, ids=ids_of(500, 1)), run_of(seq=mark + 1, ids=ids_of(501, 1))
    foreign = run_of(origin="b", seq=90, ids=ids_of(502, 1))
    late = run_of(seq=999, ids=ids_of(503, 1))
    announced = PutAnnouncement(ticket=1, digest=late.header.digest, payload=late.payload)
    ballot = PutBallot(state=BallotState(epoch=4))
    bench.journal.write([done, own, foreign, announced, ballot])
    bench.journal.write([ResetJournal(summary=summary, node_id=A)])
    assert waiting(bench.reopen()) == {("a", 1, mark + 1)}
    assert bench.journal.read_payload("a", 1, mark + 1) == own.payload
    assert bench.journal.find_transaction(ids_in(own)) == (own.header, 0)
    for gone in (done, foreign, runs[0]):
        header = gone.header
        assert bench.journal.read_payload(header.origin, header.incarnation, header.seq) is None
    assert bench.journal.find_transaction(ids_in(foreign)) is None
    state = bench.journal.load(100)
    assert [item.ticket for item in state.core.announcements] == [1]
    assert state.core.ballot == ballot.state
    assert bench.journal.read_extent().files_bytes == 0
    assert bench.journal.read_announced(late.header.digest) == late.payload


def test_a_node_without_its_disk_begins_under_a_new_incarnation(bench: Bench) -> None:
    """At position 0, to fetch the whole queue as a tail."""
    bench.journal.write([run_of(seq=1)])
    bench.journal.write([ResetJournal(summary=QueueSummary(), node_id=A, incarnation=2)])
    state = bench.reopen().load(10)
    assert state.incarnation == 2
    assert state.core.base == MergeBase()
    assert list(state.core.incoming) == []
    assert bench.journal.read_extent().resets == 1
    run = run_of(seq=1, ids=ids_of(9, 1))
    bench.journal.write(
        [run, AppendQueue(entries=entries_of([run]), ordered_at=1), published(1, 1)]
    )


def test_own_numbers_are_never_given_twice(bench: Bench) -> None:
    runs, entries = history()
    bench.journal.load(100)
    filled(bench.journal, runs, entries)
    giver = filled(TemporaryJournal(), runs[:4], entries[:4])
    giver.load(100)
    publish_upto(giver, entries[2])
    summary = giver.read_summary()
    with pytest.raises(InvariantViolation) as caught:
        bench.journal.write([ResetJournal(summary=summary, node_id=A)])
    assert "higher incarnation" in caught.value.hint
    assert bench.journal.load(100).core.base.position == entries[-1].end
    bench.journal.write([ResetJournal(summary=summary, node_id=A, incarnation=2)])
    assert bench.journal.load(100).core.base.position == entries[2].end
    with pytest.raises(InvariantViolation):
        bench.journal.write([ResetJournal(summary=summary, node_id=A, incarnation=1)])


def test_a_summary_that_contradicts_itself_changes_nothing(bench: Bench) -> None:
    runs, entries = history()
    giver = filled(TemporaryJournal(), runs, entries)
    giver.load(100)
    publish_upto(giver, entries[-1])
    sound = giver.read_summary()
    assert sound.last is not None
    at, ids = joined(sound).recent_ids[0]
    first = (at, ids[:16])
    sound = replace(sound, recent_ids=(first, (at + 1, ids[16:32]), (at + 2, ids[32:])))
    broken = [
        replace(sound, last=None),
        replace(sound, watermarks={"a": 1}),
        replace(sound, recent_ids=sound.recent_ids[:-1]),
        replace(sound, recent_ids=(first, *sound.recent_ids[2:])),
        replace(sound, recent_ids=((first[0], first[1][:-1]), *sound.recent_ids[1:])),
        replace(sound, last=replace(sound.last, ids=b"")),
        replace(sound, tables=((sound.position + 1, ORDERS),)),
        replace(sound, writes={"t": TableWrites(version=1, position=sound.position + 1)}),
    ]
    for summary in broken:
        with pytest.raises(InvariantViolation):
            bench.journal.write([ResetJournal(summary=summary, node_id=NodeId("d"))])
    assert bench.journal.load(10).core.base == MergeBase()
    assert bench.journal.read_extent().resets == 0


@pytest.mark.parametrize(
    ("own", "told", "kept"),
    [
        (None, view_of(2), view_of(2)),
        (view_of(3), None, view_of(3)),
        (view_of(3), view_of(2), view_of(3)),
        (view_of(2), view_of(3), view_of(3)),
        # A log that was forced goes on under another name; a fork of it counts for nothing.
        (view_of(4), view_of(4, log_id="new"), view_of(4, log_id="new")),
        (view_of(5), view_of(4, log_id="demo-0"), view_of(5)),
    ],
)
def test_the_newer_view_counts(
    bench: Bench, own: View | None, told: View | None, kept: View
) -> None:
    before: list[Write] = [] if own is None else [put_view(own)]
    reset = ResetJournal(summary=QueueSummary(view=told), node_id=A)
    bench.journal.write([*before, reset])
    state = bench.reopen().load(10)
    assert state.core.view == kept
    assert state.incarnation == 1


# -- void runs -------------------------------------------------------------------------------------


def test_what_is_void_stands_in_the_place_of_the_lost_run(bench: Bench) -> None:
    file = StagedFile(path="x/t/f.parquet", size_bytes=9, rows=1, digest="0" * 64)
    block = Block(table="orders", kind=OperationKind.APPEND, txs=(0,), files=(file,))
    lost, behind = run_of(seq=1, n=2, blocks=[block]), run_of(seq=3)
    voided = voided_run(lost.header, read_manifest(lost.payload))
    bench.journal.write([lost, behind])
    void = PutRun(header=voided.header, payload=void_payload(voided))
    for _ in range(2):  # also again
        bench.journal.write([void])
        runs = {run.header.seq: run for run in bench.reopen().load(10).core.incoming}
        assert runs.keys() == {1, 3}
        assert (runs[1].header, runs[1].facts) == (voided.header, voided.facts)
    assert bench.journal.read_payload("a", 1, 1) == void.payload
    assert bench.journal.find_transaction(ids_in(lost)[16:]) == (voided.header, 1)
    with pytest.raises(InvariantViolation):
        bench.journal.write([lost])  # it does not come back
    bench.journal.write([AppendQueue(entries=entries_of([void]), ordered_at=1)])
    (stored,) = bench.journal.read_queue(0, 10, payloads=True)
    assert (stored.entry.header, stored.payload, stored.ids) == (
        voided.header,
        void.payload,
        ids_in(lost),
    )


def test_what_is_void_comes_back_with_votes_and_views(bench: Bench) -> None:
    lost = run_of(origin="b", seq=5, n=2)
    header = replace(lost.header, staged_bytes=9)
    voided = replace(voided_run(header, read_manifest(lost.payload)), without=(C,))
    view = view_of(tail=(voided.header,), voided=(voided,))
    vote = Vote(ballot=Ballot(number=6, node="a"), view=view)
    bench.journal.write([put_view(view), PutBallot(state=BallotState(epoch=2, accepted=vote))])
    core = bench.reopen().load(10).core
    assert core.view == view
    assert core.ballot is not None
    assert core.ballot.accepted == vote
    assert wire.decode_epoch(wire.encode_epoch(Decide(sender=A, view=view))).view == view
