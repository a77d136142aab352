"""Tables in a bucket as jobs reach them: their logs, checkpoints, and what is old."""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.delta_writer import SCHEMA, StagedTable, info_of, lines_of

from sparktxlog.delta.checkpoints import newest_of_twin
from sparktxlog.errors import CorruptLogError, NotOfferedError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Found
from sparktxlog.storage.commit_tables import bucket_tables
from sparktxlog.storage.commit_tables.bucket_tables import BucketTable, BucketTables
from sparktxlog.storage.commit_tables.table_places import TRANSACTION_TWINS
from sparktxlog.storage.commit_tables.table_sweep import STAGED_AGE_MS, UNUSED_AGE_MS

DAY = 86_400_000
NOW = int(time.time() * 1000) + 100 * DAY
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["catalogManaged"]}


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "bucket")


@pytest.fixture
def table(tmp_path: Path) -> StagedTable:
    """A table without rows, whose version 0 is 40 days old."""
    directory = tmp_path / "bucket" / str(uuid.uuid4())
    metadata = {"schemaString": json.dumps(SCHEMA), "configuration": {}}
    made = StagedTable(directory.name, directory, str(directory), metadata, PROTOCOL)
    made.write_first(timestamp=NOW - 40 * DAY)
    return made


def publish(table: StagedTable, version: int, days_ago: float, *actions: dict[str, Any]) -> None:
    content = lines_of(info_of(int(NOW - days_ago * DAY)), *actions)
    table.published(version).write_bytes(content)


def removal(add: dict[str, Any]) -> dict[str, Any]:
    return {"remove": {"path": add["add"]["path"], "deletionTimestamp": NOW}}


def path_of(add: dict[str, Any]) -> str:
    found: str = add["add"]["path"]
    return found


def names(table: StagedTable, version: int, now: int = NOW, days: int = 7) -> set[str]:
    shared = BucketTable(DiskStore(table.directory.parent), table.table_id)
    found = shared.unneeded(version, now_ms=now, keep_ms=days * DAY)
    assert found.count == len(found.found) and found.size_bytes == 4 * found.count
    return {one.key.partition("/")[2] for one in found.found}


def test_only_what_no_version_of_late_needs_is_old(
    table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_tables, "_COMMITS_AT_ONCE", 1)  # a gap is between two of them
    long_gone, gone, lost, lives, waits, late = (table.add() for _ in range(6))
    publish(table, 1, 30, long_gone, gone)
    publish(table, 2, 20, lives, removal(long_gone))
    publish(table, 3, 6, removal(gone))  # version 2 was the newest one seven days ago
    table.stage(4, waits, timestamp=NOW)
    table.stage(3, late, timestamp=NOW)  # it lost
    (table.directory / "_symlink").write_text("of somebody else")
    unused = {path_of(long_gone), path_of(lost), path_of(late)}
    assert names(table, 3) == unused
    assert names(table, 3, days=25) == {path_of(lost), path_of(late)}
    assert names(table, 3, days=35) == {path_of(lost), path_of(late)}
    assert names(table, 3, days=5) == unused | {path_of(gone)}
    # What was put there lately is not old yet.
    assert names(table, 3, int(time.time() * 1000), days=0) == set()
    # A log that somebody removed a commit from says too little.
    table.published(2).unlink()
    with pytest.raises(CorruptLogError, match=f"{2:020}.json is missing"):
        names(table, 3)


def test_old_objects_and_decided_commits_go(table: StagedTable, store: DiskStore) -> None:
    lost, lives = table.add(), table.add()
    publish(table, 1, 30, lives)
    decided = table.stage(1, timestamp=1)["file-name"]
    waits = table.stage(2, timestamp=1)["file-name"]
    shared = BucketTable(store, table.table_id)
    assert shared.decided(1, now_ms=NOW - 100 * DAY).count == 0
    old = shared.decided(1, now_ms=NOW)
    assert [one.key.rpartition("/")[2] for one in old.found] == [decided]
    old.remove()
    old.remove()  # another job did it
    shared.unneeded(1, now_ms=NOW, keep_ms=DAY).remove()
    assert not (table.directory / path_of(lost)).exists()
    assert (table.directory / path_of(lives)).exists() and table.staged(waits).exists()
    assert STAGED_AGE_MS < 100 * DAY


def checkpoint(table: Path, version: int, *adds: dict[str, Any], name: str = "x") -> None:
    """Write a checkpoint as Delta does, the removed files left out."""
    log = table / "_delta_log"
    (log / "_sidecars").mkdir(parents=True, exist_ok=True)
    rows = [{"add": {**add["add"], "partitionValues": None}} for add in adds]
    pq.write_table(pa.Table.from_pylist(rows), log / "_sidecars" / name)
    metadata = {"schemaString": json.dumps(SCHEMA), "configuration": {}}
    lines = lines_of(
        {"checkpointMetadata": {"version": version}},
        {"sidecar": {"path": name}},
        {"protocol": PROTOCOL},
        {"metaData": metadata},
    )
    (log / f"{version:020}.checkpoint.{uuid.uuid4()}.json").write_bytes(lines)


def test_a_log_that_was_cleaned_begins_with_its_checkpoint(
    table: StagedTable, store: DiskStore
) -> None:
    first, second = table.add(), table.add()
    publish(table, 1, 30, first)
    publish(table, 2, 20, second)
    checkpoint(table.directory, 1, first)
    table.published(0).unlink()
    shared = BucketTable(store, table.table_id)
    assert {one.path for one in shared.data(2)} == {path_of(first), path_of(second)}
    assert shared.checkpointed(2) == 1
    twin = shared.twin(2, ".twins")
    assert twin.newest() == 2
    # A newer one whose sidecar is gone is none; then the one before is used.
    checkpoint(table.directory, 2, first, second, name="gone")
    (table.directory / "_delta_log" / "_sidecars" / "gone").unlink()
    again = BucketTable(store, table.table_id)
    assert {one.path for one in again.data(2)} == {path_of(first), path_of(second)}
    # And without any, the log lacks a version.
    (table.directory / "_delta_log" / "_sidecars" / "x").unlink()
    with pytest.raises(CorruptLogError, match=f"{0:020}.json is missing"):
        BucketTable(store, table.table_id).data(2)
    with pytest.raises(CorruptLogError, match="is missing"):
        BucketTable(store, table.table_id).twin(2, ".twins")
    twin.remove()
    assert not [*store.list(".twins")]


def test_a_checkpoint_of_a_twin_is_one_of_the_table(table: StagedTable, store: DiskStore) -> None:
    adds = [table.add() for _ in range(6)]
    publish(table, 1, 30, adds[0])
    checkpoint(table.directory, 1, adds[0])
    of_delta = {*(table.directory / "_delta_log").glob("*.checkpoint.*")}
    shared = BucketTable(store, table.table_id)
    for version in range(2, 6):
        publish(table, version, 20 - version, adds[version - 1])
        twin = shared.log_twin(version, ".twins")
        here = table.directory.parent / twin.key
        logs = [*(here / "_delta_log").glob("*.json")]
        assert logs and all("catalogManaged" not in one.read_text() for one in logs)
        with pytest.raises(CorruptLogError, match="wrote no checkpoint"):
            shared.take_checkpoint(twin, version)
        checkpoint(here, version, *adds[:version], name=f"of-{version}")
        said = {"version": version, "size": 7, "v2Checkpoint": {"path": "of the twin"}}
        (here / "_delta_log" / "_last_checkpoint").write_text(json.dumps(said))
        shared.take_checkpoint(twin, version)
        twin.remove()
        last = json.loads((table.directory / "_delta_log" / "_last_checkpoint").read_bytes())
        assert last == {"version": version, "size": 7}
    made = newest_of_twin(table.directory, 9)
    assert made is not None and made.version == 5 and b"catalogManaged" in made.read_top()
    assert {add["path"] for add in made.adds()} == {*map(path_of, adds[:5])}
    # Only the last two of them stay, with Delta's own.
    tops = {*(table.directory / "_delta_log").glob("*.checkpoint.*")}
    assert of_delta < tops and len(tops) == 3
    sidecars = {one.name for one in (table.directory / "_delta_log" / "_sidecars").iterdir()}
    assert sidecars == {"x", "of-4", "of-5"}


def test_places_without_a_table_and_twins_of_killed_jobs_go_when_they_are_old(
    table: StagedTable, store: DiskStore
) -> None:
    places, dropped, given = BucketTables(store), str(uuid.uuid4()), str(uuid.uuid4())
    for key in (f"{dropped}/x", f".commits/{dropped}/0.json", f".given/{given}", ".owner"):
        store.create(key, b"of it")
    twin = f"{TRANSACTION_TWINS}/killed"
    store.create(f"{twin}/_delta_log/x", b"")
    known, later = {table.table_id}, int(time.time() * 1000) + UNUSED_AGE_MS + DAY
    assert places.unused(known, now_ms=later, dry_run=True) == []
    assert places.unused(known, now_ms=later, dry_run=True) == []  # nothing was noted
    assert places.unused(known, now_ms=later, dry_run=False) == []
    assert places.unused(known, now_ms=later - DAY * 2, dry_run=False) == []
    # One gets a table: it is forgotten.
    assert places.unused(known | {given}, now_ms=later, dry_run=False) == [store.url_of(dropped)]
    places.remove_unused([store.url_of(dropped)])
    assert not [one for one in store.list() if dropped in one.key]
    assert table.published(0).exists() and store.find(f".given/{given}")
    assert places.abandoned(now_ms=later - DAY * 2) == []
    (found,) = places.abandoned(now_ms=later)
    assert found == store.url_of(twin)
    places.remove_abandoned([found])
    assert not [*store.list(TRANSACTION_TWINS)]


def test_the_earlier_one_of_two_clocks_counts(store: DiskStore) -> None:
    class Behind(DiskStore):
        def find(self, key: str) -> Found | None:
            found = super().find(key)
            return found and replace(found, changed_s=found.changed_s - 500)

    here = time.time() * 1000
    assert abs(BucketTables(store).now_ms() - here) < 60_000
    assert BucketTables(Behind(Path(store.url))).now_ms() < here - 400_000
    assert not [*store.list()]


def test_a_table_elsewhere_is_refused(store: DiskStore, table: StagedTable) -> None:
    places = BucketTables(store)
    assert places.table("default.t", table.location).path == str(table.directory)
    with pytest.raises(NotOfferedError, match=r"default\.t lies at s3://other/x, not in"):
        places.table("default.t", "s3://other/x")
    assert os.path.isdir(table.directory)
