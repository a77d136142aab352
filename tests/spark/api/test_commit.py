"""Commits from Spark against a real node: every operation, every bad input, both ways of rows."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from tests.spark.api.nodes import RunningNode, start_node

from sparktxlog.api.connect import TxLog, connect
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.staging import frame_staging
from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    CommittedNotAppliedError,
    ConfigError,
    IdTakenError,
    InvalidNameError,
    InvalidRequestError,
    InvalidRowsError,
    NotAppliedError,
    PayloadStoreError,
    SchemaMismatchError,
    TransportError,
    UnknownTableError,
    UnreachableError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.worker.apply.signatures import AGGREGATES, signature_of

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

ORDERS = "id bigint, amount decimal(10,2), note string"
#: Rows beyond the inline limit, so that executors stage them.
MANY = 20_000


def _orders(spark: SparkSession, ids: range, note: str = "n") -> DataFrame:
    frame = spark.range(ids.start, ids.stop)
    return frame.select(
        "id", F.expr("cast(id as decimal(10,2))").alias("amount"), F.lit(note).alias("note")
    )


def _staged(node: RunningNode) -> list[Path]:
    root = node.directory / "data" / "payloads"
    return [
        path
        for path in root.rglob("*.parquet")
        if path.relative_to(root).parts[0] not in ("inline", "probe")
    ]


def _content(frame: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.orderBy(*frame.columns).collect()]


@pytest.fixture(scope="module")
def orders(log: TxLog) -> str:
    log.create_table("orders", ORDERS, keys=["id"])
    return "orders"


def test_every_operation_reaches_the_table(spark: SparkSession, log: TxLog, orders: str) -> None:
    first = log.append(orders, _orders(spark, range(10)))
    assert (first.level, first.outcome, first.n) == (Level.APPLIED, "committed", 1)
    log.upsert(orders, _orders(spark, range(5, 12), "new"))
    log.delete_keys(orders, spark.range(2))
    log.delete_where(orders, "id = 11")
    found = _content(log.table(orders, at_least="own").select("id", "note"))
    assert found == [(i, "n") for i in range(2, 5)] + [(i, "new") for i in range(5, 11)]
    log.overwrite(orders, _orders(spark, range(3), "last"))
    assert _content(log.table(orders).select("id", "note")) == [(i, "last") for i in range(3)]


def test_staged_rows_arrive_with_the_claimed_signature(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    log.create_table("staged", ORDERS, keys=["id"], partition_by=["note"])
    frame = _orders(spark, range(MANY)).withColumn(
        "note",
        F.expr("case id % 4 when 0 then '' when 1 then 'a/b c' when 2 then null else 'z' end"),
    )
    before = len(_staged(node))
    receipt = log.append("staged", frame)
    assert receipt.level is Level.APPLIED
    assert len(_staged(node)) > before
    log.upsert("staged", frame.where("id < 15000").withColumn("amount", F.lit(Decimal("1.25"))))
    log.delete_keys("staged", spark.range(100, MANY))
    found = log.table("staged")
    assert found.where("note = ''").count() == 0
    assert {
        row["note"]: row["n"]
        for row in found.groupBy("note").agg(F.count("*").alias("n")).collect()
    } == {
        None: 50,
        "a/b c": 25,
        "z": 25,
    }
    assert found.agg(F.sum("amount")).first()[0] == Decimal("125.00")
    own = signature_of(found, log.site.definition("staged")).to_text()
    assert log.snapshot().signatures["staged"] == own


def test_python_lists_and_all_types_travel_inline(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    ddl = (
        "b boolean, t tinyint, s smallint, i int, l bigint, f float, d double, m decimal(38,10), "
        "x string, y binary, dt date, ts timestamp, tz timestamp_ntz, a array<int>, "
        "st struct<p:int,q:string>, mp map<string,bigint>"
    )
    rows = [
        (
            True,
            1,
            -2,
            3,
            2**62,
            1.5,
            float("nan"),
            Decimal("12345678901234567890.0123456789"),
            "ä\x00",
            b"\x00\xff",
            date(1960, 2, 29),
            datetime(2024, 1, 2, 3, 4, 5, 678901, UTC),
            datetime(1999, 12, 31, 23, 59, 59, 1),
            [1, None],
            (7, None),
            {"k": None, "j": 2},
        ),
        (None,) * 16,
    ]
    before = len(_staged(node))
    log.create_table("types", ddl)
    frame = spark.createDataFrame(rows, ddl)
    log.append("types", frame)
    assert len(_staged(node)) == before
    found = log.table("types")
    assert found.schema.simpleString() == frame.schema.simpleString()
    assert found.drop("mp").exceptAll(frame.drop("mp")).count() == 0
    own = signature_of(frame, log.site.definition("types")).to_text()
    assert log.snapshot().signatures["types"] == own


def test_a_transaction_is_all_or_nothing_and_may_create_its_table(
    spark: SparkSession, log: TxLog, orders: str
) -> None:
    with log.transaction() as t:
        t.create_table("audit", "id bigint, what string")
        t.append("audit", spark.createDataFrame([(1, "made")], "id bigint, what string"))
        t.append(orders, _orders(spark, range(100, 100 + MANY), "big"))
        t.delete_keys(orders, spark.range(100, 101))
    assert t.receipt.outcome == "committed"
    snapshot = log.snapshot(at_least="own")
    assert snapshot.table("audit").count() == 1
    assert snapshot.table(orders).where("note = 'big'").count() == MANY - 1
    position = log.position()
    with pytest.raises(ZeroDivisionError), log.transaction() as t:
        t.append(orders, _orders(spark, range(10**6, 10**6 + MANY), "lost"))
        raise ZeroDivisionError
    assert log.position() == position


def test_a_repeated_transaction_id_is_one_transaction(
    spark: SparkSession, log: TxLog, orders: str, node: RunningNode
) -> None:
    given = uuid.uuid4()
    frame = _orders(spark, range(2 * MANY, 3 * MANY), "once")
    first = log.append(orders, frame, transaction_id=given)
    files = len(_staged(node))
    # A job that runs again has its rows in another order, and in other files.
    again = frame.repartition(5).orderBy(F.desc("id"))
    second = log.append(orders, again, transaction_id=str(given))
    assert second.position == first.position
    assert len(_staged(node)) == files
    other = _orders(spark, range(2 * MANY, 3 * MANY), "twice")
    for act, changed in ((log.append, other), (log.upsert, frame), (log.append, frame.limit(5))):
        with pytest.raises(IdTakenError, match="belongs to other content") as taken:
            act(orders, changed, transaction_id=given)
        assert taken.value.definite and taken.value.fields["position"] == first.position
    assert log.append(orders, other, transaction_id=given, first_wins=True).position == (
        first.position
    )
    assert (len(_staged(node)), log.position()) == (files, first.position)
    assert log.table(orders).where("note = 'once'").count() == MANY
    found = log.find(given)
    assert found is not None and found.position == first.position
    assert log.find(uuid.uuid4()) is None


def test_what_a_job_does_to_tables_may_be_repeated(
    spark: SparkSession, log: TxLog, node: RunningNode
) -> None:
    ids = [uuid.uuid4() for _ in range(3)]
    frame = spark.range(3).selectExpr("id", "'x' as note")

    def job(keys: DataFrame, added: str = "more") -> list[int | None]:
        with log.transaction(transaction_id=ids[0]) as made:
            made.create_table("jobs", "id bigint, note string", keys=["id"])
            made.append("jobs", frame)
        with log.transaction(transaction_id=ids[1]) as altered:
            altered.alter_table("jobs", add={added: "int"})
        with log.transaction(transaction_id=ids[2]) as deleted:
            deleted.delete_keys("jobs", keys)
        return [t.receipt.position for t in (made, altered, deleted)]

    many = spark.range(2 * MANY)
    first = job(many)
    assert job(many.repartition(3)) == first
    with pytest.raises(IdTakenError):
        job(many.selectExpr("id + 1 as id"))
    with pytest.raises(IdTakenError):
        job(many, "else")
    # What reads tables would see others.
    with (
        pytest.raises(IdTakenError, match="cannot be compared"),
        log.transaction(transaction_id=ids[0]) as t,
    ):
        t.merge("jobs", frame, "target.id = source.id")
    assert log.position() == first[-1]


@pytest.mark.parametrize("rows", [3, MANY], ids=["inline", "staged"])
def test_bad_rows_are_refused_and_leave_nothing(
    spark: SparkSession, log: TxLog, orders: str, node: RunningNode, rows: int
) -> None:
    files, position = len(_staged(node)), log.position()
    frame = _orders(spark, range(rows))
    with pytest.raises(InvalidRowsError, match=r"NULL in.*'id'"):
        log.upsert(orders, frame.withColumn("id", F.expr("nullif(id, 2)")))
    with pytest.raises(InvalidRowsError, match="key"):
        log.upsert(orders, frame.withColumn("id", F.expr("if(id = 2, 1, id)")))
    with pytest.raises(InvalidRowsError):
        log.delete_keys(orders, frame.select(F.expr("nullif(id, 2)").alias("id")))
    assert (len(_staged(node)), log.position()) == (files, position)


def test_files_of_a_transaction_that_a_node_may_have_stay(
    spark: SparkSession, node: RunningNode, log: TxLog, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call is refused, or says that, and only the first one is sent."""
    before, submit_once = set(_staged(node)), Http.submit_once
    ends = [TransportError("the answer was lost"), UnreachableError("nobody"), BusyError("full")]

    def failing(link: Http, *given: Any, **options: Any) -> Receipt:
        if isinstance(ends[0], TransportError) and not ends[0].definite:
            submit_once(link, *given, **options)
        raise ends[0]

    rows = log.table(orders).count()
    t = log.transaction(timeout=0.5)
    t.append(orders, _orders(spark, range(MANY)))
    staged = set(_staged(node)) - before
    assert staged
    with monkeypatch.context() as patch:
        patch.setattr(Http, "submit_once", failing)
        patch.setattr(Nodes, "_known", lambda *_: None)
        while ends:
            with pytest.raises(CommitStateUnknownError, match="may have been taken"):
                t.commit()
            assert staged <= set(_staged(node))
            del ends[0]
    assert t.commit().rows == MANY
    assert log.table(orders).count() == rows + MANY


@pytest.mark.parametrize(("told", "message"), [(None, "lost the count"), (2, "wrote 40,000 rows")])
def test_a_wrong_count_of_spark_leaves_nothing(
    spark: SparkSession,
    log: TxLog,
    orders: str,
    node: RunningNode,
    monkeypatch: pytest.MonkeyPatch,
    told: int | None,
    message: str,
) -> None:
    def result_of(observation: Observation) -> dict[str, object] | None:
        found = observation.get
        return None if told is None else found | {AGGREGATES[0]: told * found[AGGREGATES[0]]}

    monkeypatch.setattr(frame_staging, "result_of", result_of)
    files, position = len(_staged(node)), log.position()
    with pytest.raises(PayloadStoreError, match=message) as raised:
        log.append(orders, _orders(spark, range(MANY)))
    assert raised.value.definite and "write" in raised.value.hint
    assert (len(_staged(node)), log.position()) == (files, position)


@pytest.mark.parametrize("rows", [3, MANY], ids=["inline", "staged"])
def test_no_rows_change_nothing_and_an_overwrite_with_none_empties(
    spark: SparkSession, log: TxLog, node: RunningNode, rows: int
) -> None:
    name = f"none{rows}"
    log.create_table(name, ORDERS, keys=["id"])
    log.append(name, _orders(spark, range(5)))
    files, position = len(_staged(node)), log.position()
    empty = _orders(spark, range(rows)).where("id < 0")
    path = str(node.directory / name)
    empty.write.parquet(path)
    for frame in (empty, spark.read.schema(empty.schema).parquet(path)):
        for act in (log.append, log.upsert):
            receipt = act(name, frame)
            assert (receipt.rows, receipt.n, receipt.outcome) == (0, 0, "committed")
        assert log.delete_keys(name, frame.select("id")).rows == 0
    with pytest.raises(SchemaMismatchError):
        log.append(name, empty.drop("note"))
    assert (len(_staged(node)), log.position()) == (files, position)
    batch = log.commit_many(empty.withColumn("tx", F.lit(1)), table=name, transaction="tx")
    assert (batch.transactions, batch.rows, batch.runs) == (0, 0, ())
    given = uuid.uuid4()
    recorded = log.append(name, empty, transaction_id=given)
    assert (recorded.rows, recorded.position) == (0, position + 1)
    assert log.append(name, empty, transaction_id=given).position == position + 1
    assert log.table(name, at_least="own").count() == 5
    with log.transaction() as t:
        t.append(name, empty)
        t.append(name, _orders(spark, range(5, 7)))
    assert (t.receipt.rows, log.table(name).count()) == (2, 7)
    log.overwrite(name, empty)
    assert log.table(name, at_least="own").count() == 0
    assert len(_staged(node)) == files


@pytest.mark.thorough
def test_an_empty_micro_batch_does_not_end_a_stream(
    spark: SparkSession, log: TxLog, node: RunningNode, tmp_path: Path
) -> None:
    log.create_table("streamed", "id bigint, v string")
    source = tmp_path / "source"
    seen: list[tuple[int, int | None]] = []

    def commit(frame: DataFrame, batch: int) -> None:
        batch_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{source}/{batch}")
        receipt = log.append("streamed", frame.where("id > 0"), transaction_id=batch_id)
        log.append("streamed", frame.where("id > 0").limit(0))
        written = frame.where("id > 0").write.format("txlog").mode("append")
        written.option("table", "streamed").option("url", node.url).save()
        seen.append((batch, receipt.rows))

    for ids in ([1, 2], [-1], [3]):  # each one a micro-batch of its own
        frame = spark.createDataFrame([(i, "x") for i in ids], "id bigint, v string")
        frame.coalesce(1).write.mode("append").json(str(source))
        stream = spark.readStream.schema(frame.schema).json(str(source))
        query = (
            stream.writeStream.foreachBatch(commit)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120) and query.exception() is None
    assert [rows for _, rows in seen] == [2, 0, 1]
    log.apply()
    assert log.table("streamed", at_least="own").count() == 6


def test_bad_shapes_are_refused_before_any_job(
    spark: SparkSession, log: TxLog, orders: str
) -> None:
    frame = _orders(spark, range(3))
    with pytest.raises(SchemaMismatchError, match="colour"):
        log.append(orders, frame.withColumn("colour", F.lit("red")))
    with pytest.raises(SchemaMismatchError, match="note"):
        log.append(orders, frame.drop("note"))
    with pytest.raises(SchemaMismatchError, match="amount"):
        log.append(orders, frame.withColumn("amount", F.lit("text")))
    with pytest.raises(SchemaMismatchError):
        log.delete_keys(orders, frame)
    with pytest.raises(UnknownTableError, match="orderz"):
        log.append("orderz", frame)
    for name in ("../orders", "a/b", "a\0b", ""):
        with pytest.raises(InvalidNameError):
            log.append(name, frame)
        with pytest.raises((InvalidNameError, SchemaMismatchError)):
            log.create_table(name, "id int")
    with pytest.raises(SchemaMismatchError):
        log.create_table("other", "id nonsense")
    with pytest.raises(SchemaMismatchError, match="key"):
        log.create_table("other", "id int", keys=["no"])
    with pytest.raises(SchemaMismatchError, match="another definition"):
        log.create_table(orders, "id int")
    with pytest.raises(InvalidRequestError):
        log.delete_where(orders, "rand() < 0.5")
    with pytest.raises(InvalidRequestError, match="level"):
        log.append(orders, frame, level="soon")
    with pytest.raises(InvalidRequestError, match="no operation"), log.transaction():
        pass


def test_views_show_the_log(spark: SparkSession, log: TxLog, orders: str) -> None:
    receipt = log.append(orders, _orders(spark, range(7), "seen"))
    queue = log.queue()
    row = queue.where(F.col("transaction_id") == receipt.transaction_id).first()
    assert row is not None
    assert (row["position"], row["outcome"], row["operations"][0]["rows"]) == (
        receipt.position,
        "committed",
        7,
    )
    (master,) = log.masters().collect()
    assert (master["node_id"], master["position"], master["awaited"]) == ("A", log.position(), [])
    (worker,) = log.workers().collect()
    assert (worker["position"], worker["verdict"]) == (log.position(), "IN_SYNC")
    names = {row["table"] for row in log.signatures().collect()}
    assert orders in names
    assert names <= {row["table"] for row in log.tables().collect()}


def test_a_table_nobody_applied_says_both_positions_and_the_command(
    spark: SparkSession, node: RunningNode, log: TxLog
) -> None:
    with connect(spark, node.url) as other:
        other.create_table("fresh", "id int")
        with pytest.raises(
            NotAppliedError, match=r"synchronized up to position \d+.*applied \d+"
        ) as caught:
            other.table("fresh", at_least=None)
        assert f"sparktxlog apply --follow --url {node.url}" in str(caught.value)
        with pytest.raises(UnknownTableError):
            other.table("never")
        with pytest.raises(NotAppliedError):
            connect(spark, node.url, timeout=3).table("fresh", at_least=10**9)
        frame = spark.createDataFrame([(1,)], "id int")
        late = other.append("fresh", frame, level="applied", timeout=3)
        assert (late.level, late.late) == (Level.ORDERED, True)
        assert other.find(late.transaction_id or "") == replace(late, late=False, rows=None)
        with pytest.raises(InvalidRequestError, match="no worker"):
            other.apply()
    log.apply()
    assert log.table("fresh").count() == 1


def test_the_first_of_several_nodes_that_answers_is_the_home(
    spark: SparkSession, node: RunningNode, orders: str
) -> None:
    nobody = "http://127.0.0.1:9"
    with connect(spark, [nobody, node.url]) as log:
        assert log.url == node.url
        assert log.append(orders, _orders(spark, range(1))).outcome == "committed"
        assert log.append(orders, _orders(spark, range(MANY))).outcome == "committed"
        assert log.find(uuid.uuid4()) is None
    with pytest.raises(InvalidRequestError, match="works with one node"):
        connect(spark, f"{nobody},{node.url}", apply="inline")


def test_a_node_that_is_not_there_and_a_store_that_is_not_shared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnreachableError, match="no node answers"):
        connect(spark, "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="apply"):
        connect(spark, "http://127.0.0.1:9", apply="now")  # type: ignore[arg-type]
    node = start_node(tmp_path)
    try:
        hidden = tmp_path / "hidden"
        (tmp_path / "data" / "payloads").rename(hidden)
        for needed in ({"staging": "shared"}, {"apply": "inline"}):
            with pytest.raises(PayloadStoreError, match=r"file://.*payloads") as caught:
                connect(spark, node.url, **needed)  # type: ignore[arg-type]
            assert node.url in str(caught.value) and "staging='http'" in str(caught.value)
        with connect(spark, node.url) as uploading:
            assert uploading.site.store.uploads is not None
        # Another directory under the same path: what Spark writes, the node does not see.
        hidden.rename(tmp_path / "data" / "payloads")
        from sparktxlog.api.staging import shared_store as probe
        from sparktxlog.http.link import Http

        with pytest.raises(PayloadStoreError, match="does not see it"):
            probe.check_store(spark, tmp_path, Http(node.url).get, node.url)
        shutil.rmtree(tmp_path / "probe")
        (tmp_path / "probe").symlink_to("/proc/sys")  # nobody can write there
        with pytest.raises(PayloadStoreError, match="an executor cannot write to"):
            probe.check_store(spark, tmp_path, Http(node.url).get, node.url)
    finally:
        node.stop()


def test_what_cannot_be_applied_here_is_committed_all_the_same(
    spark: SparkSession, node: RunningNode, log: TxLog
) -> None:
    """The last test here: it leaves a table that somebody else wrote to."""
    log.create_table("foreign", "id bigint")
    log.append("foreign", spark.range(1))
    path = (node.directory / "data" / "lake" / "foreign").as_uri()
    spark.range(7, 8).write.format("delta").mode("append").save(path)
    t = log.transaction()
    t.append("foreign", spark.range(MANY))
    with pytest.raises(CommittedNotAppliedError, match="committed at position") as caught:
        t.commit()
    receipt = caught.value.receipt
    assert not caught.value.definite and t.receipt == receipt
    found = log.find(t.id)
    assert found is not None and found.outcome == "committed"
    assert found.position == receipt.position == log.position()
    assert any(t.id in str(path) for path in _staged(node))  # other sites need its files


def test_a_key_may_be_called_count(
    spark: SparkSession, log: TxLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives that name to its own counts, by which repeated keys are found."""
    monkeypatch.setattr(log.site, "store", replace(log.site.store, inline_limit_bytes=-1))
    log.create_table("counted", "count bigint, v string", keys=["count"])
    once = spark.createDataFrame([(1, "a"), (2, "b")], "count bigint, v string")
    log.upsert("counted", once)
    for call in (
        lambda: log.upsert("counted", once.union(once)),
        lambda: log.append("counted", once.union(once), on_duplicate="error"),
    ):
        with pytest.raises(InvalidRowsError, match="more than one row has the key count="):
            call()
    with (
        pytest.raises(InvalidRowsError, match="2 rows of the source match the row with key"),
        log.transaction(isolation="serializable") as t,
    ):
        t.merge("counted", once.union(once), "target.count = source.count").whenMatchedUpdate(
            set={"v": "source.v"}
        ).execute()
    assert log.table("counted").count() == 2
