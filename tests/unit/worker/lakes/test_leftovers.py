"""What a failed write left goes; what any version may need stays."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from time import time

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.delta.log_files import newest_version
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    ApplyError,
    CorruptLogError,
    LockedError,
    StoreForbiddenError,
    StoreUnavailableError,
)
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.worker.lakes import leftovers as leftovers_module
from sparktxlog.worker.lakes.leftovers import Leftovers, remove_unnamed


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a live file in each of two partitions, and files that version 0 had."""
    rows = pa.table({"id": [1, 2], "p": [0, 1]})
    for mode in ("append", "overwrite"):
        write_deltalake(tmp_path, rows, partition_by=["p"], mode=mode)
    return tmp_path


def put(path: Path, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a part")
    os.utime(path, (time() - age_s,) * 2)
    return path


def data(table: Path) -> set[Path]:
    return {path for path in table.rglob("*") if path.is_file() and "_delta_log" not in path.parts}


def test_files_since_a_moment_that_no_version_names_go(table: Path) -> None:
    named, begun = data(table), time() - 5.0
    left = put(table / "p=1" / "part-00000-x.snappy.parquet")
    put(left.with_name(f".{left.name}.crc"))
    put(table / "deletion_vector_x.bin")
    put(table / "_change_data" / "cdc-x.snappy.parquet")
    stay = {
        put(table / "part-00002-old.snappy.parquet", age_s=60.0),
        put(table / "notes of somebody.txt"),
    }
    for commit in (table / "_delta_log").iterdir():
        os.utime(commit)
    assert remove_unnamed(table, newest_version(table, 0), begun) == 3 * len(b"a part")
    assert data(table) == named | stay


def test_what_a_version_within_that_time_had_stays(table: Path) -> None:
    """Also of one that another version replaced: readers have it still."""
    assert len(LogState.read(table).removed) == 2
    named = data(table)
    assert remove_unnamed(table, newest_version(table, 0), 0.0) == 0
    assert data(table) == named


def dated(paths: Iterable[Path], age_s: float) -> None:
    for path in paths:
        os.utime(path, (time() - age_s,) * 2)


def test_nothing_goes_that_the_table_has_whatever_the_clocks_say(table: Path) -> None:
    """The files came with the time of another machine, which is ahead."""
    named = data(table)
    dated(named, -60.0)
    dated((table / "_delta_log").iterdir(), 60.0)
    put(table / "part-00000-x.snappy.parquet")
    assert remove_unnamed(table, newest_version(table, 0), time() - 5.0) == len(b"a part")
    assert data(table) == named


def test_nothing_goes_after_a_clock_was_put_back(table: Path) -> None:
    named = data(table) | {put(table / "part-00000-x.snappy.parquet")}
    dated(table.rglob("*"), -3_600.0)
    dated([table / "_delta_log" / "00000000000000000001.json"], 5.0)
    assert remove_unnamed(table, 1, time()) == 0
    assert data(table) == named


def test_nothing_goes_once_somebody_committed(table: Path) -> None:
    left = put(table / "part-00000-x.snappy.parquet")
    assert remove_unnamed(table, newest_version(table, 0) - 1, 0.0) == 0
    assert remove_unnamed(table, -1, 0.0) == 0
    (table / "_delta_log" / "00000000000000000001.json").write_text("{")
    with pytest.raises(CorruptLogError, match="nothing is removed"):
        remove_unnamed(table, 1, 0.0)
    assert left.exists()


def fail(leftovers: Leftovers, table: Path, error: BaseException, cause: object = None) -> Path:
    """Write a file, and fail; return it."""
    version = newest_version(table, 0)
    with pytest.raises(type(error)), leftovers.removed("t", table, lambda: version):
        left = put(table / f"part-{os.urandom(4).hex()}.parquet")
        raise error from cause  # type: ignore[misc]
    return left


def write(leftovers: Leftovers, table: Path, *, commits: bool = True) -> None:
    with leftovers.removed("t", table, lambda: newest_version(table, 0)):
        if commits:
            write_deltalake(table, pa.table({"id": [3], "p": [0]}), mode="append")


@pytest.mark.parametrize(
    "error", [PySparkException("a task failed"), StoreForbiddenError("no"), OSError(5, "I/O")]
)
def test_what_a_write_left_goes_whatever_it_failed_for(table: Path, error: Exception) -> None:
    named, leftovers = data(table), Leftovers()
    for _ in range(2):
        fail(leftovers, table, ApplyError("table t"), cause=error)
        assert data(table) == named


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("the JVM does not answer"),
        ConnectionRefusedError("nor does its port"),
        TimeoutError("nor does the server of the disk"),
        StoreUnavailableError("no answer"),
        KeyboardInterrupt(),
    ],
)
def test_files_of_a_write_stay_until_it_can_make_no_version(
    table: Path, error: BaseException
) -> None:
    named, leftovers = data(table), Leftovers()
    if isinstance(error, Exception):
        left = fail(leftovers, table, ApplyError("table t"), cause=error)
    else:
        left = fail(leftovers, table, error)
    assert left.exists()
    # Its version may come still, whatever becomes of the next attempt.
    other = fail(leftovers, table, ApplyError("table t"))
    write(leftovers, table, commits=False)
    assert left.exists() and other.exists()
    write(leftovers, table)
    assert not left.exists() and not other.exists()
    assert len(data(table)) == len(named) + 1


def test_a_version_that_was_made_after_all_keeps_its_files(table: Path) -> None:
    leftovers = Leftovers()
    with pytest.raises(StoreUnavailableError), leftovers.removed("t", table, lambda: 1):
        write_deltalake(table, pa.table({"id": [3], "p": [0]}), mode="append")
        raise StoreUnavailableError("the answer was lost")
    named = data(table)
    left = fail(leftovers, table, ApplyError("table t"))
    assert data(table) == named and not left.exists()
    write(leftovers, table)
    assert named < data(table)


def test_without_a_failure_nobody_looks(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers_module, "remove_unnamed", lambda *_: pytest.fail("it looked"))
    write(Leftovers(), table)


def test_in_a_bucket_only_who_has_the_lock_removes(table: Path) -> None:
    held = [True]

    def may_write() -> None:
        if not held[0]:
            raise LockedError("another worker has the lake")

    place, leftovers = PartOfStore(DiskStore(table.parent), table.name, may_write), Leftovers()
    named = data(table)
    for held[0] in (True, False):
        with pytest.raises(LockedError), leftovers.removed("t", place, lambda: 1):
            left = put(table / "part-00000-x.parquet")
            raise LockedError("it was taken over")
        assert left.exists() != held[0]
    assert data(table) == named | {left}
