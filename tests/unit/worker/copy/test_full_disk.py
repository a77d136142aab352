"""A full disk under the worker's own files: a definite error of ours, and the old state stands."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from obstore.store import MemoryStore
from pyspark.errors import PySparkException
from tests.unit.worker.repair.test_examining import DEFINITION

from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    ApplyError,
    BucketMissingError,
    CorruptLogError,
    DiskFullError,
    LockedError,
    StorageError,
    StoreForbiddenError,
    StoreUnavailableError,
)
from sparktxlog.files.selection import Wanted
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.tasks import Fetched, FileTask, FileWork
from sparktxlog.model.copying import Lease, OfferedFile, OfferedTable
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.worker.apply.steps import failures_named
from sparktxlog.worker.copy import staging
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.layout import Way
from sparktxlog.worker.copy.staging import CopyStager
from sparktxlog.worker.lakes.bucket_lake import BucketLake
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.replica.replica_driver import Fault, fault_of
from sparktxlog.worker.replica.state import (
    PendingCopy,
    ReplicaDirectory,
    ReplicaState,
    ReplicaTable,
    read_state,
)

LOG = [OfferedFile(path="log", size_bytes=10, modified_at=0)]
DATA = [OfferedFile(path="data", size_bytes=600, modified_at=0)]
TABLES = {"t": ReplicaTable(definition=DEFINITION, version=3)}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[ReplicaDirectory]:
    with closing(ReplicaDirectory(tmp_path)) as found:
        yield found


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_old_state_stands(directory: ReplicaDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    state = directory.load()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError) as caught:
        directory.save(replace(state, position=7))
    assert caught.value.definite and fault_of(caught.value) is Fault.REFUSED
    assert read_state(directory.lake) == state


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "x"),
        OSError(errno.EDQUOT, "x"),
        PySparkException(f"org.apache.hadoop.fs.FSError: {os.strerror(errno.ENOSPC)}"),
        PySparkException(
            "S3Exception: (Service: S3, Status Code: 403):QuotaExceeded: bucket quota"
        ),
        PySparkException("S3Exception: (Service: S3, Status Code: 507):XMinioStorageFull: full"),
    ],
)
def test_a_full_disk_is_no_failure_of_the_batch(error: Exception) -> None:
    with pytest.raises(DiskFullError, match="table t"), failures_named("t"):
        raise error
    with pytest.raises(ApplyError, match="table t"), failures_named("t"):
        raise OSError(errno.EIO, "x")


def test_a_log_that_cannot_be_read_is_a_failure_of_its_table() -> None:
    with pytest.raises(ApplyError, match="table t: CorruptLogError"), failures_named("t"):
        raise CorruptLogError("x")
    with pytest.raises(DiskFullError, match="y"), failures_named("t"):
        raise DiskFullError("y")


class Fetcher:
    """Notes what is done, with a disk that has room for so many bytes."""

    def __init__(self, root: Path, room: int) -> None:
        self.root = root
        self.room = room
        self.done: list[str] = []

    def staged(self, table: str) -> Path:
        return self.root / table

    def select(self, table: str, files: list[OfferedFile]) -> Wanted:
        (task,) = [FileTask.of(table, file) for file in files]
        self.done.append(f"select {table} {task.path}")
        return Wanted(tasks=(task,), works=(FileWork.whole(task, 1),))

    def require_space(self, wanted: list[Wanted]) -> None:
        needed = sum(part.missing_bytes for part in wanted)
        self.done.append(f"room for {needed}")
        if needed > self.room:
            raise DiskFullError(f"the copy needs {needed} bytes")

    def fetch(self, wanted: Wanted) -> Fetched:
        self.done.append(f"fetch {wanted.tasks[0].path}")
        return Fetched(size_bytes=wanted.size_bytes)


def stage(
    tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch, lake: Lake | None = None
) -> tuple[CopyStager, Fetcher]:
    """Return the staging of two tables of 600 bytes each, and who fetches."""
    monkeypatch.setattr(staging, "log_files", lambda offered, whole: LOG)
    monkeypatch.setattr(staging, "data_files", lambda offered, log, history: DATA)
    monkeypatch.setattr(LogState, "read", lambda *_, **__: LogState(version=0))
    for name in ("forget_log", "check_copyable", "_prune"):
        monkeypatch.setattr(staging, name, lambda *_: None)
    tables = tuple(
        OfferedTable(
            definition=replace(DEFINITION, name=name), version=0, signature=TABLES["t"].signature
        )
        for name in ("one", "two")
    )
    lease = Lease(
        lease_id="l",
        token="",
        node_id="b",
        url="",
        log_id="l",
        epoch=1,
        position=5,
        chain_hash="h",
        chunk_bytes=1,
        lease_s=1.0,
        tables=tables,
    )
    pending = PendingCopy(copy_id="c", started_at=0, forced=True, suspect=True)
    state = ReplicaState(worker_id="w", log_id="l", copying=pending)
    fetcher = Fetcher(tmp_path / "staged", room)
    session: Any = None
    options, lake = CopyOptions(verify=False), lake or DiskLake(tmp_path)
    return CopyStager(session, lake, state, cast(Any, fetcher), lease, options), fetcher


def test_tables_that_fit_one_by_one_only_are_refused_before_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, fetcher = stage(tmp_path, 1_000, monkeypatch)
    with pytest.raises(DiskFullError, match="1200"):
        made.stage_tables()
    assert "fetch data" not in fetcher.done and made.staged == {}


def test_a_part_that_a_killed_copy_put_is_no_table_to_commit_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log can be read: without the mark the rest would be committed to it."""
    store = BucketStore(MemoryStore(), "memory://lake")
    store.replace(f"one/{commit_file_name(0)}", b"{}")
    placing = {"mark": "c", "last": commit_file_name(1), "digest": "of what is not there yet"}
    store.replace("_sparktxlog/placing/one", json.dumps(placing).encode())
    made, _ = stage(tmp_path, 1_200, monkeypatch, BucketLake(store, lambda: None))
    monkeypatch.setattr(staging, "swap_way", lambda old, new: Way.COMMIT if old else Way.RENAME)
    made.stage_tables()
    assert {name: one.way for name, one in made.staged.items()} == dict.fromkeys(
        ("one", "two"), Way.RENAME
    )


def test_room_for_all_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, fetcher = stage(tmp_path, 1_200, monkeypatch)
    made.stage_tables()
    assert fetcher.done == [
        "select one log",
        "select two log",
        "room for 20",
        "fetch log",
        "select one data",
        "fetch log",
        "select two data",
        "room for 1200",
        "fetch data",
        "fetch data",
    ]
    assert {name: staged.way for name, staged in made.staged.items()} == {
        "one": Way.RENAME,
        "two": Way.RENAME,
    }


def test_own_files_are_brought_once_there_is_room_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a bucket has of a table takes as much room here as what a site sends."""
    lake = BucketLake(BucketStore(MemoryStore(), "memory://lake"), lambda: None)
    for name in ("one", "two"):
        lake.store.replace(f"{name}/data", bytes(600))
    made, fetcher = stage(tmp_path, 1_000, monkeypatch, lake)
    with pytest.raises(DiskFullError, match="1200"):
        made.stage_tables()
    assert not list(fetcher.root.rglob("data"))
    made, fetcher = stage(tmp_path, 1_200, monkeypatch, lake)
    made.stage_tables()
    assert [path.stat().st_size for path in fetcher.root.rglob("data")] == [600, 600]
    # What was brought is not fetched.
    assert fetcher.done[-4:] == ["select one data", "fetch data", "select two data", "fetch data"]


@pytest.mark.parametrize(
    "error",
    [
        LockedError("another worker has the lake"),
        StoreUnavailableError("the bucket is down"),
        StoreForbiddenError("the bucket is closed"),
        BucketMissingError("the bucket is gone"),
    ],
)
def test_what_is_wrong_with_the_lake_is_wrong_with_no_table(error: StorageError) -> None:
    """Else a table would stand still because a bucket was away twice."""
    with pytest.raises(type(error), match=error.message) as caught, failures_named("t"):
        raise error
    assert caught.value is error
