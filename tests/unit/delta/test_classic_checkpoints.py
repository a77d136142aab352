"""Classic checkpoints by hand: what readers see stays, and what is older goes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from sparktxlog.delta.classic_checkpoints import drop_expired, write_classic, write_state
from sparktxlog.delta.commit_files import commit_by_hand
from sparktxlog.delta.log_files import commit_path
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import DiskFullError


def appended(table: Path, number: int) -> None:
    """Append two rows as a transaction."""
    rows = pa.table({"n": pa.array([number * 10, number * 10 + 9], pa.int64())})
    properties = CommitProperties(app_transactions=[Transaction("a", number)])
    write_deltalake(table, rows, mode="append", commit_properties=properties)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of delta-rs: four files, of which the first was removed."""
    for number in range(4):
        appended(tmp_path, number)
    DeltaTable(tmp_path).delete("n < 10")
    return tmp_path


def checkpoint(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.checkpoint.parquet"


def test_a_checkpoint_by_hand_says_the_same_to_us_and_to_delta_rs(tmp_path: Path) -> None:
    rows = pa.table({"p": ["x", None, "ü /%"], "n": [1, 2, 3]})
    for number in (1, 2):
        properties = CommitProperties(app_transactions=[Transaction("a", number)])
        write_deltalake(
            tmp_path,
            rows,
            mode="append",
            partition_by=["p"],
            configuration={"delta.appendOnly": "false"} if number == 1 else None,
            commit_properties=properties,
        )
    DeltaTable(tmp_path).delete("n = 3")
    commit(tmp_path, 3, {"add": one(tmp_path) | {"tags": {"a": "b", "c": None}}})
    before, seen = LogState.read(tmp_path), seen_by_delta_rs(tmp_path)
    write_state(tmp_path, before)
    assert checkpoint(tmp_path, 3).exists() and not list(tmp_path.glob("_delta_log/.*"))
    for version in range(4):
        commit_path(tmp_path, version).unlink()
    commit(tmp_path, 4, {"txn": {"appId": "a", "version": 3}})
    after = LogState.read(tmp_path)
    assert after.transactions == {"a": 3}
    for add in before.adds.values():
        add["dataChange"] = False
    assert replace(after, version=3, transactions={"a": 2}) == before
    assert seen_by_delta_rs(tmp_path) == seen


def seen_by_delta_rs(table: Path) -> object:
    found = DeltaTable(table)
    adds = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    metadata, protocol = found.metadata(), found.protocol()
    return (
        sorted(map(str, adds)),
        sorted(found.to_pyarrow_table().to_pylist(), key=str),
        (metadata.id, metadata.configuration, metadata.partition_columns, found.schema().to_json()),
        (protocol.min_reader_version, protocol.min_writer_version),
    )


def test_a_table_with_features_gets_a_checkpoint_of_delta_rs(tmp_path: Path) -> None:
    """Its files have more than a checkpoint by hand says."""
    on = {"delta.enableDeletionVectors": "true"}
    write_deltalake(tmp_path, pa.table({"n": [1, 2]}), configuration=on)
    add = one(tmp_path)
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    gone = {"path": add["path"], "dataChange": True}
    commit(tmp_path, 1, {"add": add | {"deletionVector": vector}}, {"remove": gone})
    write_state(tmp_path, LogState.read(tmp_path))
    for version in range(2):
        commit_path(tmp_path, version).unlink()
    commit(tmp_path, 2)
    (found,) = LogState.read(tmp_path).adds.values()
    assert found["deletionVector"]["pathOrInlineDv"] == "x"


@pytest.mark.parametrize("kind", [DeltaError, OSError])
def test_a_disk_that_is_full_for_a_checkpoint_says_so(
    table: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """delta-rs passes on the system's text, without its number."""

    def full(handle: DeltaTable) -> None:
        raise kind("Unable to copy data to file: No space left on device (os error 28)")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", full)
    with pytest.raises(DiskFullError):
        write_classic(table, cleans=False)


def test_what_is_before_the_newest_checkpoint_goes_if_it_is_old(table: Path) -> None:
    for version in (2, 4):
        write_state(table, LogState.read(table, version))
    for version in (0, 1, 2, 4):
        os.utime(commit_path(table, version), (0, 0))
    drop_expired(table, 3_600_000)
    there = sorted(path.name for path in (table / "_delta_log").iterdir())
    assert there == [
        "00000000000000000002.checkpoint.parquet",
        "00000000000000000003.json",
        "00000000000000000004.checkpoint.parquet",
        "00000000000000000004.json",
        "_last_checkpoint",
    ]
    assert DeltaTable(table).version() == LogState.read(table).version == 4


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    """Commit actions."""
    commit_by_hand(table, version, {"operation": "WRITE"}, "", actions)


def one(table: Path) -> dict[str, Any]:
    """Return the `add` of one of the live files."""
    return min(LogState.read(table).adds.values(), key=str)
