"""Tables with values of the old calendar, and with what a row table does not keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.spark.adopting.sites import TwoSites

from sparktxlog.api.adopting import losses
from sparktxlog.api.adopting.table_follower import TableFollower
from sparktxlog.api.connect import TxLog
from sparktxlog.api.schema import LENGTHS
from sparktxlog.errors import InvalidRequestError, SchemaMismatchError

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]

OLD = "dates or timestamps of the old calendar"
INSERT = (
    "INSERT INTO {} SELECT {} + id, DATE'{}', TIMESTAMP'{}', named_struct('d', DATE'{}') "
    "FROM range(0, 2, 1, 1)"
)
#: First id, date, timestamp and date inside the struct of each version of the table.
OLD_DAYS = (0, "1500-03-01", "2024-01-01", "2024-01-01")
OLD_MOMENTS = (10, "2024-01-01", "1860-01-01 00:00:00.000001", "2024-01-01")
OLD_FIELDS = (20, "2024-01-01", "2024-01-01", "0900-01-01")
MODERN = (30, "1582-10-15", "1900-01-01 00:00:00", "1582-10-15")


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Set how a session reads or writes Parquet files."""
    names = {f"spark.sql.parquet.{name}": value for name, value in values.items()}
    before = {name: spark.conf.get(name) for name in names}
    try:
        for name, value in names.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            spark.conf.set(name, str(was))


def legacy(spark: SparkSession, kind: str) -> object:
    """Let a session write as Spark 2 did."""
    modes = {"datetimeRebaseModeInWrite": "LEGACY", "int96RebaseModeInWrite": "LEGACY"}
    return settings(spark, outputTimestampType=kind, **modes)


def check_found(spark: SparkSession, sites: TwoSites, name: str, path: Path) -> None:
    """Compare what filters find, and rows as Arrow reads them, with plain Spark over the table."""
    at_a, at_b = sites.signatures(name)
    assert at_a == at_b
    plain = spark.read.format("delta").load(str(path))
    rows = sorted(plain.collect())
    for log in (sites.a, sites.b):
        table = log.table(name)
        assert sorted(table.collect()) == rows
        for _, day, moment, inside in (OLD_DAYS, OLD_MOMENTS, OLD_FIELDS, MODERN):
            where = f"d = DATE'{day}' AND at = TIMESTAMP'{moment}' AND s.d = DATE'{inside}'"
            assert table.where(where).count() == 2, where
        by_arrow = spark.read.format("txlog").option("url", log.site.home.url).load(name)
        assert sorted(by_arrow.collect()) == rows


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["TIMESTAMP_MICROS", "INT96"])
def test_values_of_the_old_calendar_are_written_again(
    spark: SparkSession, sites: TwoSites, tmp_path: Path, kind: str
) -> None:
    path, name = tmp_path / "t", f"old_{kind.lower()}"
    table = f"delta.`{path}`"
    with legacy(spark, kind):
        spark.sql(
            f"CREATE TABLE {table} (id BIGINT, d DATE, at TIMESTAMP, s STRUCT<d: DATE>) USING delta"
        )
        for version in (OLD_DAYS, OLD_MOMENTS, MODERN):
            spark.sql(INSERT.format(table, *version)).collect()
    follower = TableFollower(sites.a, name, str(path), keys=["id"])
    planned = sites.a.adopt_table(name, str(path), keys=["id"], dry_run=True)
    assert planned.rewritten_because == {OLD: planned.rewritten_files}
    assert planned.files == 1
    follower.step()
    with legacy(spark, kind):
        spark.sql(INSERT.format(table, *OLD_FIELDS))
    (brought,) = follower.step()
    assert brought.became == "append"
    check_found(spark, sites, name, path)
    changes = spark.read.format("txlog").option("url", sites.a.site.home.url).option("table", name)
    days = {row.d for row in changes.load().collect() if row.id < 2}
    assert days == {date(1500, 3, 1)}
    sites.b.delete_where(name, "d = DATE'1500-03-01' OR at < TIMESTAMP'1900-01-01'")
    at_a, at_b = sites.signatures(name)
    assert at_a == at_b and at_a.startswith("4:")


def test_files_without_a_version_are_what_the_session_reads(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    rows = pa.table({"id": [1], "d": pa.array([date(1500, 3, 11)], pa.date32())})
    write_deltalake(str(tmp_path / "t"), rows)
    for mode, day, linked in (("CORRECTED", 11, 1), ("LEGACY", 1, 0)):
        with settings(spark, datetimeRebaseModeInRead=mode):
            done = sites.a.adopt_table(mode.lower(), str(tmp_path / "t"), keys=["id"])
            assert done.files == linked
            sites.signatures(mode.lower())
        for log in (sites.a, sites.b):
            found = log.table(mode.lower()).where(f"d = DATE'1500-03-{day:02}'")
            assert found.count() == 1, mode


def test_inline_rows_are_those_of_every_session(spark: SparkSession, sites: TwoSites) -> None:
    log: TxLog = sites.a
    log.create_table("inline_days", "id bigint, d date", ["id"])
    log.append("inline_days", [{"id": 1, "d": "1500-03-01"}])
    sites.signatures("inline_days")
    for mode in ("LEGACY", "EXCEPTION"):
        with settings(spark, datetimeRebaseModeInRead=mode):
            assert log.table("inline_days").first().d == date(1500, 3, 1)


def test_lengths_of_texts_are_refused_with_a_way_out(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    path = tmp_path / "codes"
    table = f"delta.`{path}`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, code CHAR(5), name VARCHAR(3)) USING delta")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'ab', 'xyz')")
    with pytest.raises(InvalidRequestError) as caught:
        sites.a.adopt_table("codes", str(path), keys=["id"], dry_run=True)
    ways = [text.split("ALTER TABLE … ")[1][:-1] for text in caught.value.fields["obstacles"]]
    assert ways == ["ALTER COLUMN code TYPE string", "ALTER COLUMN name TYPE string"]
    with pytest.raises(SchemaMismatchError, match=r"column 'code'.*char\(5\).*check its length"):
        sites.a.create_table("codes", spark.table(table).schema)
    for way in ways:
        spark.sql(f"ALTER TABLE {table} {way}")
    done = sites.a.adopt_table("codes", str(path), keys=["id"])
    assert done.left_behind == []
    sites.signatures("codes")
    for log in (sites.a, sites.b):
        assert log.table("codes").collect() == spark.table(table).collect()


def test_each_feature_and_column_key_of_the_installed_delta_is_decided(spark: SparkSession) -> None:
    """A feature that a later Delta adds belongs into the tables of `losses`."""
    jvm = spark.sparkContext._jvm
    listed = jvm.scala.jdk.javaapi.CollectionConverters.asJava

    def singleton(name: str) -> object:
        return getattr(getattr(jvm, f"{name}$"), "MODULE$")

    delta = "org.apache.spark.sql.delta"
    known = listed(singleton(f"{delta}.TableFeature").allSupportedFeaturesMap().values().toSeq())
    decided = [*losses.ALLOWED_FEATURES, *losses.REFUSED_FEATURES]
    assert sorted(feature.name() for feature in known) == sorted(decided)
    catalyst = "org.apache.spark.sql.catalyst.util"
    defaults = singleton(f"{catalyst}.ResolveDefaultColumnsUtils")
    keys = [
        singleton(f"{catalyst}.CharVarcharUtils").CHAR_VARCHAR_TYPE_STRING_METADATA_KEY(),
        singleton(f"{delta}.sources.DeltaSourceUtils").GENERATION_EXPRESSION_METADATA_KEY(),
        singleton(f"{delta}.sources.DeltaSourceUtils").IDENTITY_INFO_START(),
        singleton(f"{delta}.sources.DeltaSourceUtils").IDENTITY_INFO_HIGHWATERMARK(),
        singleton(f"{delta}.constraints.Invariants").INVARIANTS_FIELD(),
        singleton(f"{delta}.TypeWideningMetadata").TYPE_CHANGES_METADATA_KEY(),
        singleton(f"{delta}.DeltaColumnMapping").COLUMN_MAPPING_PHYSICAL_NAME_KEY(),
        defaults.CURRENT_DEFAULT_COLUMN_METADATA_KEY(),
        defaults.EXISTS_DEFAULT_COLUMN_METADATA_KEY(),
    ]
    assert LENGTHS in keys
    assert [key for key in keys if losses._known(losses._OF_COLUMNS, key) is None] == []
