"""Tables are dropped at one position, at every site; what is created then is another table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from tests.spark.copying.donor import apply_all
from tests.spark.worker.test_changes import Killed, apply, check, killed_at, recorded, rows
from tests.support.node_processes import Cluster, NodeProcess, running
from tests.support.worker_log import LogBuilder, table

from sparktxlog import Client, connect
from sparktxlog.api.connect import TxLog
from sparktxlog.api.datasource import register_format
from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import ConflictError, LocalProtocolError, NameTakenError, UnknownTableError
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.worker.replica.state import read_state
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.thorough
def test_a_table_is_dropped_and_created_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    with running(Cluster(tmp_path, "AB")) as cluster, ExitStack() as stack:
        a, b = cluster.nodes.values()
        log: TxLog = stack.enter_context(closing(connect(session, a.url)))
        client = stack.enter_context(Client(b.url))
        log.create_table("orders", "id bigint, item string", keys=["id"])
        old = [(1, "a"), (2, "b")]
        first = log.append("orders", session.createDataFrame(old, "id long, item string"))
        for node in (a, b):
            assert apply(spark, node, first.position) == first.position
        client.after(first)
        client.after(client.append("orders", [{"id": 3, "item": "c"}]))
        dropped = log.drop_table("orders")
        client.after(dropped)
        with pytest.raises(UnknownTableError):
            client.append("orders", [{"id": 4, "item": "d"}])
        with pytest.raises(UnknownTableError):
            log.table("orders", at_least=None)
        for name in ("orders", "passing"):
            client.create_table(name, {"id": "int", "n": "int"}, keys=["id"])
        assert client.table("orders").schema_version == 3
        client.append("orders", [{"id": 1, "n": 1}, {"id": 2, "n": 2}])
        client.drop_table("passing")
        last = client.upsert("orders", [{"id": 2, "n": 20}])
        for node, after in ((a, False), (b, True)):
            killed_at(monkeypatch, "put", after=after, owner=Attic)
            with pytest.raises(Killed):
                apply(spark, node, last.position)
            assert apply(spark, node, last.position) == last.position
        check(spark, [a, b])
        assert "orders" in recorded(a) and "passing" not in recorded(a)
        there = stack.enter_context(closing(connect(session, b.url)))
        for reader, node in ((log, a), (there, b)):
            found = reader.table("orders", at_least=last)
            assert rows(found) == [{"id": 1, "n": 1}, {"id": 2, "n": 20}]
            then = reader.snapshot(first.position).table("orders")
            assert sorted(map(tuple, then.collect())) == old
            # What the dropped table was at last lies where it can be read.  The other one lies
            # beside it if a batch ended between its creation and its drop.
            (kept,) = Attic.of_lake(node.lake).entries(Kind.DROPPED, "orders")
            assert kept.mark == str(dropped.position)
            assert rows(session.read.format("delta").load(str(kept.path)))[2:] == [
                {"id": 3, "item": "c"}
            ]
        _stream_of(session, a)
        _rename(session, log, client, lambda told: apply(spark, a, told.position))
        for reader, node in ((log, a), (there, b)):
            apply(spark, node, log.site.last_position)
            sales = reader.table("sales", at_least=log.site.last_position)
            assert sorted(map(tuple, sales.collect())) == [(1, 1, None), (2, 20, "n")]


def _rename(
    session: SparkSession, log: TxLog, client: Client, apply_here: Callable[[Receipt], object]
) -> None:
    """A table gets another name, by a copy and a drop in one transaction."""
    changed = log.alter_table("orders", add={"note": "string"}, is_sync=True)
    changed = log.upsert(
        "orders", session.createDataFrame([(2, 20, "n")], "id int, n int, note string")
    )
    client.after(changed)
    apply_here(log.create_table("taken", "id int"))
    with pytest.raises(NameTakenError, match="there is a table of that name"):
        log.rename_table("orders", "taken")
    with pytest.raises(ConflictError), log.transaction() as t:
        t.rename_table("orders", "sales")
        client.delete_keys("orders", [{"id": 9}])
    last = client.delete_keys("orders", [{"id": 8}])
    log.after(last)
    apply_here(last)
    with pytest.raises(LocalProtocolError, match="would not see"), log.transaction() as t:
        t.delete_where("orders", "n > 9")
        t.rename_table("orders", "sales")
    client.after(log.rename_table("orders", "sales"))
    told = client.table("sales")
    assert told.is_sync and told.keys == ("id",) and told.schema_version == 1
    assert "orders" not in {one.name for one in client.tables()}


def test_a_table_that_stands_still_is_dropped_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody has to repair it first; the rows of others are kept, the next table has none."""
    log, lake = LogBuilder(tmp_path, interval=1), tmp_path / "lake"
    for name in ("seen", "unseen"):
        log.transaction().create(table(name, "id bigint")).staged("append", name, [(1,)])
    log.publish()
    apply_all(spark, log, lake)
    write_deltalake(lake / "seen", pa.table({"id": [2]}), mode="append")
    log.transaction().staged("append", "unseen", [(3,)])
    log.publish()
    apply_all(spark, log, lake)
    state = read_state(lake)
    assert state is not None and set(state.diverged) == {"seen"}
    write_deltalake(lake / "unseen", pa.table({"id": [4]}), mode="append")
    log.transaction().drop("seen").drop("unseen")
    for name in ("seen", "unseen"):
        log.transaction().create(table(name, "id bigint")).staged("append", name, [(9,)])
    log.publish()
    apply_all(spark, log, lake)
    state = read_state(lake)
    assert state is not None and (state.diverged, state.position) == ({}, log.position)
    for name, kept in (("seen", [1, 2]), ("unseen", [1, 3, 4])):
        assert spark.read.format("delta").load(str(lake / name)).collect() == [(9,)]
        dropped = DeltaTable(Attic.of_lake(lake).place(Kind.DROPPED, name, "4"))
        assert sorted(dropped.to_pyarrow_table()["id"].to_pylist()) == kept
    assert recount_tables(spark, lake) == {}


def _stream_of(session: SparkSession, node: NodeProcess) -> None:
    """The changes of the table are its own, and none of the dropped one of that name."""
    register_format(session)
    changes = session.read.format("txlog").option("url", node.url).option("table", "orders").load()
    assert sorted((row["id"], row["n"]) for row in changes.collect()) == [(1, 1), (2, 2), (2, 20)]
