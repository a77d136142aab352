"""The replicas' tables against plain Spark over the source, which never saw the log.

For the shared table the source does not say which site wrote last.  So the pairs (transaction id,
position) come from the log, and the expected row is the source's row with the highest position.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo.flight_files import AIRPORTS, NULL_TEXT
from examples.demo.flights import (
    AIRCRAFT_KEYS,
    AIRCRAFT_SCHEMA,
    FLIGHT_SCHEMA,
    PLANE_SCHEMA,
    WEATHER_SCHEMA,
    changes_of,
    columns_of,
    flights_of,
    select_schema,
    sightings_of,
    transaction_id_column,
)
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


_SITE = "__site"
_WEIGHT = "__weight"


def compare_with_source(
    spark: SparkSession, source: Path, scale: float, lakes: Mapping[str, str], queue: str
) -> dict[str, Any]:
    """Count the rows of all sites' tables that differ from the source.

    Args:
        source: Directory of the package's CSV files.
        scale: Part of the year.
        lakes: Site → root of its tables.
        queue: Path of a site's queue table.

    Returns:
        `differences`: site → table → rows; `rows`: table → expected rows; `shared_keys`:
        aircraft that several sites wrote.
    """
    of_sites = F.col("origin").isin([AIRPORTS[site] for site in lakes])
    flown = flights_of(read_csv(spark, source / "flights.csv").where(of_sites), scale).cache()
    # If an id was ordered twice, the first one counts: a repeat takes no effect.
    digits = F.replace(F.col("transaction_id"), F.lit("-")).alias("transaction_id")
    ordered = spark.read.format("delta").load(queue).select(digits, "position")
    first = ordered.groupBy("transaction_id").agg(F.min("position").alias("position"))
    weather = select_schema(read_csv(spark, source / "weather.csv"), WEATHER_SCHEMA)
    expected = {
        "flights": expected_flights(flown),
        "aircraft_position": expected_aircraft(flown, first),
        "weather": weather.where(of_sites),
        "planes": select_schema(read_csv(spark, source / "planes.csv"), PLANE_SCHEMA),
    }
    differences: dict[str, dict[str, int]] = {site: {} for site in lakes}
    for table, want in expected.items():
        delta = spark.read.format("delta")
        have = {site: delta.load(f"{lake}/{table}") for site, lake in lakes.items()}
        for site, count in count_differences(have, want.cache()).items():
            differences[site][table] = count
    return {
        "differences": differences,
        "rows": {name: frame.count() for name, frame in expected.items()},
        "shared_keys": shared_keys(flown),
    }


def read_csv(spark: SparkSession, path: Path) -> DataFrame:
    """Read a CSV file of the package: header, types by content."""
    return spark.read.csv(str(path), header=True, inferSchema=True, nullValue=NULL_TEXT)


def expected_flights(flights: DataFrame) -> DataFrame:
    """Return the flights that were not cancelled in their last state, without the change stream."""
    flew = flights.where(F.col("departed_at").isNotNull())
    landed = F.col("arrived_at").isNotNull()
    ended = flew.withColumn("status", F.when(landed, "arrived").otherwise("departed"))
    # A flight that never landed has no delay of arrival.
    ended = ended.withColumn("arr_delay", F.when(landed, F.col("arr_delay")))
    return select_schema(ended, FLIGHT_SCHEMA)


def expected_aircraft(flights: DataFrame, positions: DataFrame) -> DataFrame:
    """Return for each aircraft the sighting whose transaction is last in the queue."""
    site = F.create_map(
        *(F.lit(word) for name, airport in AIRPORTS.items() for word in (airport, name))
    )[F.col("origin")]
    seen = sightings_of(changes_of(flights)).withColumn(
        "transaction_id", transaction_id_column(site, F.col("number"))
    )
    placed = seen.join(positions, "transaction_id", "left")
    last = F.max_by(
        F.struct(*columns_of(AIRCRAFT_SCHEMA)), F.coalesce(F.col("position"), F.lit(-1))
    )
    found = placed.groupBy(*AIRCRAFT_KEYS).agg(last.alias("last")).select("last.*")
    return select_schema(found, AIRCRAFT_SCHEMA)


def shared_keys(flights: DataFrame) -> int:
    """Return how many aircraft were written by more than one site."""
    seen = sightings_of(changes_of(flights)).groupBy(*AIRCRAFT_KEYS)
    return seen.agg(F.count_distinct("origin").alias("sites")).where("sites > 1").count()


def count_differences(have: Mapping[str, DataFrame], want: DataFrame) -> dict[str, int]:
    """Return site → rows that only one side has, with duplicates; one pass over all."""
    names = want.columns
    sites = F.explode(F.array(*(F.lit(site) for site in have)))
    rows = want.select(sites.alias(_SITE), F.lit(-1).alias(_WEIGHT), *names)
    for site, frame in have.items():
        rows = rows.unionAll(frame.select(F.lit(site), F.lit(1), *names))
    # groupBy treats NULL as a value, as a comparison of rows must.
    uneven = rows.groupBy(_SITE, *names).agg(F.abs(F.sum(_WEIGHT)).alias(_WEIGHT))
    found = uneven.where(F.col(_WEIGHT) > 0).groupBy(_SITE).agg(F.sum(_WEIGHT)).collect()
    return dict.fromkeys(have, 0) | {str(row[0]): int(row[1]) for row in found}
