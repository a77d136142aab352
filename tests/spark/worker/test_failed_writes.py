"""Writes of a worker that fail, whatever for: what they leave in the lake, and until when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.worker.test_apply import apply, check
from tests.spark.worker.test_full_lake import ITEMS, data_files, item
from tests.support.worker_log import LogBuilder

from sparktxlog.delta.file_paths import live_paths
from sparktxlog.delta.log_files import newest_version
from sparktxlog.delta.log_state import LogState
from sparktxlog.worker.apply import merging
from sparktxlog.worker.apply.deltalog import LogTransaction

pytestmark = pytest.mark.spark


@pytest.fixture(params=["spark", "arrow", "vectors"])
def log(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> LogBuilder:
    """A table that is applied, and an upsert that is not, which Spark or Arrow writes."""
    if request.param == "arrow":
        monkeypatch.setattr(merging, "_LEAST_COPIED", 0)
    log = LogBuilder(tmp_path)
    log.transaction().create(replace(ITEMS, deletion_vectors=request.param == "vectors"))
    log.transaction().staged("append", "items", [item(i, 200, 1) for i in range(100)], files=2)
    log.publish()
    apply(spark, log, tmp_path / "lake")
    log.transaction().staged("upsert", "items", [item(i, 200, 2) for i in range(10, 70)])
    log.publish()
    return log


class Commits:
    """Commits of which some fail: before they are made, or when they are."""

    def __init__(self, error: Exception, times: int, *, made: bool) -> None:
        self.error, self.times, self.made = error, times, made
        #: Files that were there when each of them failed.
        self.seen: list[set[str]] = []

    def patched(self, monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
        commit = LogTransaction.commit

        def failing(transaction: LogTransaction, *given: Any) -> int:
            if len(self.seen) == self.times:
                return commit(transaction, *given)
            if self.made:
                commit(transaction, *given)
            self.seen.append(data_files(lake))
            raise self.error

        monkeypatch.setattr(LogTransaction, "commit", failing)


def named(lake: Path) -> set[str]:
    """Return the files that a version has or had, and Spark's checksums of these."""
    found = [LogState.read(lake / "items", version) for version in range(newest(lake) + 1)]
    paths = {path for state in found for path in live_paths(state.adds.values())}
    return paths | {f".{path}.crc" for path in paths}


def newest(lake: Path) -> int:
    return newest_version(lake / "items", 0)


def test_a_write_that_fails_leaves_no_file(
    spark: SparkSession, tmp_path: Path, log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    before = data_files(lake)
    commits = Commits(PySparkException("refused"), 2, made=False)
    commits.patched(monkeypatch, lake)
    assert "refused" in apply(spark, log, lake).diverged["items"]
    assert all(seen > before for seen in commits.seen) and len(commits.seen) == 2
    assert data_files(lake) == before


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("error", [PySparkException("refused"), Py4JNetworkError("no answer")])
def test_what_no_version_has_goes_once_a_later_attempt_ends_well(
    spark: SparkSession,
    tmp_path: Path,
    log: LogBuilder,
    monkeypatch: pytest.MonkeyPatch,
    made: bool,
    error: Exception,
) -> None:
    lake = tmp_path / "lake"
    commits = Commits(error, 1, made=made)
    commits.patched(monkeypatch, lake)
    begun = newest(lake)
    assert apply(spark, log, lake).diverged == {}
    check(spark, log, lake)
    assert len(commits.seen) == 1 and newest(lake) == begun + 1
    assert data_files(lake) <= named(lake)
