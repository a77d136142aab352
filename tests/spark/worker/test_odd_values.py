"""A predicate removes the same rows of whatever files, and in whatever batches they come.

Every case has files of its own, so that whatever a reader may skip is exactly what would be lost:
files of Arrow as anybody writes them, and of Spark.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.worker.test_apply import apply
from tests.spark.worker.test_repair import Site, worker
from tests.support.table_rows import rows_of
from tests.support.worker_log import LogBuilder, Row, expected, rows_table, table

from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.codec.predicate import normalise
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.parquet_files import inspect_parquet, write_parquet
from sparktxlog.worker.apply import worker_session
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.repair.repairing import RepairWay
from sparktxlog.worker.replica.state import read_state
from sparktxlog.worker.tables.row_upkeep import maintain_replica
from sparktxlog.worker.tables.table_upkeep import Upkeep
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = pytest.mark.spark

NAN, INF = math.nan, math.inf
Test = Callable[[float], bool]
#: Values of a file.
FILES: list[list[float | None]] = [[1.0, NAN, None], [-0.0, -0.0], [0.0], [INF, -INF, 2.0]]
#: Of those Spark writes files, too: its bounds tell of NaN, its dictionaries tell zeros apart.
ZEROS = FILES[1:3]
#: Predicate of `f` → what SQL says of a number: NaN is greater than all, -0.0 is 0.0.
CASES: dict[str, Test] = {
    "f > 5.0": lambda f: f > 5 or math.isnan(f),
    "f < 5.0": lambda f: f < 5,
    "f = 0.0": lambda f: f == 0,
    "f >= 0.0": lambda f: f >= 0 or math.isnan(f),
    "f <= -0.0D": lambda f: f <= 0,
    "f <> 1.0": lambda f: f != 1,
    "f <=> 0.0": lambda f: f == 0,
    "NOT (f <= 2.0)": lambda f: f > 2 or math.isnan(f),
    "NOT (f < 0.0 OR f > 0.0)": lambda f: f == 0,
    "f IN (0.0, 7.0)": lambda f: f == 0,
    "f NOT IN (1.0, 2.0)": lambda f: f not in (1, 2),
    f"f IN ({', '.join(f'{n}.0D' for n in range(20))})": lambda f: f in (0, 1, 2),
    "f BETWEEN 0.0 AND 0.5": lambda f: f == 0,
    "f NOT BETWEEN -1e300 AND 1e300": lambda f: not abs(f) <= 1e300,
    "f = 7.0 OR f > 1.7976931348623157e308": lambda f: f == INF or math.isnan(f),
    "f < -1.7976931348623157e308": lambda f: f == -INF,
    "p.g > 5.0": lambda f: f > 5 or math.isnan(f),
    "p.g = 0": lambda f: f == 0,
    "p.g NOT IN (1.0, 2.0)": lambda f: f not in (1, 2),
}
ODD = table(
    "odd", "case int, id bigint, f double, p struct<g: float>, q array<double>", keys=["id"]
)
Write = Callable[[pa.Table, Path], object]


def case_rows(first: int, files: list[list[float | None]]) -> list[list[Row]]:
    """Return the rows of each file, with ids from the first one."""
    number = itertools.count(first)
    return [
        [(case, next(number), f, {"g": f}, [f, f]) for f in values]
        for case in range(len(CASES))
        for values in files
    ]


def by_arrow(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, write_page_index=True)


def by_log(rows: pa.Table, path: Path) -> None:
    path.write_bytes(write_parquet(rows))


def staged(root: Path, folder: str, rows: list[list[Row]], write: Write) -> list[StagedFile]:
    """Write files of rows, each as a submitter stages it and a node takes it."""
    (root / folder).mkdir(parents=True)
    found = []
    for number, part in enumerate(rows):
        path = root / folder / f"{number}.parquet"
        write(rows_table(ODD, part), path)
        found.append(taken(root, path))
    return found


def taken(root: Path, path: Path) -> StagedFile:
    facts = inspect_parquet(path, lambda schema: None)
    return StagedFile(
        path=path.relative_to(root).as_posix(),
        size_bytes=facts.size_bytes,
        rows=facts.rows,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        stats=facts.stats,
    )


def by_spark(
    spark: SparkSession, root: Path, folder: str, rows: list[list[Row]]
) -> list[StagedFile]:
    """Let Spark write a file of each part, with the dictionaries that it likes."""
    flat = [(number, *row) for number, part in enumerate(rows) for row in part]
    schema = "part int, case int, id bigint, f double, p struct<g: float>, q array<double>"
    frame = spark.createDataFrame(flat, schema).coalesce(1)
    frame.write.partitionBy("part").parquet(str(root / folder))
    return [taken(root, path) for path in sorted((root / folder).rglob("*.parquet"))]


def says(case: int, test: Test) -> Callable[[Row], bool]:
    return lambda row: row[0] == case and row[2] is not None and test(row[2])


def odd_log(spark: SparkSession, root: Path, *, deletion_vectors: bool) -> LogBuilder:
    """Return a log of three segments: rows of all files, all predicates, an upsert and one more."""
    log = LogBuilder(root)
    log.transaction().create(replace(ODD, deletion_vectors=deletion_vectors))
    of_arrow, of_spark = case_rows(1_000, FILES), case_rows(2_000, ZEROS)
    for rows, files in (
        (of_arrow, staged(log.payloads, "arrow", of_arrow, by_arrow)),
        (of_spark, by_spark(spark, log.payloads, "spark", of_spark)),
    ):
        listed = [row for part in rows for row in part]
        log.transaction().staged("append", "odd", listed, given=files)
    log.publish()
    schema = arrow_schema(ODD)
    for case, (predicate, test) in enumerate(CASES.items()):
        whole = normalise(f"case = {case} AND ({predicate})", schema)
        log.transaction().delete_where("odd", whole, says(case, test))
    log.publish()
    some: list[Row] = [
        (100, 1_000 * n, f, {"g": f}, []) for n, f in enumerate((NAN, -0.0, 0.0, None, INF))
    ]
    log.transaction().staged("upsert", "odd", some)
    least = normalise("case = 100 AND f <= 0", schema)
    log.transaction().delete_where("odd", least, says(100, lambda f: f <= 0))
    log.publish()
    return log


def apply_cut(spark: SparkSession, log: LogBuilder, lake: Path, cuts: list[int]) -> None:
    """Apply a log in batches that end after so many segments; compact the table between them."""
    segments = log.segments
    try:
        for number in [*cuts, len(segments)]:
            log.segments = segments[:number]
            apply(spark, log, lake)
            if number in cuts[1:]:
                (done,) = maintain_replica(spark, lake, Upkeep(vacuum=False, many_files=2))
                assert done.optimized and not done.failed
    finally:
        log.segments = segments


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cuts", "deletion_vectors"), [([1, 2], False), ([1], False), ([1, 2], True), ([1], True)]
)
def test_a_predicate_removes_the_same_rows_in_whatever_files_and_batches(
    spark: SparkSession, tmp_path: Path, cuts: list[int], deletion_vectors: bool
) -> None:
    log = odd_log(spark, tmp_path, deletion_vectors=deletion_vectors)
    right, found = plain(expected(log, "odd")), set()
    assert 0 < len(right) < sum(len(operation.rows) for operation in log.operations)
    for ends in ([], cuts):
        lake = tmp_path / f"lake-{len(ends)}"
        apply_cut(spark, log, lake, ends)
        assert plain(rows_of(spark, lake / "odd")) == right, ends
        state = read_state(lake)
        assert state is not None
        counted = signature_of(spark.read.format("delta").load(str(lake / "odd")), ODD)
        assert state.tables["odd"].signature == counted, ends
        found.add(counted)
    assert len(found) == 1


def test_a_table_that_an_older_release_left_wrong_is_built_again_from_the_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder(tmp_path)
    site = Site(log, tmp_path / "lake")
    log.transaction().create(ODD)
    rows: list[Row] = [(0, number, f, None, None) for number, f in enumerate([1.0, NAN])]
    log.transaction().staged("append", "odd", rows)
    log.publish()
    apply(spark, log, site.lake)
    predicate = normalise("f > 5.0", arrow_schema(ODD))
    log.transaction().delete_where("odd", predicate, lambda row: math.isnan(row[2]))
    log.publish()
    with monkeypatch.context() as older:
        older.setitem(worker_session.SESSION_SETTINGS, "spark.sql.parquet.filterPushdown", "true")
        apply(spark, log, site.lake)
    # Its own record says so, too: only other sites know better.
    assert len(rows_of(spark, site.lake / "odd")) == 2
    assert recount_tables(spark, site.lake) == {}
    (site.lake / "odd").rename(tmp_path / "aside")
    with worker(spark, site) as applier:
        outcome = applier.repair("odd", local=True)
    assert outcome.found.way is RepairWay.REBUILD
    assert plain(rows_of(spark, site.lake / "odd")) == plain(expected(log, "odd"))


def test_readers_find_the_same_rows_in_the_files_of_the_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = case_rows(0, FILES)
    staged(tmp_path, "log", rows, by_log)
    whole = " OR ".join(f"(case = {case} AND ({one}))" for case, one in enumerate(CASES))
    frame = spark.read.parquet(str(tmp_path / "log")).where(normalise(whole, arrow_schema(ODD)))
    tests = [says(case, test) for case, test in enumerate(CASES.values())]
    right = [row for part in rows for row in part if any(test(row) for test in tests)]
    assert plain([tuple(row) for row in frame.collect()]) == plain(right)


def plain(rows: list[Row]) -> list[Row]:
    """Return rows such that odd numbers compare: case, id, and how the number looks."""
    return sorted((row[0], row[1], repr(row[2])) for row in rows)


#: Settings of a job that would change what a predicate says.
STRANGE = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}


@pytest.fixture
def strange(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose JVM was started with strange settings, as far as new sessions can tell."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    before = {name: conf.get(name, "") for name in STRANGE}
    for name, value in STRANGE.items():
        conf.set(name, value)
    yield spark
    for name, value in before.items():
        if value:
            conf.set(name, value)
        else:
            conf.remove(name)


def test_settings_of_the_job_do_not_change_what_a_predicate_says(strange: SparkSession) -> None:
    assert strange.newSession().conf.get("spark.sql.parser.escapedStringLiterals") == "true"
    session = applier_session(strange)
    schema = pa.schema([("Text", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    # Spark would put the site's environment in place of the first one.
    texts = ["${env:PATH}", "$${x}", "a\\b'c", "\u00e9\n", "${spark.app.name}"]
    rows = session.createDataFrame([(text,) for text in texts], "Text string")
    rows = rows.withColumn("at", F.timestamp_seconds(F.lit(1_577_836_800)))
    for text in texts:
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
        said = normalise(f"text = '{escaped}' AND at = '2020-01-01 00:00:00'", schema)
        assert [row[0] for row in rows.where(said).collect()] == [text]
    assert rows.select(F.lit("2020-01-01").cast("timestamp")).dtypes[0][1] == "timestamp"
    assert session.conf.get("spark.sql.files.ignoreMissingFiles") == "false"
    assert session.conf.get("spark.sql.legacy.exponentLiteralAsDecimal.enabled") == "false"
