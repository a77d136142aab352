"""A reader sees whole transactions, whatever the worker is at, and at any site what it wrote."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.followers import follower
from tests.spark.worker import killed_worker
from tests.support.node_processes import Cluster, NodeProcess, running

from sparktxlog import connect
from sparktxlog.api.reading.replica_snapshot import Snapshot
from sparktxlog.errors import ForeignLogError, NotAppliedError
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]

#: In the order in which a batch does them: by name.
TABLES = ("orders", "payments")
COLUMNS = "id bigint, note string"
Rows = list[tuple[int, str]]
BEFORE: Rows = [(0, "new"), (1, "new"), (2, "new")]
AFTER: Rows = [(1, "paid"), (2, "new"), (9, "late")]


def rows(frame: DataFrame) -> Rows:
    return sorted((row["id"], row["note"]) for row in frame.collect())


def content(snapshot: Snapshot) -> Mapping[str, Rows]:
    return {name: rows(snapshot.table(name)) for name in TABLES}


def apply(spark: SparkSession, node: NodeProcess) -> int:
    """Have a site's worker apply what is ordered; return the replica's position."""
    with (
        closing(HttpLogSource(node.url)) as source,
        closing(ReplicaDirectory(node.lake)) as directory,
    ):
        return Applier(spark, source, directory).run_once(timeout_s=60).position


def test_readers_see_whole_transactions_and_their_own_at_every_site(
    spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()

    def frame(*found: tuple[int, str]) -> DataFrame:
        return session.createDataFrame(list(found), COLUMNS)

    def plain(name: str) -> Rows:
        return rows(session.read.format("delta").load(str(a.lake / name)))

    with running(Cluster(tmp_path, "AB")) as cluster:
        a, b = cluster.nodes.values()
        with (
            closing(connect(session, a.url)) as log,
            closing(connect(session, a.url, timeout=2)) as other,
        ):
            with log.transaction() as t:
                for name in TABLES:
                    t.create_table(name, COLUMNS, keys=["id"])
                    t.append(name, frame(*BEFORE))
            assert apply(spark, a) == t.receipt.position
            held = log.snapshot()
            assert content(held) == dict.fromkeys(TABLES, BEFORE)
            # One transaction over both tables, with every kind of change.
            with log.transaction() as t:
                for name in TABLES:
                    t.delete_keys(name, session.range(1))
                    t.upsert(name, frame((1, "paid")))
                    t.append(name, frame((9, "late")))
            receipt = t.receipt
            assert log.queue(at_least=receipt).where(f"position = {receipt.position}").count() == 1

            # Killed between the Delta commits of the two tables: a plain reader sees a half.
            assert killed_worker.run(a.url, "table") == -signal.SIGKILL
            state = read_state(a.lake)
            assert state is not None and state.pending is not None
            assert (plain("orders"), plain("payments")) == (AFTER, BEFORE)
            for reader in (log, other):
                between = reader.snapshot(at_least=None)
                assert between.position == held.position
                assert content(between) == dict.fromkeys(TABLES, BEFORE)
            # Who waits for the transaction gets all of it, or is told that it is not there.
            for name in TABLES:
                with pytest.raises(NotAppliedError, match=f"position {receipt.position} is not"):
                    other.table(name, at_least=receipt)

            assert apply(spark, a) == receipt.position
            assert content(log.snapshot()) == dict.fromkeys(TABLES, AFTER)
            assert content(other.snapshot(at_least=receipt)) == dict.fromkeys(TABLES, AFTER)
            # Who holds the snapshot of before goes on reading it.
            assert content(held) == dict.fromkeys(TABLES, BEFORE)

            batch = log.commit_many(frame((20, "b"), (21, "b")), table="orders", transaction="id")
        # The session goes on at another site, whose worker has applied nothing yet.
        with closing(connect(session, b.url)) as there:
            assert there.snapshot().position == 0
            with pytest.raises(ForeignLogError, match="of the log 'other'"):
                there.table("orders", at_least=replace(receipt, log_id="other"))
            with follower(spark, b):
                assert rows(there.table("payments", at_least=receipt)) == AFTER
                assert rows(there.table("orders", at_least=batch)) == [
                    *AFTER,
                    (20, "b"),
                    (21, "b"),
                ]
                there.append("payments", frame((30, "own")))
                assert rows(there.table("payments")) == [*AFTER, (30, "own")]
            assert there.queue(at_least=batch).where("origin = 'A'").count() >= 4
