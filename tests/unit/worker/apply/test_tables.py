"""A table's log: whose commits stand in it, and what version 0 holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.segments import segment

from sparktxlog.delta.log_files import commit_path
from sparktxlog.errors import DivergedError
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.apply.batches import Batch, Step, StepKind, TableStage, plan_batch
from sparktxlog.worker.apply.tables import (
    OwnCommit,
    check_recorded,
    create_table,
    own_progress,
    read_commit,
)

STEP = Step(number=3, kind=StepKind.PLACE, stage=TableStage(index=0), last=True)


def batch(last: int = 5) -> Batch:
    return plan_batch([segment(1, last)], lambda _: pytest.fail("no rows here"))


def metadata(last: int = 5, log_id: str = "l") -> str:
    return OwnCommit.of(batch(last), log_id, "t", STEP, EMPTY_SIGNATURE).to_text()


def write(table: Path, version: int, *actions: dict[str, Any], **info: str) -> None:
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    lines = [{"commitInfo": {"operation": "WRITE", **info}}, *actions]
    commit_path(table, version).write_text("\n".join(json.dumps(line) for line in lines))


ADD = {"add": {"path": "a%20b.parquet", "dataChange": True}}


def test_own_metadata_is_read_back_and_foreign_text_is_not() -> None:
    own = OwnCommit.of(batch(), "l", "t", STEP, EMPTY_SIGNATURE)
    assert OwnCommit.from_text(own.to_text()) == own
    for text in (None, "", "sparktxlog", '{"sparktxlog": 1}', '{"sparktxlog": {}}', "[1]"):
        assert OwnCommit.from_text(text) is None


def test_own_commits_of_the_batch_under_way_are_progress(tmp_path: Path) -> None:
    write(tmp_path, 0, ADD, userMetadata=metadata(2))
    write(tmp_path, 1, ADD, userMetadata=metadata(5))
    newest, own = own_progress(tmp_path, 0, "l", batch(5), "t")
    assert newest == 1 and own is not None and own.step == 3 and own.last


def test_own_commits_that_the_state_does_not_know_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, ADD, userMetadata=metadata(5))
    with pytest.raises(DivergedError, match="does not know"):
        own_progress(tmp_path, -1, "l", None, "t")


@pytest.mark.parametrize(
    "action",
    [
        ADD,
        {"remove": {"path": "x", "dataChange": True}},
        {"remove": {"path": "x"}},
        {"metaData": {"schemaString": "{}"}},
        {"protocol": {"minReaderVersion": 3}},
    ],
)
@pytest.mark.parametrize("mark", ["", metadata(5, "other log id")])
def test_foreign_changes_are_named(tmp_path: Path, action: dict[str, Any], mark: str) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1, action, userName="eve", engineInfo="E/1", userMetadata=mark)
    with pytest.raises(DivergedError, match=r"version 1 .* user eve with E/1 \(WRITE\)"):
        own_progress(tmp_path, 0, "l", batch(5), "t")


def test_maintenance_is_accepted(tmp_path: Path) -> None:
    write(tmp_path, 0)
    same = {"dataChange": False}
    write(tmp_path, 1, {"add": {"path": "n", **same}}, {"remove": {"path": "o", **same}})
    write(tmp_path, 2, {"txn": {"appId": "x", "version": 1}})
    assert own_progress(tmp_path, 0, "l", None, "t") == (2, None)


def test_a_table_that_went_back_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, 0)
    with pytest.raises(DivergedError, match="version 4 is gone"):
        own_progress(tmp_path, 4, "l", None, "t")
    # Delta's own log cleanup leaves a checkpoint at or after it.
    (tmp_path / "_delta_log" / f"{5:020}.checkpoint.parquet").touch()
    assert own_progress(tmp_path, 4, "l", None, "t") == (4, None)


def test_a_table_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, 0, ADD, userMetadata=metadata(2))
    # Maintenance, and a version that Delta's cleanup removed, tell nothing.
    write(tmp_path, 1, {"add": {"path": "n", "dataChange": False}})
    for version in (-1, 0, 1, 2):
        check_recorded(tmp_path, version, "l", "t")
    for version, mark in ((0, ""), (1, metadata(2, "other log id"))):
        write(tmp_path, version, ADD, engineInfo="E/1", userMetadata=mark)
        with pytest.raises(DivergedError, match=f"version {version} .* with E/1") as caught:
            check_recorded(tmp_path, version, "l", "t")
        assert "replaced" in caught.value.hint


def test_deletion_vectors_are_found_by_name(tmp_path: Path) -> None:
    # Example of Delta's protocol: this text names this file.
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
    write(tmp_path, 0, {"add": {"path": "a%20b.parquet", "deletionVector": vector}})
    assert read_commit(tmp_path, 0).added == (
        "a b.parquet",
        "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin",
    )


@pytest.mark.parametrize("vectors", [False, True])
def test_version_zero_is_a_table_of_the_least_protocol(tmp_path: Path, vectors: bool) -> None:
    definition = TableDefinition(
        name="t",
        columns=(
            Column(name="id", type="bigint", nullable=False),
            Column(name="at", type="timestamp_ntz" if vectors else "timestamp"),
            Column(name="p", type="decimal(5,1)"),
            Column(name="m", type="map<string,array<struct<a:int,b:date>>>"),
        ),
        keys=("id",),
        partition_by=("p",),
        deletion_vectors=vectors,
    )
    create_table(tmp_path / "t", definition, metadata(), {"appId": "a", "version": 7})
    found = DeltaTable(tmp_path / "t")
    protocol = found.protocol()
    if vectors:
        assert protocol.reader_features == ["deletionVectors", "timestampNtz"]
    else:
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert found.metadata().partition_columns == ["p"]
    assert [str(f.type) for f in found.schema().fields][2] == 'PrimitiveType("decimal(5,1)")'
    assert found.schema().fields[0].nullable is False
    assert found.transaction_version("a") == 7
    with pytest.raises(FileExistsError):
        create_table(tmp_path / "t", definition, metadata(), {"appId": "a", "version": 7})
