"""The Spark job of one site in the demo of the catalog: ordinary SQL on one commit table.

Nothing in it knows of the log: the session names the site's node as the catalog `tx`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo import flights
from examples.demo.flight_files import AIRPORTS
from examples.demo.job_lines import obey, session_settings
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparktxlog.api.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import Column

#: The commit table.
TABLE = "tx.default.flights"
#: The class that Delta commits to; its JAR is given to the demo.
_CONNECTOR = "io.unitycatalog.spark.UCSingleCatalog"
#: What nobody knows before a flight.
_LATER = ("departed_at", "arrived_at", "dep_delay", "arr_delay")


class CatalogJob:
    """A site's Spark session, and its part of the source.

    Args:
        site: Its node id.
        urls: The nodes, its own first.
        source: Directory of its part of the source.
        scale: Part of the year.
        cores: Of Spark.
    """

    def __init__(
        self, site: str, urls: Sequence[str], source: str, scale: float, cores: int
    ) -> None:
        catalog = {
            "spark.sql.catalog.tx": _CONNECTOR,
            "spark.sql.catalog.tx.uri": urls[0],
            "spark.sql.catalog.tx.token": "any",
        }
        self.spark = build_session(
            f"local[{cores}]",
            session_settings(scale) | catalog,
            app_name=f"sparktxlog-demo-catalog-{site}",
        )
        self._airport, self._scale = AIRPORTS[site], scale
        self._flown = self._flights(source).cache()

    def _flights(self, source: str) -> DataFrame:
        path = Path(source) / "flights.parquet"
        return flights.flights_of(self.spark.read.parquet(str(path)), self._scale)

    def prepare(self) -> dict[str, Any]:
        """Read the site's flights."""
        return {"rows": self._flown.count()}

    def create(self) -> dict[str, Any]:
        """Create the table; one site does."""
        columns = flights.FLIGHT_SCHEMA
        self.spark.sql(f"CREATE TABLE {TABLE} ({columns}) USING delta PARTITIONED BY (origin)")
        return {}

    def announce(self, part: int, parts: int) -> dict[str, Any]:
        """INSERT the schedule of a part of the flights."""
        frame = self._part(part, parts)
        types = {name: frame.schema[name].dataType for name in _LATER}
        unknown = {name: F.lit(None).cast(kind) for name, kind in types.items()}
        frame.withColumns(unknown).createOrReplaceTempView("schedule")
        self.spark.sql(f"INSERT INTO {TABLE} SELECT * FROM schedule")
        return {}

    def report(self, part: int, parts: int) -> dict[str, Any]:
        """MERGE what became of a part of the flights."""
        _with_outcome(self._part(part, parts)).createOrReplaceTempView("happened")
        same = " AND ".join(f"t.{key} = s.{key}" for key in flights.FLIGHT_KEYS)
        self.spark.sql(
            f"MERGE INTO {TABLE} AS t USING happened AS s "
            f"ON t.origin = '{self._airport}' AND {same} WHEN MATCHED THEN UPDATE SET *"
        )
        return {}

    def _part(self, part: int, parts: int) -> DataFrame:
        return self._flown.where(F.pmod(F.hash(*flights.FLIGHT_KEYS), F.lit(parts)) == part)

    def compare(self, sources: Sequence[str], begun: Sequence[int], parts: int) -> dict[str, Any]:
        """Count the rows that differ from the source, as this site reads the table.

        Args:
            sources: Directories of all sites' parts of the source.
            begun: Parts that were inserted and merged.
            parts: In how many they were cut.
        """
        whole = reduce(DataFrame.union, map(self._flights, sources))
        number: Column = F.pmod(F.hash(*flights.FLIGHT_KEYS), F.lit(parts))
        expected = _with_outcome(whole.where(number.isin(*begun)))
        found = self.spark.table(TABLE)
        return {
            "rows": found.count(),
            "expected": expected.count(),
            "different": found.exceptAll(expected).count() + expected.exceptAll(found).count(),
        }


def _with_outcome(flown: DataFrame) -> DataFrame:
    outcome = (
        F.when(F.col("departed_at").isNull(), "cancelled")
        .when(F.col("arrived_at").isNull(), "departed")
        .otherwise("arrived")
    )
    return flown.withColumn("status", outcome)


if __name__ == "__main__":
    obey(CatalogJob(**json.loads(sys.argv[1])))
