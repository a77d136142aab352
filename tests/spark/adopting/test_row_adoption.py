"""Existing Delta tables become row tables: at the site that has them, and at the other one."""

from __future__ import annotations

import json
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, Observation, SparkSession
from tests.spark.adopting.sites import TwoSites
from tests.spark.copying.donor import CopyLog, FolderFetcher
from tests.support.command_line import invoke
from tests.support.worker_log import LogBuilder

import sparktxlog
from sparktxlog.api.adopting import row_adoption
from sparktxlog.api.connect import TxLog
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.writing.transaction import SparkTransaction
from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.log_files import commit_path
from sparktxlog.errors import (
    CommitStateUnknownError,
    CopyConflictError,
    InvalidRequestError,
    InvalidRowsError,
    NameTakenError,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.apply import observing
from sparktxlog.worker.apply.tables import create_table
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state
from sparktxlog.worker.tables.table_adoption import Adoption
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


def made(
    spark: SparkSession,
    path: Path,
    *,
    columns: str = "id BIGINT, p STRING, at TIMESTAMP",
    rest: str = "PARTITIONED BY (p)",
) -> Path:
    """Make a table of ten rows in the way that Spark does by default."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {rest}")
        spark.sql(
            f"INSERT INTO delta.`{path}` SELECT id, concat('p ', id % 2), "
            "timestamp'1500-01-01 00:00:00' FROM range(10)"
        )
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return path


def data_files(directory: Path) -> set[int]:
    return {path.stat().st_ino for path in directory.rglob("*.parquet") if path.stat().st_size}


def everything(*directories: Path) -> dict[str, int]:
    found = (path for directory in directories for path in directory.rglob("*"))
    return {str(path): path.stat().st_mtime_ns for path in found if path.is_file()}


@pytest.mark.usefixtures("jobs_share_spark")
def test_a_table_is_adopted_in_place_and_reaches_the_other_site(
    spark: SparkSession,
    sites: TwoSites,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = made(spark, tmp_path / "orders")
    expected = sorted(spark.read.format("delta").load(str(path)).collect())
    url, payloads = sites.nodes["A"].url, sites.a.site.store.root
    command = ["table", "adopt", "orders", str(path), "--as", "row-table", "--keys", "id"]
    before = everything(path, payloads)
    assert invoke(monkeypatch, *command, "--url", url, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"row table orders would begin with version 1 of {path}: 10 rows, keys id." in said
    assert "get a second name" in said and "The rows of" not in said
    assert everything(path, payloads) == before and sites.a.site.existing("orders") is None
    assert invoke(monkeypatch, *command, "--url", url) == 0
    assert "The old table is as it was" in capsys.readouterr().out
    at_a, at_b = sites.signatures("orders")
    assert at_a == at_b and at_a.startswith("10:")
    lake = Path(sites.a.site.home.get("/v1/info")["lake_root"])
    assert data_files(lake / "orders") == data_files(path)
    # What survives a VACUUM of the old table, and more.
    shutil.rmtree(path)
    for log in (sites.a, sites.b):
        assert sorted(log.table("orders").collect()) == expected
    row = spark.createDataFrame([(3, "p 1", None)], "id bigint, p string, at timestamp")
    sites.b.upsert("orders", row)
    at_a, at_b = sites.signatures("orders")
    assert at_a == at_b and at_a.startswith("10:")


def test_rows_that_the_log_cannot_take_in_place_are_written_again(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    path = made(
        spark,
        tmp_path / "grown",
        rest="TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        "'delta.columnMapping.mode' = 'name')",
    )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 4")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN p TO q")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN n INT")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (20, 'new', NULL, 5)")
    done = sites.a.adopt_table("grown", str(path), keys=["id"])
    assert (done.rows, done.files) == (10, 0)
    assert done.rewritten_because.keys() == {"deletion vector", "other column names in the file"}
    expected = sorted(spark.read.format("delta").load(str(path)).collect(), key=lambda r: r.id)
    at_a, at_b = sites.signatures("grown")
    assert at_a == at_b == done.signature
    assert sorted(sites.b.table("grown").collect(), key=lambda r: r.id) == expected


def foreign_table(path: Path, rows: list[dict[str, str | None]]) -> Path:
    """Make a table as other engines do: a file for each row, its partition values in their way."""
    columns = (
        Column(name="id", type="bigint"),
        Column(name="n", type="decimal(10,2)"),
        Column(name="day", type="date"),
        Column(name="at", type="timestamp_ntz"),
        Column(name="b", type="boolean"),
    )
    names = tuple(column.name for column in columns[1:])
    definition = TableDefinition(name=path.name, columns=columns, partition_by=names)
    create_table(path, definition, "", {"appId": "other", "version": 1})
    with commit_path(path, 0).open("a") as log:
        for number, texts in enumerate(rows):
            file = path / f"{number}.parquet"
            pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), file)
            values = dict.fromkeys(names) | texts
            add = {"path": file.name, "partitionValues": values, "size": file.stat().st_size}
            add |= {"modificationTime": 0, "dataChange": True}
            log.write(json.dumps({"add": add}) + "\n")
    return path


@pytest.mark.thorough
def test_partition_values_in_the_forms_of_other_engines(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    taken = [
        {"n": "1.5", "at": "2024-01-05T10:00:00"},
        {"n": "2", "b": "true"},
        {"n": "-02.000", "at": "2024-01-05T10:00:00.5Z"},
        {"n": "", "day": "2024-01-05"},
    ]
    again = [{"n": " 1.5"}, {"day": "2024-1-5"}, {"b": "TRUE"}, {"at": "2024-01-05"}]
    path = foreign_table(tmp_path / "forms", taken + again)
    done = sites.a.adopt_table("forms", str(path), keys=["id"])
    assert (done.files, done.rewritten_files) == (len(taken), len(again))
    assert done.rewritten_because == {"partition value in a form of its own": len(again)}

    def rows(frame: DataFrame) -> list[tuple[str, ...]]:
        return sorted(tuple(map(str, row)) for row in frame.collect())

    expected = rows(spark.read.format("delta").load(str(path)))
    row = {"id": 9, "n": "2.00", "day": None, "at": None, "b": None}
    sites.b.upsert("forms", [row])
    at_a, at_b = sites.signatures("forms")
    assert at_a == at_b
    for log in (sites.a, sites.b):
        assert rows(log.table("forms").where("id < 9")) == expected
    # What Spark reads as NULL without a word, and was something.
    wrong = foreign_table(tmp_path / "wrong", [{"n": "1,5"}, {"day": "2024-02-30"}, {"b": "2"}])
    with pytest.raises(InvalidRequestError) as caught:
        sites.a.adopt_table("wrong", str(wrong))
    assert caught.value.definite and caught.value.fields["obstacles"] == [
        "partition column 'n' has the value '1,5', which is no decimal(10,2)",
        "partition column 'day' has the value '2024-02-30', which is no date",
        "partition column 'b' has the value '2', which is no boolean",
    ]


@pytest.mark.thorough
def test_odd_floats_of_others_are_found_by_filters_once_they_are_adopted(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    path = tmp_path / "gaps"
    for first, values in ((0, [1.0, math.nan]), (2, [3.0, 4.0]), (4, [-0.0, -0.0])):
        ids = range(first, first + 2)
        write_deltalake(path, pa.table({"id": pa.array(ids), "f": values}), mode="append")
    done = sites.a.adopt_table("gaps", str(path), keys=["id"])
    assert done.files == 1
    assert list(done.rewritten_because.values()) == [2]
    sites.b.delete_where("gaps", "f = 4.0")
    at_a, at_b = sites.signatures("gaps")
    assert at_a == at_b and at_a.startswith("5:")
    for log in (sites.a, sites.b):
        found = log.table("gaps").where("f > 2.0 OR f IS NULL").collect()
        assert sorted(row.id for row in found) == [1, 2]
    sites.b.delete_where("gaps", "f > 3.0 OR f = 0.0")
    at_a, at_b = sites.signatures("gaps")
    assert at_a == at_b and at_a.startswith("2:")


@pytest.mark.thorough
def test_decimals_whose_bounds_were_rounded_are_found_once_they_are_adopted(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    path, exact = tmp_path / "sums", Decimal(2**53 + 1)
    sums = pa.array([exact], pa.decimal128(20, 0))
    write_deltalake(path, pa.table({"id": [1], "d": sums}))
    same = f"d = {exact}"
    # findings/deltalake_bounds_of_decimals.sh
    assert not spark.read.format("delta").load(str(path)).where(same).collect()
    sites.a.adopt_table("sums", str(path), keys=["id"])
    at_a, at_b = sites.signatures("sums")
    assert at_a == at_b and at_a.startswith("1:")
    for log in (sites.a, sites.b):
        assert [row.d for row in log.table("sums").where(same).collect()] == [exact]
    sites.b.delete_where("sums", same)
    at_a, at_b = sites.signatures("sums")
    assert at_a == at_b and at_a.startswith("0:")


def described(spark: SparkSession, log: TxLog, table: str) -> dict[str, Any]:
    """Return what Delta says of a table in the lake of a site."""
    return of_lake(spark, Path(log.site.home.get("/v1/info")["lake_root"]), table)


def of_lake(spark: SparkSession, lake: Path, table: str) -> dict[str, Any]:
    """Return what Delta says of a table in a lake."""
    path = lake / table
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    columns = spark.read.format("delta").load(str(path)).schema.fields
    return {
        "comment": detail.description,
        "clustered": detail.clusteringColumns,
        "properties": detail.properties,
        "comments": {field.name: field.metadata.get("comment") for field in columns},
    }


@pytest.mark.thorough
def test_comments_properties_and_clustering_are_kept_and_changed_at_all_sites(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    path = tmp_path / "told"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT NOT NULL COMMENT 'of the order', n INT) "
        "USING delta CLUSTER BY (n) COMMENT 'orders of the shop' TBLPROPERTIES ('team' = 'sales', "
        "'delta.logRetentionDuration' = 'interval 90 days', 'delta.enableRowTracking' = 'true', "
        "'delta.isolationLevel' = 'Serializable')"
    )
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, id % 7 FROM range(100)")
    done = sites.a.adopt_table("told", str(path), keys=["id"])
    assert done.left_behind == [
        "its row ids",
        "property delta.isolationLevel (only the worker writes to the table)",
    ]
    at_a, at_b = sites.signatures("told")
    assert at_a == at_b == done.signature
    for log in (sites.a, sites.b):
        found = described(spark, log, "told")
        assert (found["comment"], found["clustered"]) == ("orders of the shop", ["n"])
        assert found["comments"] == {"id": "of the order", "n": None}
        assert found["properties"] == {
            "team": "sales",
            "delta.logRetentionDuration": "interval 90 days",
        }
    sites.b.alter_table(
        "told",
        rename={"n": "number"},
        comment="orders",
        comments={"id": "", "n": "of the day"},
        properties={"team": None, "delta.checkpointInterval": "20"},
    )
    # MERGE and OPTIMIZE work on what the worker wrote by hand.
    sites.a.upsert("told", spark.createDataFrame([(7, 70), (200, 1)], "id bigint, number int"))
    at_a, at_b = sites.signatures("told")
    assert at_a == at_b and at_a.startswith("101:")
    for log in (sites.a, sites.b):
        found = described(spark, log, "told")
        assert (found["comment"], found["clustered"]) == ("orders", ["number"])
        assert found["comments"] == {"id": None, "number": "of the day"}
        assert found["properties"]["delta.checkpointInterval"] == "20"
        assert "team" not in found["properties"]
    lake = Path(sites.a.site.home.get("/v1/info")["lake_root"])
    spark.sql(f"OPTIMIZE delta.`{lake / 'told'}` FULL")
    sites.a.append("told", spark.createDataFrame([(201, 1)], "id bigint, number int"))
    at_a, at_b = sites.signatures("told")
    assert at_a == at_b and at_a.startswith("102:")
    with pytest.raises(InvalidRequestError, match=r"delta.appendOnly.*upserts and deletes"):
        sites.a.alter_table("told", properties={"delta.appendOnly": "true"})
    arrange_otherwise(spark, sites, lake)
    check_copy_and_image(spark, lake, tmp_path)


def arrange_otherwise(spark: SparkSession, sites: TwoSites, lake: Path) -> None:
    """Cluster tables by other columns: what is there is arranged by OPTIMIZE."""
    for number, columns in enumerate((["id"], [], ["number", "id"])):
        sites.a.after(sites.b.alter_table("told", cluster_by=columns).position)
        sites.a.site.forget_definitions(["told"])
        sites.a.append("told", spark.createDataFrame([(300 + number, 1)], "id bigint, number int"))
        at_a, at_b = sites.signatures("told")
        assert at_a == at_b
        for log in (sites.a, sites.b):
            assert described(spark, log, "told")["clustered"] == columns
    spark.sql(f"OPTIMIZE delta.`{lake / 'told'}` FULL")
    sites.a.create_table("plain", "id bigint, day date")
    sites.a.append("plain", spark.sql("SELECT 1L AS id, DATE'2024-02-29' AS day"))
    sites.b.after(sites.a.position())
    sites.b.alter_table("plain", cluster_by=["day"], rename={"id": "number"})
    changed = sites.b.alter_table("plain", cluster_by=[], drop=["day"])
    sites.a.after(changed.position)
    sites.a.site.forget_definitions(["plain"])
    sites.a.append("plain", spark.sql("SELECT 2L AS number"))
    at_a, at_b = sites.signatures("plain")
    assert at_a == at_b and at_a.startswith("2:")


def check_copy_and_image(spark: SparkSession, lake: Path, root: Path) -> None:
    """Copies and images keep comments, properties and clustering columns."""
    state = read_state(lake)
    assert state is not None
    source = CopyLog(LogBuilder(root, log_id=state.log_id), root / "copied", lake)
    with closing(ReplicaDirectory(source.lake)) as directory:
        Applier(
            spark,
            source,
            directory,
            copies=CopyOptions(forced=True),
            open_fetcher=lambda lake, copy_id: FolderFetcher(source.donor, lake, copy_id),
        ).catch_up()
    store = DiskImages(root / "images")
    restore_replica(store, back_up_replica(lake, store, name="told").image, root / "restored")
    for other in ("copied", "restored"):
        assert recount_tables(spark, root / other) == {}
        for name in ("told", "plain"):
            assert of_lake(spark, root / other, name) == of_lake(spark, lake, name)


def test_a_thread_without_an_active_session_reads_all_tables(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    """Delta asks the thread's active session about columns mapped by id and v2 checkpoints."""
    mapped, checkpointed = "columnMapping.mode'='id", "checkpointPolicy'='v2"
    for name, feature in (("mapped", mapped), ("checkpointed", checkpointed)):
        interval = "'delta.checkpointInterval'='1'"
        path = made(spark, tmp_path / name, rest=f"TBLPROPERTIES ('delta.{feature}', {interval})")
        with (
            closing(sparktxlog.connect(spark.newSession(), sites.nodes["A"].url)) as log,
            ThreadPoolExecutor(1) as threads,
        ):
            for kind in ("row-table", "commit-table"):
                planned = threads.submit(
                    log.adopt_table, f"threads.{name}", str(path), kind=kind, dry_run=True
                ).result(120)
                assert planned.source_version == 1


def test_what_is_in_the_way_is_named_at_once(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    path = tmp_path / "odd"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, v BIGINT) USING delta "
        "TBLPROPERTIES ('delta.enableIcebergCompatV2' = 'true', "
        "'delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (v < 100)")
    with pytest.raises(InvalidRequestError) as caught:
        sites.a.adopt_table("odd", str(path), dry_run=True)
    assert [text.split(",")[0] for text in caught.value.fields["obstacles"]] == [
        "it has feature 'icebergCompatV2'",
        "it has the constraint 'small'",
    ]
    assert "DROP CONSTRAINT small" in caught.value.message
    with pytest.raises(InvalidRequestError, match="it has no _delta_log"):
        sites.a.adopt_table("odd", str(tmp_path))


def test_keys_that_are_none(spark: SparkSession, sites: TwoSites, tmp_path: Path) -> None:
    path = made(spark, tmp_path / "t")
    with pytest.raises(InvalidRowsError, match=r"up to 5 rows have one key, such as p='p \d'"):
        sites.a.adopt_table("dup", str(path), keys=["p"])
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (NULL, 'p 1', NULL)")
    with pytest.raises(InvalidRowsError, match="1 rows have NULL in 'id'"):
        sites.a.adopt_table("dup", str(path), keys=["id"])
    assert sites.a.site.existing("dup") is None
    assert sites.a.adopt_table("dup", str(path)).keys == []
    assert len(set(sites.signatures("dup"))) == 1
    with pytest.raises(NameTakenError):
        sites.a.adopt_table("dup", str(made(spark, tmp_path / "other")))


@pytest.mark.parametrize("times", [None, 2], ids=["lost", "doubled"])
def test_a_count_that_spark_lost_or_doubled_is_made_again(
    spark: SparkSession,
    sites: TwoSites,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    times: int | None,
) -> None:
    def told(observation: Observation) -> dict[str, Any] | None:
        found = observation.get
        return None if times is None else {name: times * n for name, n in found.items()}

    monkeypatch.setattr(observing, "result_of", told)
    name = f"miscounted_{times}"
    sites.a.adopt_table(name, str(made(spark, tmp_path / "t")), keys=["id"])
    assert "are counted again" in caplog.text
    assert len(set(sites.signatures(name))) == 1
    assert sites.a.snapshot().signatures[name].startswith("10:")


def test_somebody_writes_to_it_meanwhile(
    spark: SparkSession, sites: TwoSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(spark, tmp_path / "busy")
    counted = row_adoption._count

    def writing(*given: Any) -> Any:
        spark.sql(f"INSERT INTO delta.`{path}` VALUES (11, 'p 1', NULL)")
        return counted(*given)

    monkeypatch.setattr(row_adoption, "_count", writing)
    staged = everything(sites.a.site.store.root).keys()
    with pytest.raises(CopyConflictError, match="it has version 2, after 1"):
        sites.a.adopt_table("busy", str(path), keys=["id"])
    assert sites.a.site.existing("busy") is None
    assert everything(sites.a.site.store.root).keys() == staged


class Killed(BaseException):
    """The process ended here."""


def test_an_adoption_that_was_killed_is_done_once(
    spark: SparkSession, sites: TwoSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(spark, tmp_path / "killed")

    def adopt() -> Adoption:
        return sites.a.adopt_table("killed", str(path), keys=["id"])

    def killed(*_: object, **__: object) -> Any:
        raise Killed

    with monkeypatch.context() as patch:  # before the submit; its files stay
        patch.setattr(row_adoption, "commit_in", killed)
        patch.setattr(SparkTransaction, "discard", killed)
        with pytest.raises(Killed):
            adopt()
    sent = Nodes.commit

    def unheard(*given: Any, **options: Any) -> Any:
        sent(*given, **options)
        raise Killed

    with monkeypatch.context() as patch:  # after it, before the answer
        patch.setattr(Nodes, "commit", unheard)
        with pytest.raises(Killed):
            adopt()
    again = adopt()
    assert (again.repeated, again.rows) == (True, 10)
    assert sites.signatures("killed") == [again.signature] * 2
    # Once it is dropped, the same table may come again.
    sites.a.drop_table("killed")
    assert not adopt().repeated
    assert sites.signatures("killed") == [again.signature] * 2


def test_an_unknown_outcome_is_asked_for_again(
    spark: SparkSession, sites: TwoSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(spark, tmp_path / "unknown")
    sent, answers = Nodes.commit, [CommitStateUnknownError("nobody knows"), None]

    def losing(*given: Any, **options: Any) -> Any:
        receipt = sent(*given, **options)
        if answer := answers.pop(0):
            raise answer
        return receipt

    monkeypatch.setattr(Nodes, "commit", losing)
    assert sites.a.adopt_table("unknown", str(path)).position
    assert answers == []


def test_no_rows(spark: SparkSession, sites: TwoSites, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta")
    log: TxLog = sites.a
    assert log.adopt_table("empty", str(path), keys=["id"]).rows == 0
    assert log.table("empty").count() == 0
    assert os.path.isdir(path)


@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_share_spark")
def test_a_table_is_given_back_at_each_site(
    spark: SparkSession,
    sites: TwoSites,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, back = made(spark, tmp_path / "leaving"), tmp_path / "back"
    sites.a.adopt_table("leaving", str(path), keys=["id"])
    sites.b.delete_keys("leaving", spark.createDataFrame([(1,)], "id bigint"))
    left = sites.a.release_table("leaving", str(back))
    assert left.dropped
    sites.b.after(left.position)
    assert sites.signatures("leaving") == ["none"] * 2
    lake = Path(sites.b.site.home.get("/v1/info")["lake_root"])
    at_b = Attic.of_lake(lake).place(Kind.DROPPED, "leaving", str(left.position))
    for place in (back, at_b):
        rows = spark.read.format("delta").load(str(place))
        assert (rows.count(), rows.where("id = 1").count()) == (9, 0)
    spark.sql(f"DELETE FROM delta.`{back}` WHERE id < 5")  # an ordinary table again
    assert spark.read.format("delta").load(str(back)).count() == 5
    with pytest.raises(InvalidRequestError, match="exists already"):
        sites.a.adopt_table("leaving", str(path), keys=["id"])
        sites.a.release_table("leaving", str(back))
    assert invoke(monkeypatch, "table", "release", "leaving", "--url", sites.nodes["A"].url) == 0
    said = capsys.readouterr().out
    assert "is a plain Delta table, and the log has it no more" in said
    sites.signatures("leaving")  # the workers apply the drop
    assert Path(said.split(" is a plain")[0].splitlines()[-1]).is_dir()
