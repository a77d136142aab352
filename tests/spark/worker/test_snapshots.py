"""A reader beside a worker sees whole transactions, whatever the worker is at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.worker.test_apply import ORDERS, Row, apply, order, rows_in
from tests.support.known_replicas import base_of
from tests.support.worker_log import LogBuilder, MemoryLog, expected, table

from sparktxlog.api.connect import Snapshot
from sparktxlog.errors import ApplyError
from sparktxlog.runtime.fleet.replicas import Replicas
from sparktxlog.worker.apply.steps import TableSteps

pytestmark = pytest.mark.spark

#: Comes after `orders`: a batch does its tables by name.
PAYMENTS = table("payments", "id bigint, item string, amount decimal(10,2)", keys=["id"])


class Node:
    """What a node answers to `GET /v1/snapshot`, made of its worker's reports."""

    def __init__(self, spark: SparkSession, log: LogBuilder, lake: Path) -> None:
        self.spark = spark
        self.log = log
        self.lake = lake
        self.url = "http://a"
        self.replicas = Replicas(
            base_of("a", self._hash_at, position=1_000, lineage=log.lineage, dead_after_us=1)
        )

    def _hash_at(self, position: int) -> bytes | None:
        return next(
            (bytes.fromhex(s.to_hash) for s in self.log.segments if s.last == position), None
        )

    def snapshot(self) -> Snapshot:
        report = self.replicas.snapshot(None)
        assert report is not None
        tables = {
            name: {
                "version": state.version,
                "signature": state.signature.to_text(),
                "uri": str(self.lake / name),
            }
            for name, state in report.tables.items()
        }
        answer = {"position": report.position, "chain_hash": report.chain_hash, "tables": tables}
        return Snapshot.of(self.spark, self, answer)  # type: ignore[arg-type]

    def heed(self, source: MemoryLog) -> None:
        while source.reports:
            self.replicas.accept(source.reports.pop(0), 1)


def rows(snapshot: Snapshot, name: str) -> list[Row]:
    return sorted((tuple(row) for row in snapshot.table(name).collect()), key=repr)


def test_a_snapshot_read_in_the_middle_of_a_batch_has_none_of_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, lake = LogBuilder(tmp_path), tmp_path / "lake"
    log.transaction().create(ORDERS).create(PAYMENTS)
    for name in log.tables:
        log.inline("append", name, [order(number) for number in range(5)])
    log.publish()
    node, sources = Node(spark, log, lake), list[MemoryLog]()
    report = MemoryLog.report

    def noted(self: MemoryLog, *arguments: Any) -> Any:
        sources.append(self)
        answer = report(self, *arguments)
        node.heed(self)
        return answer

    monkeypatch.setattr(MemoryLog, "report", noted)
    apply(spark, log, lake)
    before = {name: expected(log, name) for name in log.tables}
    held = node.snapshot()
    # One transaction over both tables, of every kind of commit.
    log.transaction()
    for name in log.tables:
        log.inline("delete_keys", name, [(0,)])
        log.inline("upsert", name, [order(1, "paid")]).inline("append", name, [order(9)])
    log.publish()
    after = {name: expected(log, name) for name in log.tables}
    apply_table, seen = TableSteps.apply, list[str]()

    def apply_and_be_read(self: TableSteps, batch: Any, plan: Any, *rest: Any) -> None:
        if plan.table == "payments":
            # The first table is committed, the second is not: a plain reader sees a half.
            assert rows_in(spark, lake, "orders") == after["orders"] != before["orders"]
            assert rows_in(spark, lake, "payments") == before["payments"]
            for snapshot in (held, node.snapshot()):
                assert snapshot.position == 1
                assert {name: rows(snapshot, name) for name in log.tables} == before
            seen.append(plan.table)
            if len(seen) == 1:
                raise ApplyError("killed here")
        apply_table(self, batch, plan, *rest)

    monkeypatch.setattr(TableSteps, "apply", apply_and_be_read)
    with pytest.raises(ApplyError, match="killed here"):
        apply(spark, log, lake)
    # Killed there, and begun again: still none of it, then all of it.
    assert {name: rows(node.snapshot(), name) for name in log.tables} == before
    apply(spark, log, lake)
    assert seen == ["payments", "payments"]
    found = node.snapshot()
    assert found.position == 2
    assert {name: rows(found, name) for name in log.tables} == after
    # Who holds the snapshot of before goes on reading it.
    assert {name: rows(held, name) for name in log.tables} == before
