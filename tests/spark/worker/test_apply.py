"""Batches applied to real Delta tables, compared with a reference that does one row at a time."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from tests.support.table_rows import rows_of
from tests.support.worker_log import LogBuilder, MemoryLog, Row, expected, rows_table, table

from sparktxlog.delta.log_files import commit_path, newest_version
from sparktxlog.errors import (
    ApplyError,
    DivergedError,
    LockedError,
    StorageError,
    TransportError,
)
from sparktxlog.model.answers import LostFile, RepairedFiles
from sparktxlog.model.report import Recount
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.apply import fold
from sparktxlog.worker.apply.deltalog import LogTransaction
from sparktxlog.worker.apply.fold import ROW_INDEX, URI_COLUMN
from sparktxlog.worker.apply.placing import Placer
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.apply.tables import read_commit
from sparktxlog.worker.lakes import disk_lake
from sparktxlog.worker.replica import replica_driver
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import Answer, LogTail, NodeInfo
from sparktxlog.worker.replica.state import (
    PendingBatch,
    ReplicaDirectory,
    ReplicaState,
    read_state,
)
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = pytest.mark.spark

ORDERS = table("orders", "id bigint, item string, amount decimal(10,2)", keys=["id"])
EVENTS = table("events", "id bigint, at timestamp, tags array<string>, day date")


def apply(spark: SparkSession, log: LogBuilder, lake: Path) -> ApplyOutcome:
    source = MemoryLog(log, lake)
    with closing(ReplicaDirectory(lake)) as directory:
        return Applier(spark, source, directory).run_once()


def rows_in(spark: SparkSession, lake: Path, name: str) -> list[Row]:
    return rows_of(spark, lake / name)


def check(spark: SparkSession, log: LogBuilder, lake: Path) -> None:
    """All tables hold what the reference says, and their recorded signatures are recounted."""
    state = read_state(lake)
    assert state is not None and state.pending is None
    assert state.position == log.segments[-1].last
    for name, definition in log.tables.items():
        assert rows_in(spark, lake, name) == expected(log, name)
        recorded = state.tables[name]
        frame = spark.read.format("delta").load(str(lake / name))
        assert recorded.signature == signature_of(frame, definition)
        last = max(int(path.stem) for path in (lake / name / "_delta_log").glob("*.json"))
        assert recorded.version == last


def order(number: int, item: str = "x", amount: str = "1.00") -> Row:
    return (number, item, Decimal(amount))


def test_all_kinds_in_one_batch_fold_to_the_reference(spark: SparkSession, tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(ORDERS)
    log.staged("append", "orders", [order(i) for i in range(20)], files=5)
    log.transaction().inline("append", "orders", [order(5, "twin"), (None, "no key", None)])
    log.transaction().inline("upsert", "orders", [order(5, "up"), order(99, "new")])
    log.transaction().inline("delete_keys", "orders", [(7,), (1234,)])
    log.transaction().staged("append", "orders", [order(7, "again"), order(200)])
    log.transaction().inline("upsert", "orders", [order(200, "late")])
    log.inline("delete_keys", "orders", [(99,)]).inline("append", "orders", [order(99, "back")])
    log.publish()
    log.transaction().staged("upsert", "orders", [order(3, "staged")])
    log.transaction().staged("delete_keys", "orders", [(4,)])
    log.publish()
    outcome = apply(spark, log, tmp_path / "lake")
    assert outcome.batches == 1
    check(spark, log, tmp_path / "lake")
    # create, one MERGE, one placing
    state = read_state(tmp_path / "lake")
    assert state is not None and state.tables["orders"].version == 2


@pytest.mark.parametrize("vectors", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_an_operation_that_names_a_key_twice_is_folded_all_the_same(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, vectors: bool
) -> None:
    """Such an operation is refused at submit, so one operation is folded only where it must be."""
    caplog.set_level("INFO")
    log, lake, other = LogBuilder(tmp_path), tmp_path / "lake", tmp_path / "other"
    log.transaction().create(replace(ORDERS, deletion_vectors=vectors))
    log.transaction().staged("append", "orders", [order(i) for i in range(6)])
    log.publish()
    apply(spark, log, lake)
    log.transaction().staged("upsert", "orders", [order(3, "up"), order(9)], files=2)
    log.transaction().delete_where("orders", "item = 'up'", lambda row: row[1] == "up")
    log.publish()
    apply(spark, log, lake)
    log.transaction().staged("delete_keys", "orders", [(4,), (77,)])
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    assert "twice" not in caplog.text
    log.transaction().staged("upsert", "orders", [order(5, "a"), order(5, "b"), order(6)], files=3)
    log.publish()
    apply(spark, log, lake)
    assert "names a key twice" in caplog.text
    # Among other operations the same row is taken.
    apply(spark, log, other)
    rows = rows_in(spark, lake, "orders")
    assert rows == rows_in(spark, other, "orders")
    assert [row[0] for row in rows] == [0, 1, 2, 5, 6, 9]
    for replica in (lake, other):
        state = read_state(replica)
        assert state is not None
        frame = spark.read.format("delta").load(str(replica / "orders"))
        assert state.tables["orders"].signature == signature_of(frame, ORDERS)


@pytest.mark.parametrize("vectors", [False, True])
def test_keys_that_are_too_many_to_be_sent_around(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    """Rows are joined with them by sorting, of which vectors need the keys and places only."""
    joined: list[str] = []
    remove = LogTransaction.remove_rows

    def remove_rows(self: LogTransaction, rows: DataFrame) -> int:
        plan = rows.select(URI_COLUMN, ROW_INDEX)._jdf.queryExecution().optimizedPlan()
        nodes = (plan.apply(number) for number in itertools.count())
        output = next(node for node in nodes if node.nodeName() == "Join").left().output()
        joined.extend(output.apply(place).name() for place in range(output.size()))
        return remove(self, rows)

    monkeypatch.setattr(fold, "_MOST_BROADCAST", 0)
    monkeypatch.setattr(LogTransaction, "remove_rows", remove_rows)
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(replace(ORDERS, deletion_vectors=vectors))
    log.transaction().staged("append", "orders", [order(i, "yz"[i % 2]) for i in range(9)])
    log.publish()
    apply(spark, log, lake)
    log.transaction().staged("upsert", "orders", [order(3, "up"), order(11)])
    log.delete_where("orders", "item = 'y' AND id > 2", lambda row: row[1] == "y" and row[0] > 2)
    log.inline("delete_keys", "orders", [(1,)])
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    assert {"id", URI_COLUMN, ROW_INDEX} <= set(joined) if vectors else not joined
    assert not {"item", "amount"} & set(joined)


def test_an_empty_partition_counts_as_the_null_that_delta_stores(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(replace(ORDERS, partition_by=("item",)))
    for number in (1, 2):
        log.transaction().inline("upsert", "orders", [order(1, ""), order(number, "x")][-number:])
        log.publish()
        apply(spark, log, lake)
        state = read_state(lake)
        assert state is not None
        frame = spark.read.format("delta").load(str(lake / "orders"))
        assert state.tables["orders"].signature == signature_of(frame, ORDERS)
    assert [row[1] for row in rows_in(spark, lake, "orders")] == [None, "x"]


@pytest.mark.parametrize("vectors", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_files_are_found_by_partition_values_of_all_scripts(
    spark: SparkSession, tmp_path: Path, vectors: bool
) -> None:
    """Every change is a batch of its own: it looks for the files of those before."""
    texts = ["München", "東京 1", "a+b%C3%BC", "50%/x=y?#", "e\u0301", "🛒", None, "it's [one]"]
    log, lake = LogBuilder(tmp_path / "ü #1"), tmp_path / "lake"
    log.transaction().create(replace(ORDERS, partition_by=("item",), deletion_vectors=vectors))
    rows = [order(number, text) for number, text in enumerate(texts * 3)]
    changes = (
        lambda: log.staged("append", "orders", rows),
        lambda: log.inline("upsert", "orders", [order(n, t, "9.00") for n, t in enumerate(texts)]),
        lambda: log.staged("delete_keys", "orders", [(n,) for n in range(8, 16)]),
        lambda: log.delete_where("orders", "item = '東京 1' AND id > 7", lambda r: r[0] == 17),
        lambda: log.inline("upsert", "orders", [order(n, "東京 1") for n in range(20)]),
    )
    for change in changes:
        change()
        log.publish()
        log.transaction()
        apply(spark, log, lake)
        check(spark, log, lake)
    assert recount_tables(spark, lake) == {}


@pytest.mark.parametrize("vectors", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_columns_have_the_names_that_the_worker_could_want(
    spark: SparkSession, tmp_path: Path, vectors: bool
) -> None:
    """Names of the file source, of the log, of SQL, and of Delta's own means."""
    names = ["path", "first", "place", "position", "last", "op", "count", "t", "s"]
    names += ["a.b", "`tick`", "select", "Key", "filePath", "deletionVectorId", "rowIndexCol"]
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    odd = TableDefinition(
        name="odd",
        columns=tuple(Column(name=name, type="int") for name in names),
        keys=("path", "position", "last", "op", "t"),
        partition_by=("first",),
        deletion_vectors=vectors,
    )
    log.transaction().create(odd)
    log.staged("append", "odd", [(i, i % 2, *([i] * 14)) for i in range(6)])
    log.transaction().staged("upsert", "odd", [(2, 0, *([2] * 13), 7)])
    log.transaction().inline("upsert", "odd", [(3, 1, *([3] * 13), 8)])
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)
    # A file whose rows go one after the other, and at last all.
    for gone in ([0], [4], [1, 2, 3, 5]):
        keys = [(i,) * 5 for i in gone]
        log.transaction().staged("delete_keys", "odd", keys)
        log.publish()
        apply(spark, log, lake)
        check(spark, log, lake)
    assert rows_in(spark, lake, "odd") == []


@pytest.mark.thorough
def test_clearing_operations_cut_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(ORDERS).create(EVENTS)
    log.inline("append", "orders", [order(i, amount=f"{i}.50") for i in range(10)])
    log.transaction().delete_where("orders", "id < 3", lambda r: r[0] is not None and r[0] < 3)
    log.transaction().delete_where("orders", "item = 'x' and id = 9", lambda r: r[0] == 9)
    log.transaction().inline("append", "orders", [order(1, "after"), (None, "null", None)])
    log.inline("upsert", "orders", [order(4, "after")])
    log.transaction().delete_where("orders", "id = 4", lambda r: r[0] == 4)
    log.transaction().inline("append", "orders", [order(4, "last"), order(20, "a" * 1000 + "b")])
    log.transaction().delete_where("orders", "item LIKE 'aac%'", lambda r: False)
    log.transaction().delete_where("orders", "item LIKE 'aa%'", lambda r: r[0] == 20)
    at = dt.datetime(2024, 1, 1, 12, 0, 0, 123456)
    day = dt.date(2024, 1, 1)
    log.staged("append", "events", [(1, at, ["a", None], day)])
    log.transaction().inline("overwrite", "events", [(2, at, [], None)])
    log.transaction().inline("overwrite", "events", [(3, None, None, day), (4, at, ["z"], day)])
    log.inline("append", "events", [(5, at, None, day)])
    log.publish()
    apply(spark, log, tmp_path / "lake")
    assert [row[0] for row in rows_in(spark, tmp_path / "lake", "events")] == [3, 4, 5]
    assert rows_in(spark, tmp_path / "lake", "orders") == expected(log, "orders")
    # create and one MERGE, which leaves no appended file to be placed
    assert newest_version(tmp_path / "lake" / "orders", 0) == 1
    # The next batch starts from what is recorded.
    log.transaction().staged("overwrite", "orders", [order(70), order(71)])
    log.transaction().inline("delete_keys", "orders", [(70,)])
    log.publish()
    apply(spark, log, tmp_path / "lake")
    assert rows_in(spark, tmp_path / "lake", "orders") == expected(log, "orders")
    state = read_state(tmp_path / "lake")
    assert state is not None
    for name, definition in log.tables.items():
        frame = spark.read.format("delta").load(str(tmp_path / "lake" / name))
        assert state.tables[name].signature == signature_of(frame, definition)


@pytest.mark.parametrize("torn", ["log", "data"])
def test_a_batch_torn_in_its_middle_is_done_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    """What a power cut left: the last step whole, an earlier one not."""
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(ORDERS)
    log.inline("append", "orders", [order(i) for i in range(10)])
    log.publish()
    apply(spark, log, lake)
    log.transaction().inline("upsert", "orders", [order(3, "up"), order(11)])
    log.transaction().delete_where("orders", "id = 4", lambda r: r[0] == 4)
    log.transaction().inline("upsert", "orders", [order(4, "back"), order(5, "up")])
    log.transaction().staged("append", "orders", [order(12), order(13)])
    log.publish()
    settled: list[tuple[int, int, int]] = []

    def settle(table: Path, first: int, last: int, *, found: bool = False) -> None:
        settled.append((first, last, newest_version(table, last)))
        real_settle(table, first, last, found=found)

    def ends(*_: object) -> None:
        raise StorageError("the power is cut")

    real_settle = disk_lake.settle
    with monkeypatch.context() as patch:
        patch.setattr(disk_lake, "settle", settle)
        patch.setattr(ReplicaState, "finish", ends)
        with pytest.raises(StorageError, match="power"):
            apply(spark, log, lake)
    state = read_state(lake)
    assert state is not None and state.pending is not None
    recorded = state.tables["orders"].version
    versions = [last for _, last, _ in settled]
    # Each step was on the disk before the next one began.
    assert (
        settled == [(v, v, v) for v in range(recorded + 1, versions[-1] + 1)] and len(settled) > 1
    )
    path = commit_path(lake / "orders", versions[0])
    if torn == "data":
        path = lake / "orders" / read_commit(lake / "orders", versions[0]).added[0]
    os.truncate(path, path.stat().st_size // 2)
    apply(spark, log, lake)
    check(spark, log, lake)


def random_predicate(chance: random.Random) -> tuple[str, Callable[[Row], bool]]:
    """Return a predicate of `items`, and what it says of a row: where it is NULL the row stays."""
    bound, number = chance.randint(0, 9), chance.randint(0, 60)
    found: list[tuple[str, Callable[[Row], bool]]] = [
        (f"id < {bound}", lambda r: r[0] is not None and r[0] < bound),
        ("NOT (part = 'p')", lambda r: r[1] not in (None, "p")),
        (f"n IS NULL OR n < {number}", lambda r: r[2] is None or r[2] < number),
        (f"part <=> 'q' AND NOT (n > {number})", lambda r: r[1] == "q" and (r[2] or 99) <= number),
        ("part LIKE 'aé%' AND id IS NOT NULL", lambda r: "é" in (r[1] or "") and r[0] is not None),
    ]
    return chance.choice(found)


def random_log(root: Path, seed: int, *, segments: int) -> LogBuilder:
    chance = random.Random(seed)
    log = LogBuilder(root)
    log.transaction().create(
        table(
            "items",
            "id bigint, part string, n int",
            keys=["id"],
            partition_by=["part"] if seed % 2 else [],
            deletion_vectors=bool(seed % 4 > 1),
        )
    )
    numbers = iter(range(10**6))

    def rows(count: int, *, unique: bool) -> list[Row]:
        ids = chance.sample(range(30), count) if unique else chance.choices(range(30), k=count)
        parts = ["p", "q", None, "a b/%c=é"]
        return [
            (i, chance.choice(parts), next(numbers) if chance.random() < 0.8 else None) for i in ids
        ]

    for _ in range(segments):
        for _ in range(chance.randint(1, 4)):
            log.transaction()
            for _ in range(chance.randint(1, 2)):
                write = chance.choice([log.inline, log.staged])
                kind = chance.choices(
                    ["append", "upsert", "delete_keys", "delete_where", "overwrite"],
                    [6, 5, 4, 4, 1],
                )[0]
                if kind == "append":
                    write(kind, "items", [*rows(3, unique=False), (None, "q", next(numbers))])
                elif kind == "delete_where":
                    log.delete_where("items", *random_predicate(chance))
                elif kind == "delete_keys":
                    write(kind, "items", [(row[0],) for row in rows(3, unique=True)])
                else:
                    write(kind, "items", rows(3, unique=True))
        log.publish()
    return log


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.repeated) for seed in (2, 3))]
)
def test_random_histories_are_the_same_in_any_batches(
    spark: SparkSession, tmp_path: Path, seed: int, long_form: bool
) -> None:
    segments = 12 if long_form else 3
    log = random_log(tmp_path, seed, segments=segments)
    apply(spark, log, tmp_path / "whole")
    check(spark, log, tmp_path / "whole")
    # A boundary after every segment: as many batches as segments.
    log.interval = 1
    # Spark and Delta name the files of such a directory in ways of their own.
    lake = tmp_path / "whole" / ".." / "pie ces é"
    outcome = apply(spark, log, lake)
    assert outcome.batches == segments
    check(spark, log, lake)
    whole, pieces = read_state(tmp_path / "whole"), read_state(lake)
    assert whole is not None and pieces is not None
    assert whole.tables["items"].signature == pieces.tables["items"].signature
    assert whole.chain_hash == pieces.chain_hash


def test_claimed_appends_start_no_spark_job_and_outlive_the_payloads(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(ORDERS)
    log.publish()
    for batch in range(3):
        log.transaction().staged("append", "orders", [order(batch), order(batch + 10)])
        log.publish()

    def sign(name: str, rows: list[Row]) -> str:
        definition = log.tables[name]
        frame = spark.createDataFrame(rows_table(definition, rows).to_pandas())
        frame = frame.select(*[frame[c.name].cast(c.type) for c in definition.columns])
        return signature_of(frame, definition).to_text()

    log.with_claims(sign)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    apply(spark, log, tmp_path / "lake")
    assert set(tracker.getJobIdsForGroup()) == before
    shutil.rmtree(log.payloads)
    check(spark, log, tmp_path / "lake")
    commit = read_commit(tmp_path / "lake" / "orders", 1)
    assert commit.own is not None and commit.own.last and len(commit.added) == 3
    assert commit.own.last_position == 4


def test_reports_tell_versions(spark: SparkSession, tmp_path: Path) -> None:
    log = LogBuilder(tmp_path, interval=2)
    log.transaction().create(ORDERS)
    log.publish()
    log.transaction().inline("append", "orders", [order(1)])
    log.publish()
    log.transaction().inline("append", "orders", [order(2)])
    log.publish()
    lake = tmp_path / "lake"
    source = MemoryLog(log, lake)
    with closing(ReplicaDirectory(lake)) as directory:
        applier = Applier(spark, source, directory)
        applier.run_once()
    assert [report.position for report in source.reports] == [0, 2, 3]
    assert source.reports[1].tables["orders"].signature.rows == 1
    assert source.reports[2].chain_hash == log.segments[-1].to_hash
    assert [report.tables["orders"].version for report in source.reports[1:]] == [1, 2]


def test_a_foreign_commit_stops_its_table_only(spark: SparkSession, tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(ORDERS).create(EVENTS)
    log.inline("append", "orders", [order(1)]).inline("append", "events", [(1, None, None, None)])
    log.publish()
    lake = tmp_path / "lake"
    apply(spark, log, lake)
    spark.sql(f"OPTIMIZE delta.`{lake / 'events'}`")
    spark.sql(f"DELETE FROM delta.`{lake / 'orders'}` WHERE id = 1")
    log.transaction().inline("append", "orders", [order(2)])
    log.inline("append", "events", [(2, None, None, None)])
    log.publish()
    outcome = apply(spark, log, lake)
    assert outcome.position == 2
    assert list(outcome.diverged) == ["orders"]
    reason = outcome.diverged["orders"]
    assert "version 2" in reason and "DELETE" in reason and "user " in reason
    assert rows_in(spark, lake, "orders") == []
    assert len(rows_in(spark, lake, "events")) == 2
    # It stays so, and RESTORE would be no way back: it keeps the txn of what it undoes.
    log.transaction().inline("append", "events", [(3, None, None, None)])
    log.publish()
    assert list(apply(spark, log, lake).diverged) == ["orders"]
    assert len(rows_in(spark, lake, "events")) == 3


def test_the_fence_refuses_other_logs(spark: SparkSession, tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "one")
    log.transaction().create(ORDERS)
    log.publish()
    lake = tmp_path / "lake"
    apply(spark, log, lake)
    other = LogBuilder(tmp_path / "two")
    other.transaction().create(ORDERS)
    other._hash = "ff"
    other.publish()
    other.transaction().inline("append", "orders", [order(1)])
    other.publish()
    with pytest.raises(DivergedError, match="has hash"):
        apply(spark, other, lake)
    other.log_id = "elsewhere"
    with pytest.raises(DivergedError, match="has the log"):
        apply(spark, other, lake)
    assert rows_in(spark, lake, "orders") == []


def test_to_create_a_table_again_is_a_commit_without_effect(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = LogBuilder(tmp_path)
    lake = tmp_path / "lake"
    for number in range(3):
        log.transaction().create(ORDERS).inline("append", "orders", [order(number)])
        log.publish()
        if number == 2:
            # An older worker began this batch, and failed in it for ever.
            with closing(ReplicaDirectory(lake)) as directory:
                segment = log.segments[-1]
                pending = PendingBatch(
                    first=segment.first,
                    last=segment.last,
                    from_hash=segment.from_hash,
                    to_hash=segment.to_hash,
                )
                directory.save(replace(directory.load(), pending=pending))
        apply(spark, log, lake)
        check(spark, log, lake)
    log.transaction().create(ORDERS)
    log.publish()
    apply(spark, log, lake)
    check(spark, log, lake)


def test_one_worker_at_a_time_and_stop_on_the_nodes_word(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = LogBuilder(tmp_path, interval=1)
    log.transaction().create(ORDERS)
    log.publish()
    log.transaction().inline("append", "orders", [order(1)])
    log.publish()
    lake = tmp_path / "lake"
    source = MemoryLog(log, lake)
    source.answer = Answer(verdict="DIVERGED", plan="copy", reason="signatures differ")
    with closing(ReplicaDirectory(lake)) as directory:
        with pytest.raises(LockedError, match="owned by another worker"):
            ReplicaDirectory(lake)
        outcome = Applier(spark, source, directory).run_once()
    assert outcome.position == 0
    assert "signatures differ" in outcome.stopped and "jobs/catch_up.py" in outcome.stopped


def test_a_table_whose_payload_is_missing_stands_still_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_driver, "PAUSE_S", 0.01)
    log = LogBuilder(tmp_path)
    log.transaction().create(ORDERS).create(EVENTS)
    log.staged("append", "orders", [order(1)], claim="1:0000000000000000:0000000000000000")
    log.inline("append", "events", [(1, None, None, None)])
    log.publish()
    lake = tmp_path / "lake"
    effects = {one.table: one for one in log.segments[0].effects if one.files}
    path = log.payloads / effects["orders"].files[0].path
    path.rename(tmp_path / "aside")
    outcome = apply(spark, log, lake)
    assert outcome.position == 1 and list(outcome.diverged) == ["orders"]
    reason = outcome.diverged["orders"]
    assert "is missing" in reason and "sparktxlog repair orders" in reason
    assert rows_in(spark, lake, "events") == expected(log, "events")
    first = json.loads((lake / "events/_delta_log" / f"{0:020}.json").read_text().split("\n")[1])
    assert first["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    state = read_state(lake)
    assert state is not None and (state.pending, state.tables["orders"].version) == (None, -1)
    # What is written to the others meanwhile does not wait.
    log.transaction().inline("append", "events", [(2, None, None, None)])
    log.publish()
    assert apply(spark, log, lake).position == 2
    assert rows_in(spark, lake, "events") == expected(log, "events")


def test_a_write_of_others_during_a_step_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(ORDERS)
    log.publish()
    lake = tmp_path / "lake"
    apply(spark, log, lake)
    log.transaction().inline("append", "orders", [order(1)])
    log.publish()
    place = Placer.place

    def place_late(self: Placer, *arguments: Any, **named: Any) -> int:
        write_deltalake(lake / "orders", rows_table(ORDERS, [order(666)]), mode="append")
        return place(self, *arguments, **named)

    monkeypatch.setattr(Placer, "place", place_late)
    outcome = apply(spark, log, lake)
    assert "version 1 was written by" in outcome.diverged["orders"]
    state = read_state(lake)
    assert state is not None and state.tables["orders"].version == 0


class StoppingLog(MemoryLog):
    """Stops its worker once everything is applied; away for one call in between."""

    def __init__(self, log: LogBuilder, lake: Path, stop: threading.Event) -> None:
        super().__init__(log, lake)
        self.stop = stop
        self.calls = 0

    def segments(self, after: int, *, wait_s: float, limit: int = 500) -> LogTail:
        self.calls += 1
        if self.calls == 2:
            raise TransportError("away")
        tail = super().segments(after, wait_s=wait_s, limit=limit)
        if not tail.segments:
            self.stop.set()
        return tail


def test_a_following_worker_outlives_an_absent_node(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_driver, "RETRY_S", 0.01)
    log = LogBuilder(tmp_path, interval=1)
    log.transaction().create(ORDERS)
    log.publish()
    log.transaction().inline("append", "orders", [order(1)])
    log.publish()
    lake, stop = tmp_path / "lake", threading.Event()
    source, reporting = StoppingLog(log, lake, stop), MemoryLog(log, lake)
    with closing(ReplicaDirectory(lake)) as directory:
        outcome = Applier(spark, source, directory, reporting=reporting).follow(stop)
    assert outcome.position == 2 and source.calls == 4
    # On a slow machine heartbeats repeat them.
    assert [*dict.fromkeys(report.position for report in reporting.reports)] == [0, 1, 2]
    assert {report.log_id for report in reporting.reports} == {"test"}


class CountingLog(MemoryLog):
    """A node that wants all rows counted often; stops its worker once they were."""

    def __init__(self, log: LogBuilder, lake: Path, stop: threading.Event) -> None:
        super().__init__(log, lake)
        self.stop = stop

    def info(self) -> NodeInfo:
        return replace(super().info(), verify_interval=1e-9)

    def take_recount(self, recount: Recount) -> Answer:
        if recount.tables.keys() | {name for r in self.recounts for name in r.tables} >= {
            "orders",
            "events",
        }:
            self.stop.set()
        return super().take_recount(recount)


@pytest.mark.timeout(120)
def test_a_following_worker_recounts_all_tables_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, lake, stop = LogBuilder(tmp_path), tmp_path / "lake", threading.Event()
    log.transaction().create(ORDERS).create(EVENTS)
    log.inline("append", "orders", [order(1)]).inline("append", "events", [(1, None, None, None)])
    log.publish()
    apply(spark, log, lake)
    (data,) = lake.glob("orders/*.parquet")
    data.unlink()
    source = CountingLog(log, lake, stop)
    with closing(ReplicaDirectory(lake)) as directory:
        Applier(spark, source, directory).follow(stop)
    found = {name: table.sound for told in source.recounts for name, table in told.tables.items()}
    assert found["events"] is True
    assert found["orders"] is False


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_a_damaged_payload_file_is_fetched_again_or_stops_the_worker(
    spark: SparkSession, tmp_path: Path, kind: str, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(ORDERS)
    log.transaction().staged(kind, "orders", [order(1), order(2)])
    log.publish()
    (file,) = log.segments[0].effects[1].files
    path = log.payloads / file.path
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    source = MemoryLog(log, lake)
    lost: LostFile = {
        "path": file.path,
        "table": "orders",
        "position": 2,
        "run": "A/1/2",
        "reason": "torn",
        "asked": {"B": "not linked: silent"},
    }
    monkeypatch.setattr(replica_driver, "PAUSE_S", 0.01)
    if is_lost:
        source.repaired = lambda: {"fetched": [], "lost": [lost]}
        with closing(ReplicaDirectory(lake)) as directory:
            outcome = Applier(spark, source, directory).run_once()
        assert outcome.position == 2 and source.repairs == [(1, 2)]
        text = outcome.diverged["orders"]
        for named in (file.path, "position 2", "A/1/2", "a: torn", "B: not linked", "restore"):
            assert named in text, text
        return

    def fetch() -> RepairedFiles:
        path.write_bytes(good)
        return {"fetched": [file.path], "lost": []}

    source.repaired = fetch
    with closing(ReplicaDirectory(lake)) as directory:
        assert Applier(spark, source, directory).run_once().position == 2
    check(spark, log, lake)


def test_a_table_file_that_a_merge_cannot_read_stops_its_batch_only(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails below a table: no FUSE, so a file is cut off, and put back in time, or not."""
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(ORDERS)
    log.transaction().staged("append", "orders", [order(1), order(2)])
    log.publish()
    assert apply(spark, log, lake).position == 2
    (placed,) = (lake / "orders").glob("*.parquet")
    good = placed.read_bytes()
    placed.unlink()  # the payload store's link stays whole
    placed.write_bytes(good[: len(good) // 2])
    log.transaction().inline("upsert", "orders", [order(2, "up")])
    log.publish()
    before = read_state(lake)

    def pause(driver: replica_driver.ReplicaDriver, failures: int, error: ApplyError) -> None:
        after = read_state(lake)
        assert before is not None and after is not None and "table orders: " in str(error)
        assert (after.position, after.tables) == (before.position, before.tables)
        assert after.pending is not None, "it is done again"
        placed.write_bytes(good)

    monkeypatch.setattr(replica_driver.ReplicaDriver, "_pause", pause)
    assert apply(spark, log, lake).position == 3
    check(spark, log, lake)
