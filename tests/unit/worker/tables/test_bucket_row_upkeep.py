"""Upkeep of row tables in a bucket in memory: what goes, what stays, and when nothing is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from tests.support.worker_log import LogBuilder, own_commit, table

from sparktxlog.delta.commit_files import commit_by_hand
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import LockedError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.object_pins import ObjectPins
from sparktxlog.worker.apply.deltalog import removal_of
from sparktxlog.worker.apply.placing import Placer
from sparktxlog.worker.apply.tables import create_table
from sparktxlog.worker.lakes.bucket_lake import BucketLake
from sparktxlog.worker.lakes.payload_files import StagedOnDisk
from sparktxlog.worker.replica.state import PendingBatch, ReplicaState, ReplicaTable
from sparktxlog.worker.tables.bucket_row_upkeep import BucketKeeper
from sparktxlog.worker.tables.table_upkeep import TableUpkeep, Upkeep

ORDERS = table("t", "id bigint, p string", partition_by=["p"])
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


class Bucket:
    """A table whose version 2 has one file of two; an attempt left one more."""

    def __init__(self, directory: Path) -> None:
        self.store = BucketStore(MemoryStore(), "memory://bucket")
        self.lake = BucketLake(self.store, self.may_write)
        self.here, self.held = directory / "lake", True
        log, place = LogBuilder(directory), self.lake.table("t")
        log.transaction().create(ORDERS)
        create_table(place, ORDERS, "{}", {"appId": "a", "version": 0})
        log.staged("append", "t", [(1, "x"), (2, "y")])
        log.publish()
        files = [file for effect in log.segments[-1].effects for file in effect.files]
        Placer(self.lake, StagedOnDisk(log.payloads)).place(ORDERS, files, own_commit(1), 0)
        adds = LogState.read(place).adds
        self.removed = min(adds)
        found = place.find(self.removed)
        assert found is not None
        self.now_ms = int(found.changed_s * 1_000)
        info = {"timestamp": self.now_ms}
        removal = {"remove": removal_of(adds[self.removed], self.now_ms)}
        commit_by_hand(place, 2, info, "", [removal])
        place.replace("p=x/attempt.parquet", b"of an attempt that failed")
        place.replace("_sparktxlog of others", b"no data")
        self.state = ReplicaState(
            worker_id="w", position=9, tables={"t": ReplicaTable(definition=ORDERS, version=2)}
        )

    def may_write(self) -> None:
        if not self.held:
            raise LockedError("lost")

    def maintain(self, after_ms: int, **wanted: bool) -> TableUpkeep:
        found = TableUpkeep(table="t")
        upkeep = Upkeep(**wanted)  # type: ignore[arg-type]
        now_ms = self.now_ms + after_ms
        BucketKeeper(self.lake, self.here, self.state, upkeep, now_ms).maintain(found)
        return found

    def keys(self) -> set[str]:
        return {one.key for one in self.lake.table("t").list()}


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


def test_old_objects_that_no_version_needs_go(bucket: Bucket) -> None:
    before = bucket.keys()
    young = bucket.maintain(WEEK_MS - HOUR_MS)
    assert bucket.keys() == before and young.vacuumed_files == 0 and young.vacuumed == "full"
    found = bucket.maintain(WEEK_MS + HOUR_MS)
    assert before - bucket.keys() == {bucket.removed, "p=x/attempt.parquet"}
    assert (found.vacuumed_files, found.files_before, found.skipped) == (2, 1, "")
    assert found.disk == found.disk_before - found.vacuumed_bytes > 0
    place = bucket.lake.table("t")
    assert all(place.find(path) for path in live_files(place).sizes)
    assert bucket.maintain(WEEK_MS + HOUR_MS).vacuumed_files == 0


def test_what_a_lease_pins_stays_until_it_ends(bucket: Bucket) -> None:
    pins = ObjectPins(bucket.store, bucket.here)
    pins.pin("1", ["t"])
    bucket.lake.table("t").replace("p=x/later.parquet", b"after the lease")
    before = bucket.keys()
    bucket.maintain(WEEK_MS + HOUR_MS)
    assert before - bucket.keys() == {"p=x/later.parquet"}
    assert pins.release("1")
    bucket.maintain(WEEK_MS + HOUR_MS)
    assert bucket.lake.table("t").find(bucket.removed) is None


def test_nothing_is_removed_without_the_lock(bucket: Bucket) -> None:
    before, bucket.held = bucket.keys(), False
    with pytest.raises(LockedError, match="lost"):
        bucket.maintain(WEEK_MS + HOUR_MS)
    assert bucket.keys() == before


def test_a_dry_run_says_what_would_go(bucket: Bucket) -> None:
    before = bucket.keys()
    found = bucket.maintain(WEEK_MS + HOUR_MS, dry_run=True)
    assert "VACUUM would remove 2 objects" in found.skipped and bucket.keys() == before


def _diverged(state: ReplicaState) -> ReplicaState:
    tables = {"t": replace(state.tables["t"], diverged="somebody wrote")}
    return replace(state, tables=tables)


def _interrupted(state: ReplicaState) -> ReplicaState:
    return replace(state, pending=PendingBatch(first=10, last=11, from_hash="a", to_hash="b"))


@pytest.mark.parametrize(
    ("change", "why"),
    [(_diverged, "stands still: somebody wrote"), (_interrupted, "was interrupted")],
)
def test_a_table_whose_state_is_not_whole_is_left_alone(
    bucket: Bucket, change: Callable[[ReplicaState], ReplicaState], why: str
) -> None:
    before, bucket.state = bucket.keys(), change(bucket.state)
    assert why in bucket.maintain(WEEK_MS + HOUR_MS).skipped and bucket.keys() == before


def test_leftovers_of_killed_processes_go_after_a_week(bucket: Bucket) -> None:
    bucket.store._put(".incoming/a", b"a part", "overwrite", "w")
    for after_ms, left in ((WEEK_MS - HOUR_MS, 1), (WEEK_MS + HOUR_MS, 0)):
        now_ms = bucket.now_ms + after_ms
        BucketKeeper(bucket.lake, bucket.here, bucket.state, Upkeep(), now_ms).remove_leftovers()
        assert len([*bucket.store.list(".incoming")]) == left
