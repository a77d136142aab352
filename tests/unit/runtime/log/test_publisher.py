"""The publisher behind a summary: a new queue table, and never rows of the old one (P21).

And the epochs that it appends: each once, whenever the process was killed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.support.storage_samples import entries_of, run_of

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import (
    BusyError,
    NewerReleaseError,
    StorageError,
    StoreUnavailableError,
    TxLogError,
)
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import Block, OperationKind
from sparktxlog.protocol.messages.posts import QueueEntry, RunHeader
from sparktxlog.protocol.messages.view import Phase, Seat, View
from sparktxlog.runtime.log import publisher as publisher_module
from sparktxlog.runtime.log.epoch_history import EpochHistory
from sparktxlog.runtime.log.publisher import Publisher, bounded
from sparktxlog.runtime.membership.standings import INSTANCE
from sparktxlog.storage.interfaces import AppendQueue, PutRun, ResetJournal, StoredEntry, Write
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables import log_table
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.segments.publishing import publish
from sparktxlog.supervision import Supervisor

HERE = NodeId("z")


class Site:
    """The publishing side of a node; `start` stands for a start of its process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.checkpoint_every = 100
        self.journal = Journal(directory)
        self.journal.load(1_000)

    def order(self, runs: Sequence[PutRun], entries: Sequence[QueueEntry]) -> None:
        self.journal.write([*runs, AppendQueue(entries=tuple(entries), ordered_at=1)])

    def publish(self, epochs: EpochHistory | None = None) -> None:
        """Start, publish everything, stop."""
        state = self.journal.load(1_000)
        goal, done = state.core.base.position, Event()
        publisher = self.publisher(
            lambda position, seconds: done.set() if position >= goal else None, epochs
        )
        publisher.start(goal)
        if goal > state.published:
            assert done.wait(10), publisher.failure
        publisher.stop()
        assert publisher.failure is None

    def publisher(
        self, on_published: Callable[[int, float], None], epochs: EpochHistory | None = None
    ) -> Publisher:
        node: Any = SimpleNamespace(
            tables=dict, mark=self.journal.write, on_published=on_published, on_rest=lambda: None
        )
        return self.publisher_of(node, epochs)

    def publisher_of(self, node: Any, epochs: EpochHistory | None = None) -> Publisher:
        base: Any = SimpleNamespace(
            config=SimpleNamespace(
                data_dir=self.directory,
                log_id="l",
                publish_interval=0.01,
                log_checkpoint_interval=self.checkpoint_every,
                lag_retention=3_600.0,
                signature_interval=1_000,
                payload_url="s3://bucket/staged",
            ),
            journal=self.journal,
            payloads=LocalPayloadStore(self.directory / "payloads"),
            state=replace(self.journal.load(1_000), values={INSTANCE: b"i"}),
            order=None,
            supervisor=Supervisor(),
            reserve=SimpleNamespace(take=lambda: False),
        )
        idle: Any = SimpleNamespace(asked=False, step=lambda *_: False, close=lambda: None)
        history = EpochHistory({}, put=self.put) if epochs is None else epochs
        return Publisher(base, node, history, idle)

    def reset(self, giver: Journal, incarnation: int | None = None) -> None:
        """Take over a peer's summary and start anew."""
        summary = giver.read_summary()
        self.journal.write([ResetJournal(summary=summary, node_id=HERE, incarnation=incarnation)])
        self.journal.close()
        self.journal = Journal(self.directory)

    def put(self, writes: Sequence[Write], then: Callable[[], None]) -> None:
        """Write what a node notes of itself."""
        self.journal.write(writes)
        then()

    def epochs(self, *views: View, forgets: bool = False) -> EpochHistory:
        """Start, and take views up; with `forgets` a kill comes before the journal has them."""
        history = EpochHistory(
            self.journal.load(1_000).values,
            put=(lambda writes, then: None) if forgets else self.put,
        )
        for view in views:
            history.take_up(view, Phase.NORMAL)
        return history

    def epoch_rows(self) -> list[tuple[int, str]]:
        found = QueryBuilder().register("e", DeltaTable(self.log / "epochs"))
        rows = pa.table(found.execute('SELECT epoch, "left" FROM e ORDER BY epoch'))
        return [(row["epoch"], "".join(row["left"] or "?")) for row in rows.to_pylist()]

    def positions(self) -> list[int]:
        found = QueryBuilder().register("q", DeltaTable(self.log / "synchronized_queue"))
        rows = pa.table(found.execute("SELECT position FROM q ORDER BY position"))
        return [int(value) for value in rows.column(0).to_pylist()]


BLOCKS = [Block(table="orders", kind=OperationKind.APPEND, txs=(0,))]
RUNS = [run_of(seq=1 + 2 * i, n=2, blocks=BLOCKS) for i in range(10)]
ENTRIES = entries_of(RUNS)


@pytest.fixture
def giver(tmp_path: Path) -> Site:
    """A site that published the first six runs, positions 1 to 12."""
    site = Site(tmp_path / "giver")
    site.order(RUNS[:6], ENTRIES[:6])
    site.publish()
    return site


def test_what_nobody_foresaw_is_shown_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file descriptor is left for a while: the thread outlives it."""
    site, done = Site(tmp_path / "site"), Event()
    site.order(RUNS[:1], ENTRIES[:1])
    publisher = site.publisher(lambda position, seconds: done.set())
    seen: list[TxLogError | None] = []

    def without_descriptors(*args: Any, **named: Any) -> Any:
        if len(seen) < 3:
            seen.append(publisher.failure)
            raise OSError(errno.EMFILE, "too many open files")
        return publish(*args, **named)

    monkeypatch.setattr(publisher_module, "publish", without_descriptors)
    publisher.start(2)
    assert done.wait(10), publisher.failure
    publisher.stop()
    assert publisher.failure is None and site.positions() == [1, 2]
    assert [found and "too many open files" in str(found) for found in seen] == [None, True, True]


def test_v54_each_node_makes_checkpoints_at_its_own_interval(tmp_path: Path) -> None:
    """Two nodes publish the same runs, a commit for each, with other settings."""
    made = dict[str, list[int]]()
    for name, every in (("often", 2), ("seldom", 4), ("never", 100)):
        site = Site(tmp_path / name)
        site.checkpoint_every = every
        for run, entry in zip(RUNS[:8], ENTRIES[:8], strict=True):
            site.order([run], [entry])
            site.publish()
        found = (site.log / "synchronized_queue" / "_delta_log").glob("*.checkpoint.parquet")
        made[name] = sorted(int(path.name[:20]) for path in found)
        assert site.positions() == list(range(1, 17))
    assert made == {"often": [2, 4, 6, 8], "seldom": [4, 8], "never": []}


def test_histories_are_written_while_a_bucket_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie on the node's disk."""
    site, done, appended = Site(tmp_path / "site"), Event(), Event()
    site.order(RUNS[:1], ENTRIES[:1])
    publisher = site.publisher(lambda position, seconds: done.set())

    def away(*args: Any, **named: Any) -> Any:
        if not appended.is_set():
            raise StoreUnavailableError("the bucket is away")
        return publish(*args, **named)

    monkeypatch.setattr(publisher_module, "publish", away)
    monkeypatch.setattr(publisher, "_append_epochs", appended.set)
    publisher.start(2)
    assert done.wait(10), publisher.failure
    publisher.stop()


def test_a_stop_gives_a_publish_up_that_waits_for_a_bucket_and_it_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start may be in the same process, and publishes the same positions."""
    monkeypatch.setattr(publisher_module, "_LAST_IN_BUCKET_S", 0.1)
    site, waits, answers = Site(tmp_path / "site"), Event(), Event()
    site.order(RUNS[:1], ENTRIES[:1])
    publisher = site.publisher(lambda position, seconds: None)

    def sync(store: LocalPayloadStore, relatives: Iterable[str]) -> None:
        waits.set()
        answers.wait(30)

    def changed(*args: Any) -> None:
        raise AssertionError("it changes something after the stop")

    monkeypatch.setattr(LocalPayloadStore, "sync", sync)
    publisher.start(2)
    assert waits.wait(10)
    publisher.stop()
    for name in ("_append_reports", "_append_rows", "_append_epochs", "_shorten"):
        monkeypatch.setattr(publisher, name, changed)
    answers.set()
    publisher._thread.join(10)
    assert not publisher._thread.is_alive()
    assert not [*site.log.rglob("*.parquet")] and isinstance(publisher.failure, BusyError)
    monkeypatch.undo()
    site.publish()
    assert site.positions() == [1, 2]
    site.journal.close()


@pytest.mark.parametrize("held", [0, 2])
def test_a_node_that_was_far_behind_goes_on_at_the_summary(
    tmp_path: Path, giver: Site, held: int
) -> None:
    site = Site(tmp_path / "site")
    site.order(RUNS[:held], ENTRIES[:held])
    site.publish()
    site.reset(giver.journal)
    site.publish()  # nothing yet
    site.order(RUNS[6:8], ENTRIES[6:8])
    site.publish()
    site.order(RUNS[8:], ENTRIES[8:])
    site.publish()
    assert site.positions() == list(range(13, 21))
    aside = Attic.of_node(site.directory).place(Kind.QUEUE, "", "1")
    assert aside.exists() == bool(held)
    assert [s.last for s in site.journal.read_segments(12, 9)] == [16, 20]
    site.journal.close()


def test_a_longer_table_of_another_history_is_not_taken_for_ours(
    tmp_path: Path, giver: Site
) -> None:
    other = [run_of(origin="q", seq=1 + i, n=1, blocks=BLOCKS) for i in range(30)]
    site = Site(tmp_path / "site")
    site.order(other, entries_of(other))
    site.publish()
    assert site.positions() == list(range(1, 31))
    site.reset(giver.journal, incarnation=2)
    site.order(RUNS[6:], ENTRIES[6:])
    site.publish()
    assert site.positions() == list(range(13, 21))
    # Its table is lost later: what the summary cut off does not come back, the rest does.
    state = site.journal.load(10)
    assert (state.published, state.kept_after) == (20, 12)
    (site.log / "synchronized_queue").rename(tmp_path / "lost")
    site.publish()
    assert site.positions() == list(range(13, 21))
    site.journal.close()


def test_a_kill_between_commit_and_mark_repeats_nothing(tmp_path: Path, giver: Site) -> None:
    site = Site(tmp_path / "site")
    site.order(RUNS[:2], ENTRIES[:2])
    site.publish()
    site.reset(giver.journal)
    site.order(RUNS[6:8], ENTRIES[6:8])
    committed = Event()

    def die(writes: Sequence[object]) -> None:
        committed.set()
        raise StorageError("killed")

    node: Any = SimpleNamespace(tables=dict, mark=die, on_rest=lambda: None)
    publisher = site.publisher_of(node)
    publisher.start(16)
    assert committed.wait(10)
    publisher.stop()
    assert site.positions() == [13, 14, 15, 16]
    assert site.journal.load(10).published_version == -1
    site.publish()
    assert site.positions() == [13, 14, 15, 16]
    assert site.journal.load(10).published == 16
    site.journal.close()


def test_a_table_of_a_later_format_keeps_the_node_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    with monkeypatch.context() as later:
        later.setattr(log_table, "FORMAT", 2)
        site.publisher(lambda position, seconds: None).open()
    with pytest.raises(NewerReleaseError, match="format 2"):
        site.publisher(lambda position, seconds: None).open()
    site.journal.close()


@pytest.mark.parametrize("early", [True, False])
def test_what_a_reader_waits_for_is_published_before_the_interval_is_over(
    tmp_path: Path, early: bool
) -> None:
    site, done = Site(tmp_path / "site"), Event()
    publisher = site.publisher(lambda position, seconds: done.set())
    publisher._interval_s = 3_600.0
    publisher.start(0)
    site.order(RUNS[:1], ENTRIES[:1])
    if not early:
        publisher.ordered(2)
    with publisher.wanted(2):
        if early:
            publisher.ordered(2)
        assert done.wait(20), publisher.failure
    publisher.stop()
    assert site.positions() == [1, 2] and publisher._wanted == []
    site.journal.close()


def test_without_a_reader_many_transactions_are_one_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, ends, done, rest = Site(tmp_path / "site"), list[int](), Event(), Event()

    def published(position: int, seconds: float) -> None:
        ends.append(position)
        done.set()

    publisher = site.publisher(published)
    publisher._interval_s = 3_600.0
    monkeypatch.setattr(publisher._log, "on_rest", rest.set)
    publisher.start(0)
    assert rest.wait(20), "it publishes what is there at its start"
    for number in range(3):
        site.order(RUNS[number : number + 1], ENTRIES[number : number + 1])
        publisher.ordered(2 * number + 2)
    with publisher.wanted(6):
        assert done.wait(20), publisher.failure
    publisher.stop()
    assert ends == [6]
    site.journal.close()


def test_it_tells_when_it_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path / "site")
    site.order(RUNS[:1], ENTRIES[:1])
    rested = Event()
    publisher = site.publisher(lambda position, seconds: None)
    monkeypatch.setattr(
        publisher._log, "on_rest", lambda: None if publisher.working else rested.set()
    )
    publisher.start(2)
    assert rested.wait(10)
    publisher.stop()
    site.journal.close()


def _view(epoch: int, members: str) -> View:
    return View(
        log_id="l",
        epoch=epoch,
        roster=tuple(Seat(node_id=NodeId(name)) for name in "ABC"),
        members=tuple(NodeId(name) for name in members),
    )


FIRST, SECOND = _view(1, "ABC"), _view(2, "AB")


def test_an_epoch_is_appended_once_over_restarts(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.publish(site.epochs(FIRST))
    site.publish(site.epochs(FIRST))
    assert site.epoch_rows() == [(1, "?")]
    site.publish(site.epochs(SECOND))
    site.publish(site.epochs(SECOND, FIRST))
    assert site.epoch_rows() == [(1, "?"), (2, "C")]
    site.journal.close()


def test_epochs_that_a_kill_kept_out_of_the_table_follow_at_the_next_start(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.epochs(FIRST, SECOND)  # killed before the publisher came to them
    assert not (site.log / "epochs").exists()
    site.publish(site.epochs(SECOND))
    assert site.epoch_rows() == [(1, "?"), (2, "C")]
    site.journal.close()


def test_an_epoch_that_the_journal_did_not_note_is_made_of_its_view(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.publish(site.epochs(FIRST))
    site.epochs(SECOND, forgets=True)
    site.publish(site.epochs(SECOND))
    assert site.epoch_rows() == [(1, "?"), (2, "C")]
    site.journal.close()


def test_what_a_kill_may_keep_out_of_the_journal_is_not_in_the_table(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.publish(site.epochs(FIRST, forgets=True))
    assert not (site.log / "epochs").exists()
    assert site.epochs().latest(9) == []
    history = site.epochs(FIRST)
    assert [epoch.epoch for epoch in history.latest(9)] == [1]
    site.publish(history)
    assert site.epoch_rows() == [(1, "?")]
    site.journal.close()


def test_a_held_publisher_goes_on_after_a_moment(tmp_path: Path) -> None:
    """An epoch change that never ends must not end publishing."""
    site, done = Site(tmp_path), Event()
    run = run_of(n=2, blocks=BLOCKS)
    publisher = site.publisher(lambda position, seconds: done.set())
    publisher.start(0)
    publisher.hold(True)
    site.order([run], entries_of([run]))
    publisher.ordered(run.header.n)
    assert done.wait(10), publisher.failure
    publisher.stop()


def test_a_publish_is_bounded_but_takes_one_run_at_least() -> None:
    def stored(n: int) -> StoredEntry:
        header = RunHeader(
            epoch=1, ts=1, origin=NodeId("A"), incarnation=1, seq=1, n=n, digest=b"", size_bytes=1
        )
        entry = QueueEntry(position=1, header=header, previous_hash=b"", chain_hash=b"")
        return StoredEntry(entry=entry, ids=b"", ordered_at=1)

    assert len(bounded([stored(28_000), stored(2_000), stored(1)])) == 2
    assert len(bounded([stored(30_001), stored(1)])) == 1
    assert bounded([]) == []
