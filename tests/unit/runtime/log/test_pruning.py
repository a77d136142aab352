"""Rounds of shortening: their order, what a failure leaves, who is warned and how often."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.storage_samples import TemporaryJournal, entries_of, run_of, staged_of

from sparktxlog.errors import DiskFullError, StorageError
from sparktxlog.runtime.log.pruning import Maintenance, Pruning
from sparktxlog.runtime.log.retention import Holder, Limits, RetentionView
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropExpired,
    ExpireLog,
    MarkPublished,
    Segment,
    ShrinkJournal,
    TableEffect,
    Write,
)
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.supervision import Supervisor

CONTENT = bytes(1_000_000)


class Bench:
    """A log of ten segments of one transaction, half of them staged, with 1 MB files."""

    def __init__(self, directory: Path) -> None:
        self.store = LocalPayloadStore(directory / "payloads")
        self.journal = TemporaryJournal()
        self.view: dict[str, Any] = {
            "peers": {},
            "holders": (Holder(node_id="a", position=10, known=True),),
            "limits": Limits(transactions=100, age_us=1 << 60, size_bytes=1 << 50),
            "now_us": 1,
        }
        self.told: list[str] = []
        self.broken: StorageError | None = None
        runs = [run_of(seq=1 + i) for i in range(10)]
        entries = entries_of(runs)
        writes: list[Write] = [*runs, AppendQueue(entries=entries, ordered_at=1)]
        for i, entry in enumerate(entries, start=1):
            path = f"tx{i}/t/part-0.parquet" if i % 2 else f"inline/{i}-{i}/t.parquet"
            self.store.write_file(path, CONTENT)
            effect = TableEffect(
                table="t",
                kind="append",
                first=i,
                last=i,
                inline=not i % 2,
                files=(staged_of(path, CONTENT),),
            )
            segment = Segment(
                first=i,
                last=i,
                from_hash="",
                to_hash=entry.chain_hash.hex(),
                epoch=1,
                transactions=1,
                rejected=0,
                effects=(effect,),
            )
            writes.append(MarkPublished(position=i, version=1, segment=segment))
        self.journal.write(writes)
        #: Directories of uploads that nobody goes on with.
        self.given_up: set[str] = set()
        self.has_reserve = False
        base: Any = SimpleNamespace(
            budgets=SimpleNamespace(take_given_up=lambda: self.given_up),
            config=SimpleNamespace(data_dir=directory, upload_expiry=60.0),
            journal=self.journal,
            payloads=self.store,
            supervisor=Supervisor(),
            reserve=SimpleNamespace(take=self.take),
        )
        log: Any = self
        self.pruning = Pruning(base, log)

    def take(self) -> bool:
        """Give the reserve, if there is one; then the disk is not full any more."""
        had, self.has_reserve = self.has_reserve, False
        if had:
            self.broken = None
        return had

    def on_kept(self, position: int) -> None:
        """Nobody waits for it."""

    def retention_view(self) -> RetentionView:
        kept_after = self.journal.read_extent().kept_after
        return RetentionView(published=10, kept_after=kept_after, **self.view)

    def write(self, writes: Sequence[Write]) -> None:
        self.told += [type(write).__name__ for write in writes]
        self.journal.write(writes)

    def expire_tables(self, position: int, before: datetime) -> None:
        assert before.tzinfo is UTC
        self.told.append(f"tables {position}")
        if self.broken is not None:
            raise self.broken

    def limit(self, **fields: int) -> None:
        limits: Limits = self.view["limits"]
        given = {
            "transactions": limits.transactions,
            "age_us": 1 << 50,
            "size_bytes": limits.size_bytes,
        }
        self.view["limits"] = Limits(**(given | fields))

    def round(self) -> Future[Maintenance]:
        asked = self.pruning.ask()
        while self.pruning.step(10, self.expire_tables):
            pass
        assert asked.done()
        return asked

    def files(self) -> int:
        return len(list(self.store.root.rglob("*.parquet")))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_within_the_limits_nothing_is_touched(bench: Bench) -> None:
    done = bench.round().result()
    assert (done.pruned_to, done.transactions, done.files, done.limits) == (0, 0, 0, ())
    assert done.log_bytes_before >= done.log_bytes >= 10 * len(CONTENT)
    assert bench.told == ["tables 0", "ShrinkJournal"]


def test_the_order_of_work(bench: Bench) -> None:
    bench.limit(transactions=4)
    done = bench.round().result()
    assert bench.told == [
        ExpireLog.__name__,
        DropExpired.__name__,
        "tables 6",
        ShrinkJournal.__name__,
    ]
    assert (done.pruned_to, done.transactions, done.files) == (6, 6, 6)
    assert done.limits == ("tx-log-max-size",)
    assert done.log_bytes < done.log_bytes_before - 5 * len(CONTENT)
    assert bench.files() == 4
    assert bench.pruning.log_bytes() == done.log_bytes
    assert sorted(path.name for path in (bench.store.root / "inline").iterdir()) == ["10-10", "8-8"]


def test_a_round_that_failed_is_taken_up_by_the_next(bench: Bench) -> None:
    bench.limit(transactions=4)
    bench.broken = StorageError("the disk")
    assert bench.round().exception() is bench.broken
    assert bench.pruning.failure is bench.broken
    bench.broken = None
    assert bench.round().result().pruned_to == 6
    assert bench.pruning.failure is None
    assert bench.told[-2:] == ["tables 6", "ShrinkJournal"]


def test_a_round_on_a_full_disk_gets_the_reserve(bench: Bench) -> None:
    bench.limit(transactions=4)
    bench.broken, bench.has_reserve = DiskFullError("full"), True
    assert bench.round().result().pruned_to == 6
    bench.broken = DiskFullError("full")
    assert bench.round().exception() is bench.broken


def test_files_of_a_round_that_was_killed_go_with_the_first_round(bench: Bench) -> None:
    cut = bench.journal.read_cuts(0, 9)[5]
    bench.journal.write([ExpireLog(position=cut.last, chain_hash=cut.chain_hash)])
    assert bench.files() == 10
    while bench.pruning.step(10, bench.expire_tables):  # of its own accord, after the start
        pass
    assert bench.files() == 4
    assert bench.journal.read_expired(9) == []
    assert not bench.pruning.step(10, bench.expire_tables), "the next round is due in a minute"


def test_a_staged_file_that_is_named_again_stays(bench: Bench) -> None:
    again = bench.journal.read_segments(9, 1)[0]
    bench.limit(transactions=4)
    named = TableEffect(
        table="t", kind="append", first=10, last=10, files=(staged_of("tx1/t/part-0.parquet", b""),)
    )
    segment = replace(again, effects=(named,))
    bench.journal.write([MarkPublished(position=10, version=1, segment=segment)])
    bench.round().result()
    assert (bench.store.root / "tx1/t/part-0.parquet").exists()
    assert not (bench.store.root / "tx3").exists()


def test_uploads_that_were_given_up_go_unless_a_transaction_names_them(bench: Bench) -> None:
    """They are young; of two unfinished ones the older one goes."""
    root = bench.store.root
    for name in ("upload", "tx9"):
        (root / name / "0-t").mkdir(parents=True, exist_ok=True)
        (root / name / "0-t" / "x").write_bytes(CONTENT)
    for name, age_s in (("old", 61), ("young", 30)):
        (root / ".incoming" / name).write_bytes(CONTENT)
        os.utime(root / ".incoming" / name, (time() - age_s,) * 2)
    bench.given_up = {"upload", "tx9"}
    assert bench.round().result().files == 2
    assert not (root / "upload").exists()
    assert (root / "tx9" / "0-t" / "x").exists()
    assert [one.name for one in (root / ".incoming").iterdir()] == ["young"]


def test_a_laggard_is_warned_of_once_and_told_of_once(bench: Bench) -> None:
    bench.view["holders"] = (*bench.view["holders"], Holder(node_id="b", position=2))
    with capture_logs() as logs:
        bench.limit(size_bytes=12_000_000)
        for _ in range(3):
            assert bench.round().result().overrun == ()
        bench.limit(size_bytes=7_000_000)
        assert bench.round().result().overrun == ("b",)
        assert bench.round().result().overrun == ()
    warnings = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert [event.split(":")[0] for event in warnings] == [
        "worker lags and will need a copy once the log outgrows tx-log-max-bytes",
        "worker needs a copy",
    ]


def test_nobody_waits_for_a_round_that_never_comes(bench: Bench) -> None:
    asked = bench.pruning.ask()
    bench.pruning.close()
    assert isinstance(asked.exception(), StorageError)
    cancelled = bench.pruning.ask()
    cancelled.cancel()
    while bench.pruning.step(10, bench.expire_tables):
        pass
