"""Tables with renamed, dropped and widened columns are repaired, kept, moved and copied."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.spark.copying.donor import CopyLog, FolderFetcher
from tests.support.worker_log import LogBuilder, MemoryLog, table

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.model.copying import Decision
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column
from sparktxlog.worker.apply import steps
from sparktxlog.worker.apply.altering import alter_table
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.copy.copy_terms import CopyOptions, CopyOutcome
from sparktxlog.worker.repair.repairing import RepairOutcome, RepairWay
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaTable, read_state
from sparktxlog.worker.tables.row_upkeep import maintain_replica
from sparktxlog.worker.tables.table_upkeep import Upkeep
from sparktxlog.worker.verify.verify import recount_tables, verify_replica

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]

ORDERS = table(
    "orders",
    "id bigint, day date, item string, n int, note string",
    keys=["id"],
    partition_by=["day"],
    deletion_vectors=True,
)
DAY = date(2026, 1, 1)
#: Names of the lakes, by what the log had done to the table.
STAGES = ("early", "renamed", "widened")


class Site(MemoryLog):
    """A log whose node has no donor."""

    def plan(self, worker_id: str) -> Decision:
        return Decision(worker_id=worker_id, plan="stop", reason="no healthy donor")


def _claimed(spark: SparkSession, log: LogBuilder, rows: list[tuple[Any, ...]]) -> None:
    """Append staged rows with the claim of an honest submitter."""
    definition = log.tables["orders"]
    schema = ", ".join(f"{c.name} {c.type}" for c in definition.columns)
    claim = signature_of(spark.createDataFrame(rows, schema), definition).to_text()
    log.staged("append", "orders", rows, claim=claim)


@dataclass(frozen=True)
class World:
    """One log, and a replica of it at the end of each stage."""

    spark: SparkSession
    root: Path
    log: LogBuilder

    def lake(self, stage: str, copy: str) -> Path:
        """Return a copy of a stage's replica."""
        target = self.root / copy
        shutil.copytree(self.root / stage, target, ignore=shutil.ignore_patterns("lock*"))
        return target

    def apply(self, lake: Path) -> dict[str, str]:
        """Apply the rest of the log; return what stands still."""
        with closing(ReplicaDirectory(lake)) as directory:
            return Applier(self.spark, Site(self.log, lake), directory).run_once().diverged

    def repair(self, lake: Path) -> RepairOutcome:
        with closing(ReplicaDirectory(lake)) as directory:
            return Applier(self.spark, Site(self.log, lake), directory).repair(
                "orders", local=False
            )

    def copy(self, donor: Path, lake: Path) -> CopyOutcome:
        with closing(ReplicaDirectory(lake)) as directory:
            (outcome,) = (
                Applier(
                    self.spark,
                    CopyLog(self.log, lake, donor),
                    directory,
                    copies=CopyOptions(forced=True),
                    open_fetcher=lambda lake, copy_id: FolderFetcher(donor, lake, copy_id),
                )
                .catch_up()
                .copies
            )
        return outcome

    def sql(self, lake: Path, statement: str) -> None:
        """Do to a table what no log does."""
        self.spark.newSession().sql(statement.format(t=f"delta.`{lake / 'orders'}`"))

    def check(self, lake: Path) -> None:
        """The replica is what the log leads to: rows and all that is recorded.

        A full scan of these rows counted what is recorded; see the fixture `world`.
        """
        assert recorded(lake) == recorded(self.root / STAGES[-1])
        assert self.rows_of(lake) == self.rows

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows that the log leads to."""
        return self.rows_of(self.root / STAGES[-1])

    def rows_of(self, lake: Path) -> list[tuple[Any, ...]]:
        found = self.spark.read.format("delta").load(str(lake / "orders")).collect()
        return sorted(map(tuple, found))


def recorded(lake: Path) -> dict[str, ReplicaTable]:
    """Return a replica's tables without their versions in Delta."""
    state = read_state(lake)
    assert state is not None and state.pending is None and not state.diverged
    return {
        name: ReplicaTable(definition=found.definition, version=0, signature=found.signature)
        for name, found in state.tables.items()
    }


def quarantined(spark: SparkSession, lake: Path) -> list[dict[str, Any]]:
    """Return the rows that were put into the attic."""
    (kept,) = Attic.of_lake(lake).entries(Kind.ROWS)
    rows = spark.read.format("delta").load(str(kept.path)).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: row["id"])


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Make the log, and apply it stage by stage."""
    root = tmp_path_factory.mktemp("changed")
    log = LogBuilder(root)
    here = World(spark, root, log)
    log.transaction().create(ORDERS)
    _claimed(spark, log, [(i, DAY if i % 2 else None, f"i{i}", i, "old") for i in range(8)])
    log.transaction().inline("upsert", "orders", [(1, DAY, "one", 10, "old")])
    log.publish()
    here.apply(root / "lake")
    here.lake("lake", "early")
    log.transaction().alter(
        "orders",
        TableChange(rename=(("item", "title"), ("day", "on")), drop=("note",)),
    )
    _claimed(spark, log, [(i, DAY, f"i{i}", i) for i in range(10, 14)])
    log.publish()
    log.transaction().inline("upsert", "orders", [(2, DAY, "two", 20)])
    log.publish()
    here.apply(root / "lake")
    here.lake("lake", "renamed")
    log.transaction().alter(
        "orders",
        TableChange(widen=(("n", "bigint"),), add=(Column(name="note", type="string"),)),
    )
    _claimed(spark, log, [(i, None, f"i{i}", i << 33, "new") for i in range(20, 24)])
    log.publish()
    log.transaction().delete_where("orders", "n = 12 or title = 'i4'", lambda row: False)
    log.inline("upsert", "orders", [(3, DAY, "three", 1 << 40, "new")])
    log.publish()
    here.apply(root / "lake")
    here.lake("lake", "widened")
    assert recount_tables(spark, root / "widened") == {}
    assert [row[0] for row in here.rows] == [*range(4), *range(5, 8), 10, 11, 13, *range(20, 24)]
    return here


@pytest.mark.parametrize(
    "after", [pytest.param("position", marks=pytest.mark.repeated), "widening"]
)
def test_a_table_that_stood_still_is_brought_through_the_changes(
    world: World, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Somebody wrote to it before the batch, or between two of its commits."""
    lake = world.lake("early", f"still-{after}")

    def eve(item: str) -> None:
        world.sql(lake, f"INSERT INTO {{t}} (id, {item}) VALUES (77, 'eve')")

    def followed(*arguments: Any) -> None:
        alter_table(*arguments)
        change: TableChange = arguments[3]
        if change.widen and after == "widening":
            eve("title")

    if after == "position":
        eve("item")
    with monkeypatch.context() as patched:
        patched.setattr(steps, "alter_table", followed)
        assert list(world.apply(lake)) == ["orders"]
    outcome = world.repair(lake)
    assert (outcome.found.way, outcome.found.position) == (RepairWay.RESTORE, 2)
    assert outcome.replayed == world.log.position - 2
    world.check(lake)
    assert "eve" in str(quarantined(world.spark, lake))
    assert world.repair(lake).found.way is RepairWay.NOTHING


@pytest.mark.parametrize(
    ("foreign", "kept"),
    [
        pytest.param(
            "ALTER TABLE {t} RENAME COLUMN title TO item", [77], marks=pytest.mark.repeated
        ),
        # What a row had in the column is gone, so it counts as changed.
        ("ALTER TABLE {t} DROP COLUMN note", [3, 20, 22, 23, 77]),
    ],
    ids=["rename", "drop"],
)
def test_what_others_did_to_a_changed_table_is_undone(
    world: World, foreign: str, kept: list[int]
) -> None:
    lake = world.lake("widened", f"others-{foreign.split()[3]}")
    world.sql(lake, "INSERT INTO {t} VALUES (77, NULL, 'eve', 7, 'mine')")
    world.sql(lake, foreign)
    world.sql(lake, "DELETE FROM {t} WHERE id = 21")
    outcome = world.repair(lake)
    assert (outcome.done, outcome.found.way) == (True, RepairWay.RESTORE)
    world.check(lake)
    assert [row["id"] for row in quarantined(world.spark, lake)] == kept


def test_a_changed_table_is_built_anew_from_the_log(world: World) -> None:
    lake = world.lake("widened", "anew")
    shutil.rmtree(lake / "orders")
    world.sql(lake, "CREATE TABLE {t} (id bigint) USING delta")
    outcome = world.repair(lake)
    assert (outcome.found.way, outcome.replayed) == (RepairWay.REBUILD, world.log.position)
    world.check(lake)


def test_a_changed_table_is_maintained_and_goes_on(world: World) -> None:
    session = world.spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for stage in ("renamed", "widened"):
        lake = world.lake(stage, f"kept-{stage}")
        (done,) = maintain_replica(world.spark, lake, Upkeep(many_files=1))
        assert (done.failed, done.optimized, done.vacuumed) == ("", True, "full")
        DeltaTable(lake / "orders").create_checkpoint()
        # As after a week without a transaction.
        session.sql(f"VACUUM delta.`{lake / 'orders'}` RETAIN 0 HOURS").collect()
        assert recount_tables(world.spark, lake) == {}
        world.apply(lake)
        world.check(lake)


def test_an_image_of_a_changed_table_is_restored_and_goes_on(world: World) -> None:
    store = DiskImages(world.root / "images")
    for stage in ("renamed", "widened"):
        lake = world.lake(stage, f"imaged-{stage}")
        if stage == "renamed":
            DeltaTable(lake / "orders").create_checkpoint()
        image = back_up_replica(lake, store, name=stage).image
        assert any(file.path.endswith(".bin") for file in image.tables["orders"].files)
        back = world.root / f"restored-{stage}"
        restore_replica(store, store.image(stage), back)
        assert recount_tables(world.spark, back) == {}
        world.apply(back)
        world.check(back)


@pytest.mark.parametrize(
    ("stage", "way", "kept"),
    [
        pytest.param("early", "rename", [2, 3, 4, 77], marks=pytest.mark.repeated),
        ("widened", "commit", [77]),
    ],
)
def test_a_changed_table_is_copied_over_an_older_and_a_foreign_one(
    world: World, stage: str, way: str, kept: list[int]
) -> None:
    lake = world.lake(stage, f"copied-{stage}")
    world.sql(lake, "INSERT INTO {t} (id, n) VALUES (77, 7)")
    outcome = world.copy(world.root / "widened", lake)
    assert outcome.tables == {"orders": way}
    world.check(lake)
    # Rows that the log changed since, and the foreign one; no other, whatever its hash was.
    assert [row["id"] for row in quarantined(world.spark, lake)] == kept


def test_a_recount_blames_no_claim_of_an_older_schema(world: World) -> None:
    lake = world.lake("widened", "recounted")
    assert verify_replica(world.spark, Site(world.log, lake), lake).sound
    world.sql(lake, "DELETE FROM {t} WHERE id = 0")
    state = read_state(lake)
    assert state is not None
    table = state.tables["orders"]
    wrong = replace(state, tables={"orders": replace(table, version=table.version + 1)})
    with closing(ReplicaDirectory(lake)) as directory:
        directory.save(wrong)
    (told,) = verify_replica(world.spark, Site(world.log, lake), lake).tables
    assert told.counted != told.recorded and told.causes == ()
