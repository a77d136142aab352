"""The normal form of a predicate means to Spark what the predicate says."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparktxlog.codec.predicate import normalise

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("Name", pa.string()),
        ("active", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("place", pa.struct([("city", pa.string())])),
    ]
)
MOMENT = datetime(2024, 1, 31, 10, 0, 0, 500_000)
ROWS = [
    (1, "a'b", True, Decimal("1.50"), 0.5, date(2024, 1, 31), MOMENT, MOMENT, b"\x00\xff", "Bonn"),
    (
        2,
        "50%\\\n",
        False,
        Decimal("-1.00"),
        float("nan"),
        date(1, 1, 1),
        MOMENT,
        MOMENT,
        b"",
        "Köln",
    ),
    (3 << 40, "Ä", None, None, float("inf"), None, None, None, None, None),
]
DDL = (
    "id bigint, Name string, active boolean, price decimal(10,2), x double, day date, "
    "at timestamp, local timestamp_ntz, raw binary, place struct<city: string>"
)
#: Predicate → ids of the rows for which it is true.
CASES = {
    "id = 1": {1},
    "id <=> 3298534883328": {3},
    "id > 99999999999999999999": set(),
    "id between 1 and 2 and not active": {2},
    "id not in (1, 2)": {3},
    "active": {1},
    "active is null or active": {1, 3},
    "name = 'a''b'": {1},
    r"name = '50%\\\n'": {2},
    r"name like '50\%%'": {2},
    r"name like '50\%\\\\%'": {2},
    "name like 'a''%'": {1},
    "name not like 'a%'": {2, 3},
    "name like '%'": {1, 2, 3},
    r"name = '\u00c4'": {3},
    "price >= 1.5": {1},
    "price < 0.001": {2},
    "price = 1.500": {1},
    "x > 1e300": {2, 3},
    "x = .5": {1},
    "x > -1.5E-10 and x <= 0.5": {1},
    "day = '2024-01-31'": {1},
    "day < date '0001-01-02'": {2},
    "at = '2024-01-31T11:00:00.5+01:00'": {1, 2},
    "at > timestamp '2024-01-31 10:00:00.499999'": {1, 2},
    "at >= '2024-01-31 10:00:00.500001'": set(),
    "local = '2024-01-31T10:00:00.500'": {1, 2},
    "raw = x'00FF'": {1},
    "place.city = 'Köln'": {2},
    "raw is not null": {1, 2},
    "true": {1, 2, 3},
}


def test_spark_agrees(spark: SparkSession) -> None:
    rows = [(*row[:6], row[6] and row[6].replace(tzinfo=UTC), *row[7:9], (row[9],)) for row in ROWS]
    spark.createDataFrame(rows, DDL).createOrReplaceTempView("predicates")
    columns = ", ".join(
        f"({normalise(predicate, SCHEMA)}) AS c{index}" for index, predicate in enumerate(CASES)
    )
    found = spark.sql(f"SELECT id, {columns} FROM predicates ORDER BY id").collect()
    for index, (predicate, wanted) in enumerate(CASES.items()):
        true = {place for place, row in enumerate(found, start=1) if row[f"c{index}"] is True}
        assert true == wanted, predicate
