"""Settings of the session that commits change no row and no signature; odd partition values too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode

import sparktxlog
from sparktxlog.api.connect import TxLog
from sparktxlog.api.schema import struct_of
from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.codec.rows import rows_to_arrow
from sparktxlog.errors import InvalidRequestError, InvalidRowsError
from sparktxlog.model.transactions.operation import OperationKind

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

COLUMNS = {
    "id": "int",
    "at": "timestamp",
    "day": "date",
    "text": "string",
    "moment": "timestamp",
    "local": "timestamp_ntz",
    "exact": "decimal(38,10)",
}
PARTS = ["at", "day", "text"]
TEXTS = ("", "a=b/%20 'q'", 'ä\t{x}[y]:*?"<>|^#~', "I", "İi", "ı", "..", "NULL", "é" * 100)
MOMENTS = (
    "0001-01-01T00:00:00Z",
    "1582-10-10T00:00:00.000001Z",
    "2024-03-31T01:30:00.5Z",
    "2024-10-27T01:30:00Z",
    "9999-12-31T23:59:59.999999Z",
)
ROWS = [
    {
        "id": number,
        "at": MOMENTS[number % 5],
        "day": MOMENTS[(number + 1) % 5][:10],
        "text": TEXTS[number % len(TEXTS)],
        "moment": MOMENTS[(number + 2) % 5],
        "local": MOMENTS[(number + 3) % 5][:-1],
        "exact": f"{number}.{'9' * 10}",
    }
    for number in range(11)
] + [{**dict.fromkeys(COLUMNS), "id": 11}]

#: What a session may be set to after `connect`, and the JVM's language and zone.
SESSIONS: dict[str, tuple[dict[str, str], str, str]] = {
    "plain": ({}, "en", "UTC"),
    "tokyo": (
        {
            "spark.sql.session.timeZone": "Asia/Tokyo",
            "spark.sql.ansi.enabled": "false",
            "spark.sql.caseSensitive": "true",
            "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
            "spark.sql.parquet.outputTimestampType": "INT96",
        },
        "tr",
        "Asia/Tokyo",
    ),
    "lima": (
        {
            "spark.sql.session.timeZone": "America/Lima",
            "spark.sql.parquet.writeLegacyFormat": "true",
            "spark.sql.storeAssignmentPolicy": "LEGACY",
            "spark.sql.datetime.java8API.enabled": "true",
        },
        "de",
        "America/Lima",
    ),
}


@contextmanager
def _jvm_of(spark: SparkSession, language: str, zone: str) -> Iterator[None]:
    """Set language and time zone of the JVM, of executors too: it is one process."""
    java = spark._jvm.java.util  # type: ignore[union-attr]
    before = java.Locale.getDefault(), java.TimeZone.getDefault()
    java.Locale.setDefault(java.Locale.forLanguageTag(language))
    java.TimeZone.setDefault(java.TimeZone.getTimeZone(zone))
    try:
        yield
    finally:
        java.Locale.setDefault(before[0])
        java.TimeZone.setDefault(before[1])


def test_a_language_with_other_digits_is_refused(spark: SparkSession, node: RunningNode) -> None:
    for language in ("ar", "fa"):
        with (
            _jvm_of(spark, language, "UTC"),
            pytest.raises(InvalidRequestError, match=f"language is {language}.*written .: Delta"),
        ):
            sparktxlog.connect(spark, node.url)


@pytest.mark.thorough
def test_settings_of_sessions_change_no_signature(
    spark: SparkSession, log: TxLog, node: RunningNode, tmp_path: Path
) -> None:
    rows, signatures, shown = None, {}, {}
    for name, (settings, language, zone) in SESSIONS.items():
        session = spark.newSession()
        with _jvm_of(spark, language, zone), closing(sparktxlog.connect(session, node.url)) as own:
            for setting, value in settings.items():
                session.conf.set(setting, value)
            own.create_table(name, ", ".join(f"{n} {k}" for n, k in COLUMNS.items()), ["id"], PARTS)
            definition = own.site.definition(name)
            rows = rows_to_arrow(name, ROWS, arrow_schema(definition))
            pq.write_table(rows, tmp_path / name)
            frame = session.read.schema(struct_of(definition, OperationKind.APPEND)).parquet(
                str(tmp_path / name)
            )
            own.site.store = replace(own.site.store, inline_limit_bytes=-1)  # staged
            own.append(name, frame.where("id < 6 OR id = 11"))
            own.site.store = replace(own.site.store, inline_limit_bytes=1 << 20)  # inline
            own.append(name, frame.where("id BETWEEN 6 AND 9"))
            own.upsert(name, frame.where("id IN (3, 7, 10)"))
            own.delete_where(name, "text = 'I' OR moment < '0002-01-01' AND id = 3")
            log.apply()
            signatures[name] = log.snapshot().signatures[name]
            found = session.read.format("delta").load(_path(log, name))
            shown[name] = sorted(map(repr, found.toArrow().cast(rows.schema).to_pylist()))
    assert len(set(signatures.values())) == 1
    expected = [
        row | {"text": row["text"] or None}
        for row in rows.to_pylist()
        if row["text"] != "I" and row["id"] != 3
    ]
    for name in SESSIONS:
        assert shown[name] == sorted(map(repr, expected)), name
    # Each partition value says its zone, whoever wrote it.
    for commit in Path(_path(log, "tokyo"), "_delta_log").glob("*.json"):
        for at in re.findall(r'"partitionValues":\{"at":"([^"]*)"', commit.read_text()):
            assert at.endswith("Z"), (commit.name, at)


def _path(log: TxLog, name: str) -> str:
    return str(Path(log.site.home.get("/v1/info")["lake_root"]) / name)


@pytest.mark.parametrize("limit", [1 << 20, -1], ids=["inline", "staged"])
def test_partitions_are_replaced_in_one_transaction(
    spark: SparkSession, log: TxLog, limit: int
) -> None:
    name = f"replaced_{limit > 0}".lower()
    ddl = "id bigint, p string, at timestamp, n decimal(5,2), day date, b boolean"
    log.create_table(name, ddl, partition_by=["p", "at", "n", "day", "b"])
    log.append(
        name,
        spark.sql(
            "SELECT id, if(id % 3 = 0, NULL, if(id % 3 = 1, \"it's / 1\", 'b')) AS p, "
            "TIMESTAMP '2024-01-01 00:00:00.5Z' AS at, 1.50BD AS n, DATE '0001-01-01' AS day, "
            "id < 6 AS b FROM range(9)"
        ),
    )
    log.alter_table(name, rename={"p": "q"})
    old = log.table(name)
    fresh = old.where("id IN (0, 4)").selectExpr("id + 100 AS id", "q", "at", "n", "day", "b")
    store = log.site.store
    log.site.store = replace(store, inline_limit_bytes=limit)
    try:
        with pytest.raises(InvalidRequestError, match="no row table with partitions"):
            log.create_table(f"{name}_plain", "id bigint")
            log.replace_partitions(f"{name}_plain", fresh.select("id"))
        position = log.position()
        log.replace_partitions(name, fresh)
        assert log.position() == position + 1
        log.replace_partitions(name, fresh.where("false"))
    finally:
        log.site.store = store
    found = sorted((row["id"], row["q"]) for row in log.table(name, at_least="own").collect())
    # Gone are rows of (NULL, b) and ("it's / 1", b) with id < 6.
    kept = [(2, "b"), (5, "b"), (6, None), (7, "it's / 1"), (8, "b")]
    assert found == [*kept, (100, None), (104, "it's / 1")]


def test_a_text_that_no_directory_can_have_is_refused(spark: SparkSession, log: TxLog) -> None:
    log.create_table("dirs", "id bigint, p string", partition_by=["p"])
    frame = spark.sql("SELECT id, '__HIVE_DEFAULT_PARTITION__' AS p FROM range(3)")
    store = log.site.store
    try:
        for limit in (1 << 20, -1):
            log.site.store = replace(store, inline_limit_bytes=limit)
            with pytest.raises(InvalidRowsError, match="Spark writes for NULL"):
                log.append("dirs", frame)
    finally:
        log.site.store = store
