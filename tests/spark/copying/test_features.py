"""Tables with features of Delta copied fresh and as a swap, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.copying.donor import CopyLog, FolderFetcher, lease, offer
from tests.support.worker_log import LogBuilder, table

from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.state import ReplicaDirectory

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PART_SIZE = "spark.databricks.delta.checkpoint.partSize"
MAPPED = (
    "'delta.columnMapping.mode'='name', 'delta.checkpointPolicy'='v2', "
    "'delta.checkpointInterval'='2', 'delta.enableChangeDataFeed'='true'"
)
#: Table → properties, statements that make it, and those that change it after the first copy.
TABLES: dict[str, tuple[str, list[str], list[str]]] = {
    "vectors": (
        "'delta.enableDeletionVectors'='true'",
        ["INSERT INTO {t} SELECT id, concat('x', id) FROM range(10)"],
        ["DELETE FROM {t} WHERE id = 4"],
    ),
    "mapped": (
        MAPPED,
        ["ALTER TABLE {t} RENAME COLUMN v TO w", "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')"],
        ["UPDATE {t} SET w = 'c' WHERE id = 2"],
    ),
    "parted": (
        "'delta.checkpointInterval'='2'",
        ["INSERT INTO {t} VALUES (1, 'a b/%=é'), (2, NULL), (3, 'x:y')"] * 2,
        ["INSERT INTO {t} VALUES (4, 'a b/%=é'), (5, '#?')"],
    ),
}


@dataclass
class Donor:
    """A lake whose tables nobody's log made, and a target."""

    spark: SparkSession
    root: Path
    definitions: dict[str, Any]

    def run(self, statements: list[str], name: str) -> None:
        for statement in statements:
            self.spark.sql(statement.format(t=f"delta.`{self.root / 'donor' / name}`"))

    def copy(
        self, position: int, target: str, names: Iterable[str] = TABLES, **options: Any
    ) -> ApplyOutcome:
        """Copy tables as they are now."""
        offers = []
        for name in names:
            definition = self.definitions[name]
            path = self.root / "donor" / name
            version = newest(path)
            frame = self.spark.read.format("delta").load(str(path))
            offers.append(offer(path, definition, version, signature_of(frame, definition)))
        empty = LogBuilder(self.root)
        source = CopyLog(empty, self.root / target, self.root / "donor")
        source.lease = lease(offers, position)
        with closing(ReplicaDirectory(source.lake)) as directory:
            return Applier(
                self.spark,
                source,
                directory,
                copies=CopyOptions(forced=True, **options),
                open_fetcher=lambda lake, copy_id: FolderFetcher(source.donor, lake, copy_id),
            ).catch_up()

    def check(self, target: str) -> None:
        for name in self.definitions:
            frames = [
                self.spark.read.format("delta").load(str(self.root / lake / name)).collect()
                for lake in ("donor", target)
            ]
            assert sorted(map(repr, frames[0])) == sorted(map(repr, frames[1])), name


def newest(path: Path) -> int:
    """Return a table's newest version; checkpoints of version 2 end in .json as well."""
    log = path / "_delta_log"
    return max(int(file.stem) for file in log.glob("*.json") if file.stem.isdigit())


@pytest.fixture(scope="module")
def donor(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Donor]:
    root = tmp_path_factory.mktemp("features")
    column = {"mapped": "w"}
    definitions = {
        name: table(name, f"id bigint, {column.get(name, 'v')} string") for name in TABLES
    }
    made = Donor(spark, root, definitions)
    spark.conf.set(PART_SIZE, "3")
    for name, (properties, statements, _) in TABLES.items():
        parts = "PARTITIONED BY (v)" if name == "parted" else ""
        create = f"CREATE TABLE {{t}} (id BIGINT, v STRING) USING delta {parts} "
        made.run([f"{create} TBLPROPERTIES ({properties})", *statements], name)
    yield made
    spark.conf.unset(PART_SIZE)


@pytest.mark.thorough
def test_tables_with_features_are_copied_fresh_and_swapped(donor: Donor) -> None:
    logs = {name: donor.root / "donor" / name / "_delta_log" for name in TABLES}
    assert list(logs["mapped"].glob("*.checkpoint.*-*.*")), "a checkpoint of version 2"
    assert list(logs["parted"].glob("*.checkpoint.0000000002.*.parquet")), "one of several parts"
    first = donor.copy(5, "target")
    assert set(first.copies[0].tables.values()) == {"rename"}
    donor.check("target")
    before = newest(donor.root / "target" / "mapped")
    for name, (_, _, changes) in TABLES.items():
        donor.run(changes, name)
    second = donor.copy(6, "target")
    assert set(second.copies[0].tables.values()) == {"commit"}
    donor.check("target")
    # One commit each; the table stays the table it was, and old versions stay readable.
    assert newest(donor.root / "target" / "mapped") == before + 1
    old = donor.spark.read.format("delta").option("versionAsOf", before)
    found = old.load(str(donor.root / "target" / "mapped")).collect()
    assert sorted(tuple(row) for row in found) == [(1, "a"), (2, "b")]
    whole = donor.copy(6, "whole", ("vectors", "mapped"), history=True)
    assert set(whole.copies[0].tables.values()) == {"rename"}
    old = donor.spark.read.format("delta").option("versionAsOf", 1)
    assert old.load(str(donor.root / "whole" / "vectors")).count() == 10
    changes = donor.spark.read.format("delta").option("readChangeFeed", "true")
    changes = changes.option("startingVersion", 3).load(str(donor.root / "whole" / "mapped"))
    assert changes.where("_change_type = 'update_postimage'").count() == 1
