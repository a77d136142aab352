"""A disk of the lake that is full: what a write that failed leaves there takes the last room."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.worker.test_apply import apply, check
from tests.support.worker_log import LogBuilder, Row, table

from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import DiskFullError
from sparktxlog.worker.apply import merging

pytestmark = pytest.mark.spark

ITEMS = table("items", "id bigint, text string, p int", keys=["id"])
_DISK_BYTES = 8 << 20


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Path]:
    """A lake on a small disk of its own."""
    path = tmp_path / "lake"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def item(number: int, length: int, seed: int) -> Row:
    """Return a row with text that cannot be compressed well."""
    letters = random.Random(seed * 10_000 + number)
    return (number, letters.randbytes(length // 2).hex(), number % 2)


def data_files(lake: Path) -> set[str]:
    found = (lake / "items").rglob("*")
    return {
        path.relative_to(lake / "items").as_posix()
        for path in found
        if path.is_file() and "_delta_log" not in path.parts
    }


@pytest.mark.parametrize("way", ["spark", "arrow", "vectors"])
def test_a_write_that_fails_on_a_full_disk_leaves_no_file(
    spark: SparkSession, tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "arrow":
        monkeypatch.setattr(merging, "_LEAST_COPIED", 0)
    log = LogBuilder(tmp_path)
    partition_by = ("p",) if way == "arrow" else ()
    definition = replace(ITEMS, deletion_vectors=way == "vectors", partition_by=partition_by)
    log.transaction().create(definition)
    log.transaction().staged("append", "items", [item(i, 20_000, 1) for i in range(100)], files=2)
    log.publish()
    apply(spark, log, lake)
    before = data_files(lake)
    log.transaction().staged("upsert", "items", [item(i, 20_000, 2) for i in range(10, 70)])
    log.publish()
    room = os.statvfs(lake)
    filler = lake / "filler"
    filler.write_bytes(bytes(room.f_bavail * room.f_frsize - (900 << 10)))
    for _ in range(2):
        with pytest.raises(DiskFullError):
            apply(spark, log, lake)
        named = LogState.read(lake / "items").adds
        assert data_files(lake) - before - {*named} == set()
    filler.unlink()
    apply(spark, log, lake)
    check(spark, log, lake)
