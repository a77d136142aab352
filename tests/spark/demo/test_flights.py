"""The demo's own claims: its change stream, its ids, and a comparison that can fail."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from examples.demo import flight_comparison, flights
from examples.demo.flight_files import (
    AIRPORTS,
    find_package_data,
    unpack_source,
    write_site_part,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

pytestmark = pytest.mark.spark

_HOUR = datetime(2013, 1, 1, 10, 0, tzinfo=UTC)
_SOURCE_SCHEMA = (
    "carrier string, flight int, origin string, time_hour timestamp, minute int, dest string, "
    "tailnum string, dep_time int, dep_delay int, arr_time int, arr_delay int, air_time int, "
    "distance int"
)


def _flight(**change: Any) -> tuple[Any, ...]:
    row = {
        "carrier": "UA",
        "flight": 1,
        "origin": "EWR",
        "time_hour": _HOUR,
        "minute": 15,
        "dest": "IAH",
        "tailnum": "N1",
        "dep_time": 517,
        "dep_delay": 2,
        "arr_time": 830,
        "arr_delay": 11,
        "air_time": 200,
        "distance": 1400,
    }
    return tuple((row | change).values())


@pytest.fixture(scope="module")
def life(spark: SparkSession) -> DataFrame:
    """Return five flights: two that landed, one diverted, one in the air, one cancelled."""
    rows = [
        _flight(),
        _flight(flight=2, air_time=10, tailnum=None),
        _flight(flight=3, origin="JFK", air_time=None, arr_delay=None),
        _flight(flight=4, origin="LGA", arr_time=None, air_time=None),
        _flight(flight=5, dep_time=None, dep_delay=None, arr_time=None, air_time=None),
    ]
    return flights.flights_of(spark.createDataFrame(rows, _SOURCE_SCHEMA), 1.0).cache()


def test_a_flight_is_announced_departs_and_arrives(life: DataFrame) -> None:
    changes = flights.changes_of(life).where("flight = 1").orderBy("at").collect()
    assert [(row.kind, row.at.strftime("%H:%M"), row.status) for row in changes] == [
        ("announce", "04:00", "scheduled"),
        ("depart", "10:17", "departed"),
        ("arrive", "13:37", "arrived"),
    ]
    # Nobody knows a departure or a delay before it happens.
    assert [row.departed_at is None for row in changes] == [True, False, False]
    assert [row.arr_delay for row in changes] == [None, None, 11]
    assert [row.number for row in changes] == sorted(row.number for row in changes)


def test_kinds_follow_from_the_source(life: DataFrame) -> None:
    kinds = flights.changes_of(life).groupBy("kind").count().collect()
    assert {row["kind"]: row["count"] for row in kinds} == {
        "announce": 5,
        "depart": 4,
        "arrive": 3,
        "cancel": 1,
    }


def test_an_upsert_names_a_key_once_in_a_transaction(life: DataFrame) -> None:
    """Flight 2 is in the air for ten minutes: it departs and lands in one transaction."""
    moved = flights.site_operations(flights.changes_of(life))["moved"]
    assert moved.groupBy("number", *flights.FLIGHT_KEYS).count().where("count > 1").count() == 0
    assert [row.status for row in moved.where("flight = 2").collect()] == ["arrived"]


def test_an_id_follows_from_site_and_number(spark: SparkSession) -> None:
    """A repeated demo repeats its transactions, and no two sites share one."""
    id_of = flights.transaction_id_column
    row = spark.range(1).select(id_of(F.lit("B"), F.lit(81)), id_of(F.lit("A"), F.lit(81))).first()
    assert row is not None
    assert row[0] == _id("B", 81)
    assert row[1] == _id("A", 81) != row[0]


def _id(site: str, number: int) -> str:
    return hashlib.sha256(f"sparktxlog demo/{site}/{number}".encode()).hexdigest()[:32]


def test_the_expected_flights_are_what_the_changes_lead_to(life: DataFrame) -> None:
    """Two ways to one state: folding the change stream, and reading the source's last word."""
    changes = flights.changes_of(life)
    rest = [name for name in changes.columns if name not in flights.FLIGHT_KEYS]
    last = F.max_by(F.struct(*rest), F.struct("at", F.col("kind") != "announce"))
    folded = changes.groupBy(*flights.FLIGHT_KEYS).agg(last.alias("last"))
    folded = folded.select(*flights.FLIGHT_KEYS, "last.*").where("kind != 'cancel'")
    have = {"A": flights.select_schema(folded, flights.FLIGHT_SCHEMA)}
    assert flight_comparison.count_differences(have, flight_comparison.expected_flights(life)) == {
        "A": 0
    }


def test_the_sighting_with_the_highest_position_is_expected(
    spark: SparkSession, life: DataFrame
) -> None:
    """Who wrote last is decided by the queue, not by the time of the flight."""
    seen = flights.sightings_of(flights.changes_of(life)).select("origin", "number").distinct()
    ids = [
        (
            _id({v: k for k, v in AIRPORTS.items()}[row.origin], row.number),
            900 if row.origin == "EWR" and row.number == min_number else index,
        )
        for min_number in [min(r.number for r in seen.where("origin = 'EWR'").collect())]
        for index, row in enumerate(seen.collect(), start=1)
    ]
    positions = spark.createDataFrame(ids, "transaction_id string, position bigint")
    found = flight_comparison.expected_aircraft(life, positions).collect()
    assert [(row.tailnum, row.origin, row.status, row.airport) for row in found] == [
        ("N1", "EWR", "departed", "EWR")
    ]
    assert flight_comparison.shared_keys(life) == 1


@pytest.mark.parametrize(
    ("have", "count"),
    [
        ([(1, "a"), (2, None)], 0),
        ([(2, None), (1, "a")], 0),
        ([(1, "a")], 1),
        ([(1, "a"), (2, "")], 2),
        ([(1, "a"), (2, None), (2, None)], 1),
        ([], 2),
    ],
)
def test_every_difference_is_counted(
    spark: SparkSession, have: list[tuple[Any, ...]], count: int
) -> None:
    schema = "k int, v string"
    want = spark.createDataFrame([(1, "a"), (2, None)], schema)
    frames = {"A": want, "B": spark.createDataFrame(have, schema)}
    assert flight_comparison.count_differences(frames, want) == {"A": 0, "B": count}


def test_the_sites_parts_are_the_whole_source(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each site gets its airport's rows, NULLs as NULLs, and together they are the source."""
    assert find_package_data().is_dir()
    root = tmp_path_factory.mktemp("flights")
    source = unpack_source(root / "csv")
    for site in AIRPORTS:
        write_site_part(source, site, root / site)
    whole = flight_comparison.read_csv(spark, source / "flights.csv")
    parts = spark.read.parquet(*(str(root / site / "flights.parquet") for site in AIRPORTS))
    assert parts.count() == whole.count() == 336_776
    for name in ("dep_time", "tailnum", "air_time"):
        nulls = [frame.where(F.col(name).isNull()).count() for frame in (parts, whole)]
        assert nulls[0] == nulls[1] > 0
    origins = spark.read.parquet(str(root / "B" / "flights.parquet")).select("origin").distinct()
    assert [row.origin for row in origins.collect()] == ["JFK"]
    assert (root / "A" / "planes.parquet").exists()
    assert not (root / "B" / "planes.parquet").exists()
