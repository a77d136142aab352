"""Staged files against their manifest and their table."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import (
    InvalidRowsError,
    ManifestMismatchError,
    PayloadStoreError,
    SchemaMismatchError,
    StaleSchemaError,
    StorageError,
    TxLogError,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.runtime.commit.staged_checks import verify_staged
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

TABLE = TableDefinition(
    name="bulk",
    columns=(
        Column(name="id", type="bigint"),
        Column(name="day", type="date"),
        Column(name="at", type="timestamp"),
        Column(name="tags", type="array<string>"),
    ),
    keys=("id",),
    partition_by=("day",),
)
ID = uuid.UUID(int=5)


def rows(**change: Any) -> pa.Table:
    columns = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "at": pa.array([1, 2, None], pa.timestamp("us", tz="UTC")),
        "tags": pa.array([["a"], None, []], pa.list_(pa.string())),
    } | change
    return pa.table({name: column for name, column in columns.items() if column is not None})


@pytest.fixture
def store(tmp_path: Path) -> LocalPayloadStore:
    return LocalPayloadStore(tmp_path)


def stage(store: LocalPayloadStore, table: pa.Table, **options: Any) -> StagedFile:
    path = Path(store.path(f"{ID}/bulk/a.parquet"))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return StagedFile(
        path=f"{ID}/bulk/a.parquet",
        size_bytes=path.stat().st_size,
        rows=table.num_rows,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        partition={"day": "2024-01-31"},
    )


def verify(
    store: LocalPayloadStore, file: StagedFile, kind: OperationKind = OperationKind.APPEND
) -> StagedFile:
    transaction = PreparedTransaction(
        transaction_id=ID.bytes,
        operations=(PreparedOperation(table="bulk", kind=kind, files=(file,)),),
    )
    checked = verify_staged(transaction, {"bulk": TABLE}, store)
    return checked.operations[0].files[0]


def test_a_good_file_gets_its_statistics(store: LocalPayloadStore) -> None:
    stats = json.loads(verify(store, stage(store, rows())).stats)
    assert stats["numRecords"] == 3
    assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (1, 3)


def test_a_file_as_spark_and_delta_write_them_by_default(store: LocalPayloadStore) -> None:
    """With partition columns, and with instants as INT96."""
    at = pa.array([1, -62_135_596_800_000_000, None], pa.timestamp("us", tz="UTC"))
    given = rows(at=at, day=pa.array([1, 2, 3], pa.date32()))
    file = stage(store, given, use_deprecated_int96_timestamps=True)
    stats = json.loads(verify(store, file).stats)
    assert stats["minValues"]["at"] == "0001-01-01T00:00:00.000Z"
    assert (stats["maxValues"]["at"], stats["nullCount"]["at"]) == ("1970-01-01T00:00:00.001Z", 1)


@pytest.mark.parametrize("kind", [OperationKind.APPEND, OperationKind.UPSERT])
def test_days_of_the_old_calendar_are_refused(
    store: LocalPayloadStore, kind: OperationKind
) -> None:
    """Spark reads them as other days than Arrow, of which statistics are made."""
    footer = {"org.apache.spark.version": "3.0.1"}
    modern, old = (
        rows(at=pa.array([1, 2, at], pa.timestamp("us", tz="UTC"))).replace_schema_metadata(footer)
        for at in (-2_208_988_800_000_000, -2_208_988_800_000_001)
    )
    assert verify(store, stage(store, modern, use_deprecated_int96_timestamps=True), kind).stats
    assert verify(store, stage(store, old), kind).stats  # no INT96
    with pytest.raises(InvalidRowsError, match="column 'at' has dates") as caught:
        verify(store, stage(store, old, use_deprecated_int96_timestamps=True), kind)
    assert caught.value.definite and "CORRECTED" in caught.value.hint


def test_values_that_no_table_takes_are_refused_by_row(store: LocalPayloadStore) -> None:
    far = rows(at=pa.array([1, None, 1 << 60], pa.timestamp("us", tz="UTC")))
    with pytest.raises(InvalidRowsError, match=r"row 2 of .* has a time") as caught:
        verify(store, stage(store, far, row_group_size=2))
    fields = caught.value.fields
    assert (fields["column"], fields["row"], fields["value"]) == ("at", 2, 1 << 60)
    assert fields["path"].endswith("a.parquet")


def test_the_table_may_be_one_the_transaction_creates(store: LocalPayloadStore) -> None:
    file = stage(store, rows())
    transaction = PreparedTransaction(
        transaction_id=ID.bytes,
        operations=(
            PreparedOperation(table="bulk", kind=OperationKind.CREATE_TABLE, definition=TABLE),
            PreparedOperation(table="bulk", kind=OperationKind.APPEND, files=(file,)),
        ),
    )
    assert verify_staged(transaction, {}, store).operations[1].files[0].stats


def test_a_table_that_changed_since_the_files_were_checked(store: LocalPayloadStore) -> None:
    operation = PreparedOperation(
        table="bulk", kind=OperationKind.APPEND, files=(stage(store, rows()),)
    )
    transaction = PreparedTransaction(transaction_id=ID.bytes, operations=(operation,))
    added = Column(name="note", type="string")
    changed = replace(TABLE, columns=(*TABLE.columns, added), schema_version=2)
    with pytest.raises(StaleSchemaError, match="version 2 here, the transaction was made for 1"):
        verify_staged(transaction, {"bulk": changed}, store)
    again = replace(transaction, operations=(replace(operation, schema_version=2),))
    with pytest.raises(SchemaMismatchError, match="note"):
        verify_staged(again, {"bulk": changed}, store)


@pytest.mark.parametrize("kind", [OperationKind.APPEND, OperationKind.OVERWRITE])
def test_files_without_rows_are_looked_at_and_left_out(
    store: LocalPayloadStore, kind: OperationKind
) -> None:
    full = stage(store, rows())
    with pytest.raises(
        ManifestMismatchError, match="holds 3 rows"
    ):  # nothing is emptied by a claim
        verify(store, replace(full, rows=0), kind)
    file = stage(store, rows().slice(0, 0))
    operation = PreparedOperation(table="bulk", kind=kind, files=(file,))
    transaction = PreparedTransaction(transaction_id=ID.bytes, operations=(operation,))
    found = verify_staged(transaction, {"bulk": TABLE}, store).operations
    wanted = ["TRUE"] if kind is OperationKind.OVERWRITE else []
    assert [item.predicate for item in found] == wanted


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"path": f"{ID}/bulk/none.parquet"}, PayloadStoreError),
        ({"digest": "00" * 32}, ManifestMismatchError),
        ({"size_bytes": 7}, ManifestMismatchError),
        ({"rows": 4}, ManifestMismatchError),
    ],
)
def test_a_file_that_is_not_what_its_manifest_says(
    store: LocalPayloadStore, change: dict[str, Any], error: type[TxLogError]
) -> None:
    file = replace(stage(store, rows()), **change)
    with pytest.raises(error) as caught:
        verify(store, file)
    assert caught.value.definite and caught.value.fields["path"] == file.path


def test_a_file_that_is_no_parquet(store: LocalPayloadStore) -> None:
    file = stage(store, rows())
    Path(store.path(file.path)).write_bytes(b"PAR1 this is none PAR1")
    content = Path(store.path(file.path)).read_bytes()
    file = replace(file, size_bytes=len(content), digest=hashlib.sha256(content).hexdigest())
    with pytest.raises(ManifestMismatchError):
        verify(store, file)


def test_damaged_bytes_are_refused_whatever_the_reader_does(tmp_path: Path) -> None:
    child = Path(__file__).with_name("damaged_files.py")
    done = subprocess.run(
        [sys.executable, child, tmp_path, "150"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    refused, taken, garbage = map(int, done.stdout.split())
    assert garbage == 0
    assert refused > 50
    assert refused + taken == 150


def test_a_page_that_differs_from_its_checksum_is_refused(store: LocalPayloadStore) -> None:
    file = stage(store, rows(), write_page_checksum=True, compression="none", use_dictionary=False)
    path = Path(store.path(file.path))
    at = path.read_bytes().index((2).to_bytes(8, "little"))
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    with pytest.raises(ManifestMismatchError, match="cannot be read"):
        verify(store, replace(file, digest=hashlib.sha256(content).hexdigest()))


def test_a_disk_that_fails_is_not_the_files_fault(
    store: LocalPayloadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stage(store, rows())

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("sparktxlog.lazy_arrow.pq.ParquetFile", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        verify(store, file)


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"id": pa.array([1, 2, 3], pa.int32())}, "id"),
        ({"at": pa.array([1, 2, 3], pa.timestamp("us"))}, "at"),
        ({"at": pa.array([1, 2, 3], pa.timestamp("ns", tz="UTC"))}, "at"),
        ({"tags": pa.array([[1], [2], [3]])}, "tags"),
        ({"tags": None}, "tags"),
        ({"more": pa.array([1, 2, 3])}, "more"),
    ],
)
def test_a_file_with_other_columns(
    store: LocalPayloadStore, change: dict[str, Any], column: str
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        verify(store, stage(store, rows(**change), version="2.6"))
    assert (caught.value.fields["table"], caught.value.fields["column"]) == ("bulk", column)


@pytest.mark.parametrize("statistics", [True, False])
def test_null_keys_are_found_with_and_without_statistics(
    store: LocalPayloadStore, statistics: bool
) -> None:
    bad = rows(id=pa.array([1, None, 3], pa.int64()))
    with pytest.raises(InvalidRowsError, match="NULL in 'id'") as caught:
        verify(store, stage(store, bad, write_statistics=statistics))
    assert caught.value.fields["column"] == "id"
    assert verify(store, stage(store, rows(), write_statistics=statistics)).rows == 3


def test_deletes_by_key_hold_the_keys_only(store: LocalPayloadStore) -> None:
    keys = rows().select(["id"])
    assert verify(store, stage(store, keys), OperationKind.DELETE_KEYS).stats
    with pytest.raises(SchemaMismatchError):
        verify(store, stage(store, rows()), OperationKind.DELETE_KEYS)
