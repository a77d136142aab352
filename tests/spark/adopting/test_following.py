"""A Delta table that one site's jobs write directly is followed: each version is a transaction."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import Row, SparkSession
from tests.spark.adopting.sites import TwoSites
from tests.support.command_line import invoke

from sparktxlog.api.adopting import table_follower
from sparktxlog.api.adopting.table_follower import FollowedVersion, TableFollower
from sparktxlog.errors import (
    DivergedError,
    ExpiredError,
    InvalidRequestError,
    SchemaMismatchError,
)

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]


MERGE = (
    "MERGE INTO {t} AS t USING (SELECT id FROM range(5, 12)) AS s ON t.id = s.id "
    "WHEN MATCHED AND s.id = 5 THEN DELETE WHEN MATCHED THEN UPDATE SET v = NULL "
    "WHEN NOT MATCHED THEN INSERT (id, p) VALUES (s.id, 'p1')"
)


def made(spark: SparkSession, path: Path, rest: str = "") -> str:
    """Make a table of eight rows, and return its name in SQL."""
    table = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, p STRING, v MAP<STRING, DOUBLE>) USING delta {rest}"
    )
    spark.sql(f"INSERT INTO {table} SELECT id, concat('p', id % 2), map('a', id) FROM range(8)")
    return table


def became(brought: list[FollowedVersion]) -> list[tuple[int, str]]:
    return [(one.version, one.became.split(",")[0]) for one in brought]


def check_equal(spark: SparkSession, sites: TwoSites, name: str, table: str) -> None:
    """Compare both sites with the followed table."""

    def rows(found: list[Row]) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in found), key=str)

    at_a, at_b = sites.signatures(name)
    assert at_a == at_b
    assert rows(sites.b.table(name).collect()) == rows(spark.table(table).collect())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(
            "PARTITIONED BY (p) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
            id="vectors",
        ),
        pytest.param(
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
            id="files",
            marks=pytest.mark.repeated,
        ),
        pytest.param("TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')", id="feed"),
    ],
)
def test_all_that_jobs_do(
    spark: SparkSession, sites: TwoSites, tmp_path: Path, properties: str
) -> None:
    name = f"all_{len(properties)}"
    table = made(spark, tmp_path / "t", properties)
    follower = TableFollower(sites.a, name, str(tmp_path / "t"), keys=["id"])
    assert became(follower.step()) == [(1, "8 rows")]
    check_equal(spark, sites, name, table)
    for statement in (
        f"INSERT INTO {table} VALUES (8, 'p0', map('b', 1.5)), (9, NULL, NULL)",
        f"DELETE FROM {table} WHERE id = 3",
        MERGE.format(t=table),
        f"OPTIMIZE {table}",
        f"ALTER TABLE {table} ADD COLUMN (n INT)",
        f"INSERT INTO {table} VALUES (20, 'p0', NULL, 7)",
    ):
        spark.sql(statement)
    assert became(follower.step()) == [
        (2, "append"),
        (3, "upserts and deletes"),
        (4, "upserts and deletes"),
        (5, ""),
        (6, ""),
        (7, "append"),
    ]
    check_equal(spark, sites, name, table)
    spark.sql(f"INSERT OVERWRITE {table} VALUES (1, 'p5', NULL, NULL), (2, NULL, NULL, 3)")
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 7")
    assert [text for _, text in became(follower.step())] == ["overwrite", "overwrite"]
    check_equal(spark, sites, name, table)
    assert follower.step() == []


@pytest.mark.thorough
def test_without_keys_changed_rows_replace_the_table(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    table = made(spark, tmp_path / "t")
    follower = TableFollower(sites.a, "keyless", str(tmp_path / "t"))
    follower.step()
    spark.sql(f"INSERT INTO {table} VALUES (7, 'p1', NULL)")
    spark.sql(f"UPDATE {table} SET p = 'q' WHERE id = 7")
    spark.sql(f"DELETE FROM {table}")
    assert [text for _, text in became(follower.step())] == [
        "append",
        "overwrite by the whole table",
        "overwrite",
    ]
    check_equal(spark, sites, "keyless", table)


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.thorough
def test_a_version_is_brought_once_whatever_is_killed_and_lost(
    spark: SparkSession, sites: TwoSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, path = made(spark, tmp_path / "t"), str(tmp_path / "t")

    def begun(**options: Any) -> TableFollower:
        return TableFollower(sites.a, "once", path, **options)

    def killed(*_: object) -> Any:
        raise Killed

    begun(keys=["id"]).step()
    spark.sql(f"INSERT INTO {table} VALUES (8, 'p0', NULL)")
    with monkeypatch.context() as patch:  # ordered, and nowhere noted
        patch.setattr(TableFollower, "_reach", killed)
        with pytest.raises(Killed):
            begun().step()
    again = begun()
    assert again.step() == [] and again.version == 2
    check_equal(spark, sites, "once", table)
    # The node knows the id: what was asked for again is the same transaction.
    spark.sql(f"UPDATE {table} SET p = 'x' WHERE id = 8")
    with monkeypatch.context() as patch:
        patch.setattr(TableFollower, "_reach", killed)
        with pytest.raises(Killed):
            again.step()
    position = sites.a.position()
    assert became(again.step()) == [(3, "upserts and deletes")]
    assert sites.a.position() == position
    note = tmp_path / "t" / "_sparktxlog" / "once.json"
    note.unlink()  # the log knows
    spark.sql(f"INSERT INTO {table} VALUES (9, 'p0', NULL)")
    assert became(begun().step()) == [(4, "append")]
    note.write_text("{torn")
    assert begun().step() == []
    spark.sql(f"VACUUM {table}")
    assert note.is_file()
    check_equal(spark, sites, "once", table)
    with pytest.raises(InvalidRequestError, match=r"has the keys \['id'\], not \['p'\]"):
        begun(keys=["p"]).step()


def test_a_second_writer_is_named(spark: SparkSession, sites: TwoSites, tmp_path: Path) -> None:
    table, path = made(spark, tmp_path / "t"), str(tmp_path / "t")
    follower = TableFollower(sites.a, "shared", path, keys=["id"])
    follower.step()
    row = spark.createDataFrame([(100, "b")], "id bigint, p string").selectExpr(
        "id", "p", "CAST(NULL AS MAP<STRING, DOUBLE>) AS v"
    )
    wrote = sites.b.append("shared", row)
    spark.sql(f"INSERT INTO {table} VALUES (8, 'p0', NULL)")
    named = f"transaction {wrote.transaction_id} of site B, at position {wrote.position}"
    for one in (follower, TableFollower(sites.a, "shared", path)):
        with pytest.raises(DivergedError, match=named):
            one.step()
    back = TableFollower(sites.a, "shared", path, overwrite=True)
    assert [text for _, text in became(back.step())] == ["overwrite"]
    check_equal(spark, sites, "shared", table)
    spark.sql(f"INSERT INTO {table} VALUES (10, 'p0', NULL)")
    assert [text for _, text in became(TableFollower(sites.a, "shared", path).step())] == ["append"]
    check_equal(spark, sites, "shared", table)


def test_what_cannot_be_followed_stops_it(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    table, path = made(spark, tmp_path / "t"), str(tmp_path / "t")
    follower = TableFollower(sites.a, "stopped", path, keys=["id"])
    follower.step()
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN p TO q")
    with pytest.raises(SchemaMismatchError, match="column 'p' is gone or renamed"):
        follower.step()


def insert(path: Path, *rows: tuple[int, str]) -> None:
    """Append rows as delta-rs does, in one file and in no time."""
    columns = {name: [row[n] for row in rows] for n, name in enumerate(("id", "p"))}
    write_deltalake(path, pa.table(columns), mode="append")


@pytest.mark.thorough
def test_a_key_that_is_there_twice_takes_no_other_row_along(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    """An append may bring it; upserts and deletes by key would remove each row of it."""
    path = tmp_path / "t"
    insert(path, *((number, f"p{number % 2}") for number in range(8)))
    follower = TableFollower(sites.a, "twice", str(path), keys=["id"])
    follower.step()
    whole = "overwrite by the whole table, where rows share the key id=1"

    def delete(where: str) -> None:
        DeltaTable(path).delete(where)

    def update(text: str, where: str) -> None:
        DeltaTable(path).update(updates={"p": text}, predicate=where)

    for steps, wanted in (
        # Each row in a file of its own: the version does not touch the other one.
        ((lambda: insert(path, (1, "b"), (30, "c")), lambda: delete("p = 'b'")), ("append", whole)),
        ((lambda: insert(path, (1, "d")), lambda: update("'e'", "p = 'd'")), ("append", whole)),
        # Both in one file, of which one stays as it is.
        (
            (
                lambda: update("'f'", "id = 1"),
                lambda: insert(path, (40, "x0"), (40, "x1")),
                lambda: delete("p = 'x1'"),
            ),
            (whole, "append", "upserts and deletes"),
        ),
        ((lambda: delete("id = 1"),), ("upserts and deletes",)),
    ):
        for step in steps:
            step()
        assert tuple(one.became for one in follower.step()) == wanted
        check_equal(spark, sites, "twice", f"delta.`{path}`")


@pytest.mark.thorough
def test_another_table_in_the_same_place_is_not_followed(
    spark: SparkSession, sites: TwoSites, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    insert(path, (1, "p1"))
    follower = TableFollower(sites.a, "moved", str(path), keys=["id"])
    follower.step()
    shutil.copytree(path, tmp_path / "backup")
    insert(path, (8, "p0"))
    assert [text for _, text in became(follower.step())] == ["append"]
    for replacement in ("older", "new", "none"):
        shutil.rmtree(path)
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        if replacement == "older":  # of the same id: what its jobs wrote since is not in it
            shutil.copytree(tmp_path / "backup", path)
        for number in range(100, 103) if replacement != "none" else ():
            insert(path, (number, "p0"))
        position = sites.a.position()
        begun = [TableFollower(sites.a, "moved", str(path))] if path.is_dir() else []
        for one in (follower, *begun):
            with pytest.raises(
                (DivergedError, ExpiredError), match=r"another one now|is gone|last written by"
            ):
                one.step()
        assert sites.a.position() == position
    insert(path, (9, "p9"))
    TableFollower(sites.a, "moved", str(path), overwrite=True).step()
    check_equal(spark, sites, "moved", f"delta.`{path}`")


@pytest.mark.thorough
def test_versions_that_are_gone(spark: SparkSession, sites: TwoSites, tmp_path: Path) -> None:
    table = made(spark, tmp_path / "t", "TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    path = str(tmp_path / "t")
    TableFollower(sites.a, "cleaned", path, keys=["id"]).step()
    for number in range(8, 12):
        spark.sql(f"INSERT INTO {table} VALUES ({number}, 'p0', NULL)")
    for version in range(3):  # as Delta's own cleanup does
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(ExpiredError, match="versions up to 5, and version 2 is gone"):
        TableFollower(sites.a, "cleaned", path).step()
    TableFollower(sites.a, "cleaned", path, overwrite=True).step()
    check_equal(spark, sites, "cleaned", table)


@pytest.mark.usefixtures("jobs_share_spark")
def test_the_command_and_the_running_follower(
    spark: SparkSession,
    sites: TwoSites,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table, path, url = made(spark, tmp_path / "t"), str(tmp_path / "t"), sites.nodes["A"].url
    command = ["table", "follow", "running", path, "--keys", "id", "--once", "--url", url]

    def planned(*more: str) -> list[str]:
        assert invoke(monkeypatch, *command, "--dry-run", "--json", *more) == 0
        return list(json.loads(capsys.readouterr().out.splitlines()[-1])["planned"])

    assert planned() == ["version 1 would be adopted: 8 rows"]
    assert sites.a.site.existing("running") is None
    assert invoke(monkeypatch, *command, "--json") == 0
    done = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (done["exit_code"], done["version"]) == (0, 1)
    assert [(one["version"], one["operation"]) for one in done["brought"]] == [(1, "adopted")]
    assert planned() == []
    assert planned("--overwrite") == ["the rows of table 'running' would be replaced by version 1"]
    told: list[str] = []
    seen, stop = threading.Event(), threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        if "version 2" in line:
            seen.set()

    follower = TableFollower(sites.a, "running", path, tell=tell)
    running = threading.Thread(target=follower.follow, args=(stop,), daemon=True)
    position = sites.a.position()
    spark.sql(f"INSERT INTO {table} VALUES (8, 'p0', NULL)")
    (one,) = planned()
    assert one.startswith("version 2 (WRITE) would be brought: ") and one.endswith(", 0 removed")
    assert sites.a.position() == position
    running.start()
    assert seen.wait(60), told
    stop.set()
    running.join(60)
    assert not running.is_alive()
    assert told[0].startswith("version 2 (WRITE): append, position ")
    check_equal(spark, sites, "running", table)
    assert table_follower.describe(FollowedVersion(version=3, operation="OPTIMIZE", became="")) == (
        "version 3 (OPTIMIZE) changed no row"
    )
