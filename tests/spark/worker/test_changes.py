"""Tables change at one position, at every site, and old positions stay readable as they were."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import DataFrame, SparkSession
from tests.support.epoch_views import QUICK, all_show, operate
from tests.support.node_processes import Cluster, NodeProcess, running

from sparktxlog import Client, connect
from sparktxlog.api.connect import TxLog
from sparktxlog.api.datasource import register_format
from sparktxlog.errors import SynchroTimeoutError
from sparktxlog.worker.apply import steps
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaTable, read_state
from sparktxlog.worker.verify.verify import recount

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


SAME_ID = "target.id = source.id"


def apply(spark: SparkSession, node: NodeProcess, at_least: int | None = None) -> int:
    """Have a site's worker apply what is ordered there; return the replica's position.

    Args:
        at_least: What another site was told may not have come to this one.
    """
    with (
        closing(HttpLogSource(node.url)) as source,
        closing(ReplicaDirectory(node.lake)) as directory,
    ):
        return Applier(spark, source, directory).run_once(at_least or 0, timeout_s=60).position


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


def recorded(node: NodeProcess) -> dict[str, ReplicaTable]:
    state = read_state(node.lake)
    assert state is not None and state.pending is None
    return state.tables


def check(spark: SparkSession, nodes: list[NodeProcess]) -> None:
    """All replicas have the same tables, and a full scan counts what their states say."""
    first = recorded(nodes[0])
    for node in nodes:
        state, held = read_state(node.lake), recorded(node)
        assert state is not None
        assert {name: (t.definition, t.signature) for name, t in held.items()} == {
            name: (t.definition, t.signature) for name, t in first.items()
        }
        found = recount(spark, DiskLake(node.lake), state, node.name, list(held))
        assert all(table.sound for table in found.tables.values()), found


@pytest.mark.thorough
def test_a_column_is_added_at_one_position(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    with running(Cluster(tmp_path, "AB")) as cluster, ExitStack() as stack:
        a, b = cluster.nodes.values()
        log: TxLog = stack.enter_context(closing(connect(session, a.url)))
        client = stack.enter_context(Client(b.url))
        log.create_table("orders", "id bigint, item string", keys=["id"])
        first = log.append(
            "orders", session.createDataFrame([(1, "a"), (2, "b")], "id long, item string")
        )
        assert apply(spark, b, first.position) == first.position
        early: TxLog = stack.enter_context(closing(connect(session, b.url)))
        assert early.site.definition("orders").schema_version == 1
        client.after(first)
        client.append("orders", [{"id": 3, "item": "c"}])
        changed = log.alter_table("orders", add={"note": "string", "rank": ("int", "1 is best")})
        new = "id long, item string, note string, rank int"
        log.upsert("orders", session.createDataFrame([(2, "B", "n", 1)], new))
        client.after(changed)
        client.append("orders", [{"id": 4, "item": "d", "note": None, "rank": 4}])
        last = log.append("orders", session.createDataFrame([(5, "e", "m", 5)], new))
        # B was there before the change, A takes all of it in one batch.
        for node in (a, b):
            apply(spark, node, last.position)
        check(spark, [a, b])
        after = [
            {"id": 1, "item": "a", "note": None, "rank": None},
            {"id": 2, "item": "B", "note": "n", "rank": 1},
            {"id": 3, "item": "c", "note": None, "rank": None},
            {"id": 4, "item": "d", "note": None, "rank": 4},
            {"id": 5, "item": "e", "note": "m", "rank": 5},
        ]
        there = stack.enter_context(closing(connect(session, b.url)))
        for reader in (log, there):
            found = reader.table("orders", at_least=last)
            assert rows(found) == after
            assert found.schema["rank"].metadata == {"comment": "1 is best"}
        old = there.snapshot(first.position).table("orders")
        assert rows(old) == [{"id": 1, "item": "a"}, {"id": 2, "item": "b"}]
        told = client.table("orders")
        assert (told.schema_version, told.last_write) == (2, last.position)
        # Who knew the table as it was merges into what it is.
        with early.transaction() as t:
            merge = t.merge("orders", session.createDataFrame([(5,)], "id long"), SAME_ID)
            merge.whenMatchedUpdate(set={"note": "'merged'"}).execute()
        apply(spark, b, t.receipt.position)
        assert rows(early.table("orders", at_least=t.receipt))[4]["note"] == "merged"


class Killed(BaseException):
    """Ends a worker where it stands."""


def killed_at(
    monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool, owner: Any = steps
) -> None:
    """Kill the worker before or after it does a step the next time, once.

    Args:
        name: Of the step, as its owner calls it.
        owner: A module or class.
    """
    step = getattr(owner, name)

    def dying(*args: Any, **named: Any) -> None:
        monkeypatch.setattr(owner, name, step)
        if after:
            step(*args, **named)
        raise Killed

    monkeypatch.setattr(owner, name, dying)


def _many(session: SparkSession) -> DataFrame:
    """Return more rows than are sent with the transaction, so that they are placed as files."""
    return session.range(100, 3100).selectExpr(
        "id as number",
        "date'2026-01-02' as on",
        "named_struct('n', cast(id as int), 'of', null) as what",
        "cast(id as int) as price",
    )


def _stream_of(session: SparkSession, node: NodeProcess) -> None:
    """The changes of the table are rows from before and after, under the names of now."""
    register_format(session)
    changes = session.read.format("txlog").option("url", node.url).option("table", "orders")
    streamed = changes.option("deleteMarkers", "true").load()
    assert set(streamed.columns) > {"number", "on", "what", "price"}
    # Four rows that were appended, one key that was deleted.
    assert streamed.where("number < 7 and on is null").count() == 5
    prices = {row[0] for row in streamed.select("price").distinct().collect()}
    assert prices == {None, "much", "x"}


@pytest.mark.thorough
def test_columns_are_renamed_and_dropped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = spark.newSession()
    with running(Cluster(tmp_path, "AB")) as cluster, ExitStack() as stack:
        a, b = cluster.nodes.values()
        log: TxLog = stack.enter_context(closing(connect(session, a.url)))
        client = stack.enter_context(Client(b.url))
        schema = "id bigint, day date, item struct<n:int,of:array<struct<x:int>>>, price int"
        log.create_table("orders", schema, keys=["id"], partition_by=["day"])
        day = date(2026, 1, 1)
        old = [(i, day if i % 2 else None, (i, [(i,)]), i) for i in range(6)]
        first = log.append("orders", session.createDataFrame(old, schema))
        assert apply(spark, b, first.position) == first.position
        client.after(first)
        row = {"id": 6, "day": None, "item": {"n": 6, "of": []}, "price": 6}
        client.after(client.append("orders", [row]))
        log.alter_table("orders", rename={"id": "number", "day": "on", "item": "what"})
        new = "number bigint, on date, what struct<n:int,of:array<struct<x:int>>>, price int"
        renamed = log.upsert("orders", session.createDataFrame([(1, day, (10, None), 10)], new))
        assert apply(spark, b, renamed.position) == renamed.position
        log.append("orders", _many(session))
        dropped = log.alter_table("orders", drop=["price"], add={"price": "string"})
        newest = "number bigint, on date, what struct<n:int,of:array<struct<x:int>>>, price string"
        log.upsert("orders", session.createDataFrame([(2, day, (20, None), "much")], newest))
        client.after(dropped)
        client.append("orders", [{"number": 7, "on": "2026-01-01", "what": None, "price": "x"}])
        client.delete_where("orders", "number = 3 or what.n = 4")
        last = log.delete_keys("orders", session.createDataFrame([(5,)], "number bigint"))
        # A takes all of it in one batch, B went on from state to state; both are killed.
        for node, after in ((a, False), (b, True)):
            killed_at(monkeypatch, "alter_table", after=after)
            with pytest.raises(Killed):
                apply(spark, node, last.position)
            apply(spark, node, last.position)
        check(spark, [a, b])
        expected = [
            (0, None, (0, [(0,)]), None),
            (1, day, (10, None), None),
            (2, day, (20, None), "much"),
            (6, None, (6, []), None),
            (7, day, None, "x"),
        ]
        there = stack.enter_context(closing(connect(session, b.url)))
        for reader in (log, there):
            found = reader.table("orders", at_least=last)
            assert found.columns == ["number", "on", "what", "price"]
            assert found.count() == 5 + 3000
            assert sorted(map(tuple, found.where("number < 100").collect())) == expected
        then = there.snapshot(first.position).table("orders")
        assert then.columns == ["id", "day", "item", "price"]
        assert sorted(map(tuple, then.collect())) == old
        then = there.snapshot(renamed.position).table("orders")
        assert then.where("number in (1, 6)").select("price").orderBy("price").collect() == [
            (6,),
            (10,),
        ]
        _stream_of(session, a)
        # Readers that do not know column mapping are told so, and do not read NULL.
        with pytest.raises(DeltaProtocolError, match="columnMapping"):
            DeltaTable(b.lake / "orders").to_pyarrow_table()
        spark.sql(f"OPTIMIZE delta.`{b.lake / 'orders'}`")
        check(spark, [a, b])


@pytest.mark.thorough
def test_types_are_widened(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are there keep the narrower type; both sites count the rows alike."""
    session = spark.newSession()
    with running(Cluster(tmp_path, "AB")) as cluster, ExitStack() as stack:
        a, b = cluster.nodes.values()
        log: TxLog = stack.enter_context(closing(connect(session, a.url)))
        schema = "id int, n int, f float, at date, d decimal(5,2)"
        log.create_table("wide", schema, keys=["id"])
        old = [(i, i, i / 10, date(2026, 1, 1 + i), Decimal(i)) for i in range(4)]
        first = log.append("wide", session.createDataFrame([*old, (4, *[None] * 4)], schema))
        assert apply(spark, b, first.position) == first.position
        kinds = {"id": "bigint", "n": "double", "f": "double", "at": "timestamp_ntz"}
        log.alter_table("wide", widen={**kinds, "d": "decimal(12,4)"})
        new = "id bigint, n double, f double, at timestamp_ntz, d decimal(12,4)"
        many = session.range(1 << 33, (1 << 33) + 5000).selectExpr(
            "id", "id / 2 as n", "0.5d as f", "timestamp_ntz'2026-01-01 10:00' as at", "1.25 as d"
        )
        log.append("wide", many)
        noon = datetime(2026, 1, 1, 12)
        upserted = [(1, 1.5, 2.5, noon, Decimal("1.2345"))]
        last = log.upsert("wide", session.createDataFrame(upserted, new))
        for node, after in ((a, True), (b, False)):
            killed_at(monkeypatch, "alter_table", after=after)
            with pytest.raises(Killed):
                apply(spark, node, last.position)
            apply(spark, node, last.position)
        check(spark, [a, b])
        there = stack.enter_context(closing(connect(session, b.url)))
        for reader in (log, there):
            found = reader.table("wide", at_least=last)
            assert found.count() == 5005
            rest = found.where("id < 10").orderBy("id").collect()
            assert tuple(rest[1]) == upserted[0]
            assert (rest[3]["n"], rest[3]["at"]) == (3.0, datetime(2026, 1, 4))
            assert abs(rest[3]["f"] - 0.3) < 1e-6 and rest[3]["d"] == Decimal(3)
        then = there.snapshot(first.position).table("wide")
        assert [field.dataType.simpleString() for field in then.schema] == [
            part.split()[1] for part in schema.split(", ")
        ]
        spark.sql(f"OPTIMIZE delta.`{a.lake / 'wide'}`")
        check(spark, [a, b])


@pytest.mark.thorough
def test_tables_become_synchronous_and_plain(spark: SparkSession, tmp_path: Path) -> None:
    """The change alone is one Delta commit that changes nothing; what is ordered later obeys it."""
    session = spark.newSession()
    cluster = Cluster(tmp_path, "ABW", settings=(*QUICK, "synchro-timeout = 60"), witnesses="W")
    with running(cluster), ExitStack() as stack:
        a, b = cluster.nodes["A"], cluster.nodes["B"]
        log: TxLog = stack.enter_context(closing(connect(session, a.url)))
        for table, is_sync in (("made", True), ("later", False), ("plain", False)):
            log.create_table(table, "id bigint, item string", keys=["id"], is_sync=is_sync)
        assert [log.site.definition(name).is_sync for name in _TABLES] == [True, False, False]
        for table in _TABLES:
            first = log.append(table, _items(session, 1, "a"))
        assert apply(spark, b, first.position) == first.position
        log.alter_table("later", is_sync=True)
        log.upsert("later", _items(session, 1, "b"))
        log.alter_table("plain", is_sync=True)
        log.alter_table("plain", is_sync=False)
        last = log.upsert("plain", _items(session, 1, "b"))
        # B was there before the changes, A takes all of it in one batch.
        for node in (a, b):
            apply(spark, node, last.position)
        check(spark, [a, b])
        assert [recorded(b)[name].definition.is_sync for name in _TABLES] == [True, True, False]
        for node in (a, b):
            assert [_alterations(node, name) for name in _TABLES] == [0, 1, 2]
        there = stack.enter_context(closing(connect(session, b.url)))
        for table, item in (("made", "a"), ("later", "b"), ("plain", "b")):
            for reader in (log, there):
                found = reader.table(table, at_least=last)
                assert rows(found) == [{"id": 1, "item": item}]
        # With one copy less than the two that they need, only synchronous ones are refused.
        b.stop()
        all_show(cluster, "A")
        operate(a, "settings", "set", "synchro-timeout", "0.5")
        for table in ("made", "later"):
            with pytest.raises(SynchroTimeoutError, match="needs 2 holders, the log has 1 member"):
                log.append(table, _items(session, 2, "lost"))
        found = log.status()
        assert (found["members"], found["synchronous"]["waiting"]) == (["A"], 0)
        assert (found["synchro_quorum"], found["synchro_rule"]) == (2, "N/2+1")
        alone = log.append("plain", _items(session, 2, "c"))
        apply(spark, a)
        for table, count in (("made", 1), ("later", 1), ("plain", 2)):
            assert log.table(table, at_least=alone).count() == count


_TABLES = ("made", "later", "plain")


def _items(session: SparkSession, number: int, item: str) -> DataFrame:
    return session.createDataFrame([(number, item)], "id bigint, item string")


def _alterations(node: NodeProcess, table: str) -> int:
    """Return how many commits of a Delta table are changes; they have nothing but their mark."""
    count = 0
    for commit in sorted((node.lake / table / "_delta_log").glob("*.json")):
        actions: dict[str, Any] = {}
        for line in commit.read_text().splitlines():
            actions |= json.loads(line)
        if actions["commitInfo"]["operation"] == "ALTER TABLE":
            assert set(actions) == {"commitInfo", "txn"}, actions
            count += 1
    return count
