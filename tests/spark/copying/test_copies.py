"""A replica copied, in place of nothing and of an older, a diverged or a damaged one."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.copying.donor import CopyLog, FolderFetcher, apply_all, lease_of
from tests.support.table_rows import rows_of
from tests.support.worker_log import LogBuilder, Row, expected, table

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import ApplyError
from sparktxlog.worker.apply.tables import read_commit
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.source import Answer
from sparktxlog.worker.replica.state import ReplicaDirectory, read_state
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
KEYED = table("keyed", "id bigint, m map<string,int>", keys=["id"], deletion_vectors=True)
PARTS = table("bronze.parts", "id bigint, part string", partition_by=["part"])
ODD = ["a b/%=é", None, "x:y"]


@dataclass
class Site:
    """A replica that is to be copied."""

    spark: SparkSession
    source: CopyLog

    @property
    def lake(self) -> Path:
        return self.source.lake

    def copy(self, *, backup_dir: Path | None = None, **options: Any) -> ApplyOutcome:
        """Copy whatever the node would plan, then replay the rest."""
        with closing(ReplicaDirectory(self.lake)) as directory:
            applier = Applier(
                self.spark,
                self.source,
                directory,
                copies=CopyOptions(**{"forced": True, **options}),
                open_fetcher=self.open_fetcher,
            )
            if backup_dir:
                applier.info = replace(applier.info, backup_dir=str(backup_dir))
            return applier.catch_up()

    def open_fetcher(self, lake: Path, copy_id: str) -> FolderFetcher:
        self.fetcher = FolderFetcher(self.source.donor, lake, copy_id)
        return self.fetcher

    def rows(self, name: str, version: int | None = None) -> list[Row]:
        return rows_of(self.spark, self.lake / name, version)

    def check(self) -> None:
        """All tables hold what the log says, under the versions that the state records."""
        state = read_state(self.lake)
        assert state is not None and state.copying is None
        assert state.position == self.source.log.position
        for name, recorded in state.tables.items():
            assert self.rows(name) == [
                (r[0], dict(r[1])) if name == "keyed" and r[1] else r
                for r in expected(self.source.log, name)
            ]
            newest = max(int(p.stem) for p in (self.lake / name / "_delta_log").glob("*.json"))
            assert recorded.version == newest
        assert not list((self.lake / "_sparktxlog" / "copies").glob("*"))


def new_log(root: Path) -> LogBuilder:
    log = LogBuilder(root, interval=1)
    log.transaction().create(KEYED).create(PARTS)
    log.staged("append", "keyed", [(i, [("k", i)]) for i in range(12)], files=3)
    log.staged("append", "bronze.parts", [(i, part) for i, part in enumerate(ODD)])
    log.publish()
    return log


def go_on(log: LogBuilder) -> None:
    log.transaction().inline("upsert", "keyed", [(3, None), (100, [("new", 1)])])
    log.inline("append", "bronze.parts", [(9, ODD[0])])
    log.publish()


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LogBuilder:
    """A target at position 1, a donor at 2, the log at 2."""
    root = tmp_path_factory.mktemp("made")
    log = new_log(root)
    apply_all(spark, log, root / "target")
    go_on(log)
    apply_all(spark, log, root / "donor")
    return log


@pytest.fixture
def site(spark: SparkSession, made: LogBuilder, tmp_path: Path) -> Site:
    """A copy of what was made once, for this test alone."""
    shutil.copytree(made.root, tmp_path, dirs_exist_ok=True)
    log = deepcopy(made)
    log.root, log.payloads = tmp_path, tmp_path / made.payloads.name
    return Site(spark, CopyLog(log, tmp_path / "target", tmp_path / "donor"))


def test_a_replica_is_swapped_by_commits_and_replays_on(site: Site, tmp_path: Path) -> None:
    before = site.rows("keyed")
    outcome = site.copy(backup_dir=tmp_path / "old")
    site.check()
    (copy,) = outcome.copies
    assert copy.tables == {"keyed": "commit", "bronze.parts": "commit"} and not copy.quarantined
    assert 0 < copy.reused_bytes < copy.size_bytes == copy.reused_bytes + copy.wire_bytes
    assert outcome.verdict == "IN_SYNC" and site.fetcher.released == 1
    # The old state is history, and backed up before the first file came.
    state = read_state(site.lake)
    assert state is not None and state.copied_from.startswith("b@")
    assert site.rows("keyed", state.tables["keyed"].version - 1) == before
    kept = Attic(tmp_path / "old").place(Kind.BACKUP, "keyed", copy.copy_id)
    assert site.spark.read.format("delta").load(str(kept)).count() == len(before)
    own = read_commit(site.lake / "keyed", state.tables["keyed"].version).own
    assert own is not None and (own.copy_id, own.donor) == (copy.copy_id, "b")
    assert own.last_position == 2 and own.to_hash == state.chain_hash
    (transfer,) = site.source.transfers
    assert (transfer.outcome, transfer.from_position, transfer.to_position) == ("done", 1, 2)
    # The next batch is newer than the copy's txn.
    go_on(site.source.log)
    apply_all(site.spark, site.source.log, site.lake)
    site.check()


def test_an_empty_site_takes_over_directories_and_their_commit_times(
    site: Site, tmp_path: Path
) -> None:
    fresh = Site(site.spark, CopyLog(site.source.log, tmp_path / "new", site.source.donor))
    outcome = fresh.copy()
    fresh.check()
    assert outcome.copies[0].tables == {"keyed": "rename", "bronze.parts": "rename"}
    for path in sorted((site.source.donor / "keyed" / "_delta_log").glob("*.json")):
        mine = fresh.lake / "keyed" / "_delta_log" / path.name
        assert mine.stat().st_mtime_ns // 1000 == path.stat().st_mtime_ns // 1000
    # A second copy finds everything equal and moves nothing.
    again = fresh.copy()
    assert again.copies[0].tables == {"keyed": "kept", "bronze.parts": "kept"}
    assert again.copies[0].size_bytes == 0
    go_on(site.source.log)
    apply_all(site.spark, site.source.log, fresh.lake)
    fresh.check()


@pytest.mark.thorough
def test_names_in_files_come_along(site: Site, tmp_path: Path) -> None:
    """Other names need the donor's log; between equal ones a table is swapped by a commit."""
    log, donor = site.source.log, site.source.donor
    log.transaction().rename("keyed", id="number").rename("bronze.parts", part="piece", id="part")
    go_on(log)
    apply_all(site.spark, log, donor)
    fresh = Site(site.spark, CopyLog(log, tmp_path / "new", donor))
    for one in (site, fresh):
        outcome = one.copy()
        one.check()
        assert outcome.copies[0].tables == {"keyed": "rename", "bronze.parts": "rename"}
    go_on(log)
    apply_all(site.spark, log, donor)
    assert site.copy().copies[0].tables["bronze.parts"] == "commit"
    site.check()
    log.transaction().delete_where(
        "bronze.parts", "piece is null and part < 9", lambda r: r[1] is None
    )
    log.publish()
    for one in (site, fresh):
        apply_all(site.spark, log, one.lake)
        one.check()
        assert recount_tables(site.spark, one.lake) == {}


@pytest.mark.thorough
def test_a_copy_past_a_drop_takes_nothing_of_the_dropped_table(site: Site) -> None:
    """A table that was created again comes with its own log, though it looks the same."""
    log = site.source.log
    log.transaction().drop("keyed").drop("bronze.parts")
    log.transaction().create(KEYED).staged("append", "keyed", [(7, [("k", 7)])])
    log.publish()
    apply_all(site.spark, log, site.source.donor)
    outcome = site.copy()
    site.check()
    assert outcome.copies[0].tables == {"keyed": "rename"}
    assert outcome.copies[0].quarantined == {"bronze.parts": -1}
    assert site.rows("keyed", 0) == [] and not (site.lake / "bronze.parts").exists()
    kept = Attic.of_lake(site.lake).entries()
    assert {entry.table for entry in kept} == {"keyed", "bronze.parts"}
    assert recount_tables(site.spark, site.lake) == {}
    log.transaction().staged("append", "keyed", [(8, [("k", 8)])])
    log.publish()
    apply_all(site.spark, log, site.lake)
    site.check()


@pytest.mark.thorough
def test_foreign_rows_go_to_quarantine_and_damage_is_repaired(site: Site) -> None:
    keyed = str(site.lake / "keyed")
    twin = "SELECT 777L AS id, map('mine', 1) AS m"
    site.spark.sql(f"INSERT INTO delta.`{keyed}` {twin} UNION ALL {twin}")
    # A damaged file of equal size, under a name that the donor has too.
    table = site.lake / "bronze.parts"
    damaged = next(table.rglob("*.parquet"))
    content = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(bytes(len(content)))
    site.source.answer = Answer(verdict="DIVERGED", plan="copy", reason="keyed is not ours")
    site.source.lends = False
    with pytest.raises(ApplyError, match="nobody lends"):
        site.copy(forced=False)
    site.source.lends = True
    site.source.answer = Answer(verdict="IN_SYNC", plan="up-to-date")
    outcome = site.copy()
    site.check()
    assert damaged.read_bytes() == content
    # Both twins, and the row that an upsert had replaced at the donor.
    assert outcome.copies[0].quarantined["keyed"] == 3
    found = {entry.table: entry for entry in Attic.of_lake(site.lake).entries()}
    rows, parts = found["keyed"], found["bronze.parts"]
    saved = site.spark.read.format("delta").load(str(rows.path))
    assert rows.kind is Kind.ROWS and saved.where("id = 777").count() == 2
    assert [commit["operation"] for commit in rows.facts["foreign"]] == ["WRITE"]
    # The table whose file was damaged cannot be compared: it is kept as it was.
    assert parts.kind is Kind.TABLE and "cannot be read" in parts.facts["note"]
    kept = parts.path / damaged.relative_to(table)
    assert kept.read_bytes() == bytes(len(content))


@pytest.mark.thorough
def test_a_wrong_donor_replaces_nothing(site: Site) -> None:
    before = {name: site.rows(name) for name in ("keyed", "bronze.parts")}
    granted = lease_of(site.source.donor)
    lying = replace(granted.tables[0], signature=granted.tables[1].signature)
    site.source.lease = replace(granted, tables=(lying, granted.tables[1]))
    with pytest.raises(ApplyError, match="its report says"):
        site.copy()
    assert {name: site.rows(name) for name in before} == before
    assert {transfer.outcome == "done" for transfer in site.source.transfers} == {False}
    # Nothing was replaced: a replay brings the replica on.
    site.source.lease = None
    with closing(ReplicaDirectory(site.lake)) as directory:
        Applier(site.spark, site.source, directory).run_once()
    site.check()


@pytest.mark.faults
def test_a_copy_killed_during_the_swap_is_brought_to_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = LogBuilder(tmp_path, interval=1)
    one = table("one", "id bigint", deletion_vectors=True)
    log.transaction().create(one).staged("append", "one", [(1,), (2,)])
    log.publish()
    apply_all(spark, log, tmp_path / "target")
    log.transaction().create(table("two", "id bigint")).staged("append", "two", [(5,)])
    log.staged("append", "one", [(3,)])
    log.publish()
    apply_all(spark, log, tmp_path / "donor")
    (tmp_path / "log.pickle").write_bytes(pickle.dumps(log_without_closures(log)))
    for point in ("placed", "committed", "renamed"):
        assert killed(tmp_path, point) == -signal.SIGKILL
        with closing(ReplicaDirectory(tmp_path / "target")) as directory:
            state = directory.load()
            assert state.copying is not None and state.copying.swapped
    site = Site(spark, CopyLog(log, tmp_path / "target", tmp_path / "donor"))
    # Without copying nothing is applied to what is half replaced.
    go_further(log)
    with (
        closing(ReplicaDirectory(site.lake)) as directory,
        pytest.raises(ApplyError, match="is not finished"),
    ):
        Applier(spark, site.source, directory).run_once()
    outcome = site.copy()
    site.check()
    assert len(outcome.copies) == 1
    # The commit was made once.
    operations = [
        read_commit(site.lake / "one", version).own
        for version in range(read_version_of(site, "one") + 1)
    ]
    assert sum(1 for own in operations if own is not None and own.copy_id) == 1


def go_further(log: LogBuilder) -> None:
    log.transaction().staged("append", "one", [(4,)])
    log.publish()


def read_version_of(site: Site, name: str) -> int:
    state = read_state(site.lake)
    assert state is not None
    return state.tables[name].version


def log_without_closures(log: LogBuilder) -> LogBuilder:
    copy = LogBuilder(log.root, interval=log.interval)
    copy.segments, copy.tables, copy.position = log.segments, log.tables, log.position
    return copy


def killed(root: Path, point: str) -> int:
    script = Path(__file__).with_name("killed_copy.py")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, str(script), str(root), point],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode
