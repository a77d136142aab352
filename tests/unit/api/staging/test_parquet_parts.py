"""Files that the data source's tasks write."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparktxlog.api.datasource import TxLogWriter
from sparktxlog.api.staging import parquet_parts as files
from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.api.staging.parquet_parts import FileStage, list_files
from sparktxlog.errors import InvalidRowsError, PayloadStoreError, SchemaMismatchError
from sparktxlog.model.tables.table import Column, TableDefinition

URL = "http://127.0.0.1:7070"
HOME = UploadTarget(url=URL, token=None, ca_file=None)


def _definition(kind: str, *, nullable: bool = True) -> TableDefinition:
    return TableDefinition(
        name="t",
        columns=(
            Column(name="id", type="bigint", nullable=nullable),
            Column(name="p", type=kind),
        ),
        partition_by=("p",),
    )


def _batch(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"P": pa.array(values, kind), "id": pa.array(range(len(values)), pa.int64())}
    )


def _stage(root: Path, definition: TableDefinition, name: str = "part") -> FileStage:
    (root / "tx" / "0-t").mkdir(parents=True)
    return FileStage(root, "tx/0-t", name, definition)


def test_rows_are_split_by_partition_and_described(tmp_path: Path) -> None:
    stage = _stage(tmp_path, _definition("string"), "part-0-7")
    stage.write(_batch(pa.string(), ["a/b", "", None, "a/b"]))
    stage.write(_batch(pa.string(), ["a/b"]))
    files = {(file.partition or {})["p"]: file for file in stage.close()}
    assert {value: file.rows for value, file in files.items()} == {"a/b": 3, None: 2}
    for file in files.values():
        data = (tmp_path / file.path).read_bytes()
        assert (file.size_bytes, file.digest) == (len(data), hashlib.sha256(data).hexdigest())
        assert pq.read_schema(tmp_path / file.path).names == ["id"]
    assert files["a/b"].path.startswith("tx/0-t/p=a%2Fb/part-0-7-")


@pytest.mark.parametrize(
    ("ddl", "kind", "value", "text"),
    [
        ("int", pa.int32(), -5, "-5"),
        ("boolean", pa.bool_(), True, "true"),
        ("date", pa.date32(), date(2024, 2, 29), "2024-02-29"),
        ("decimal(10,2)", pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
        (
            "timestamp",
            pa.timestamp("us", tz="UTC"),
            datetime(2024, 1, 2, 3, 4, 5, 600, tzinfo=UTC),
            "2024-01-02T03:04:05.000600Z",
        ),
    ],
)
def test_partition_values_are_written_as_delta_does(
    tmp_path: Path, ddl: str, kind: pa.DataType, value: Any, text: str
) -> None:
    stage = _stage(tmp_path, _definition(ddl))
    stage.write(_batch(kind, [value]))
    (file,) = stage.close()
    assert (file.rows, file.partition) == (1, {"p": text})


@pytest.mark.parametrize("name", ["p", "a/b", "100%41", "日", "p'#?*:"])
@pytest.mark.parametrize("value", ["東" * 78, "a=b/%41 \\\"'\t.", "..", "é\u0301"])
def test_names_and_values_of_all_scripts_are_told_as_they_are(
    tmp_path: Path, name: str, value: str
) -> None:
    columns = (Column(name="id", type="bigint"), Column(name=name, type="string"))
    stage = _stage(tmp_path, TableDefinition(name="t", columns=columns, partition_by=(name,)))
    stage.write(pa.RecordBatch.from_pydict({name: [value, value, None], "id": [1, 2, 3]}))
    found = {(file.partition or {})[name]: file.rows for file in stage.close()}
    assert found == {value: 2, None: 1}


def test_a_value_that_is_too_long_for_a_directory_is_refused(tmp_path: Path) -> None:
    """Also where Spark has checked the rows, which does not look at that."""
    (tmp_path / "tx").mkdir()
    stage = FileStage(tmp_path, "tx", "part", _definition("string"), checks=False)
    with pytest.raises(InvalidRowsError, match="255 are allowed") as caught:
        stage.write(_batch(pa.string(), ["東" * 90]))
    assert caught.value.definite and caught.value.fields["column"] == "p"


def test_what_does_not_fit_is_refused_and_discarded(tmp_path: Path) -> None:
    stage = _stage(tmp_path, _definition("string", nullable=False))
    stage.write(_batch(pa.string(), ["a"]))
    broken = pa.RecordBatch.from_pydict({"p": ["a"], "id": pa.array([None], pa.int64())})
    with pytest.raises(InvalidRowsError):
        stage.write(broken)
    with pytest.raises(SchemaMismatchError):
        stage.write(pa.RecordBatch.from_pydict({"p": ["a"], "id": ["text"]}))
    stage.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_leaves_no_file_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a file is written when it is closed: also to give it up."""

    def full(writer: pq.ParquetWriter) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq.ParquetWriter, "close", full)
    stage = _stage(tmp_path, _definition("string"))
    stage.write(_batch(pa.string(), ["a", "b"]))
    with pytest.raises(OSError, match="No space left"):
        stage.close()
    stage.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    monkeypatch.undo()  # before Arrow closes them itself


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_task_that_goes_on_after_an_abort_leaves_nothing(
    tmp_path: Path, partitioned: bool
) -> None:
    definition = _definition("string")
    if not partitioned:
        definition = replace(definition, partition_by=())
    writer = TxLogWriter({"url": URL}, definition, HOME, str(tmp_path))
    stage = FileStage(tmp_path, writer._append.folder, "part", definition)
    writer.abort([])
    with pytest.raises(PayloadStoreError, match="aborted"):
        stage.write(_batch(pa.string(), ["a"]))
    stage.discard()
    assert list(tmp_path.iterdir()) == []
    writer.abort([])  # Spark does so after a commit that failed, too
    with pytest.raises(PayloadStoreError, match="has no such directory"):
        shared = {"url": URL, "staging": "shared"}
        TxLogWriter(shared, definition, HOME, str(tmp_path / "elsewhere"))


def test_listing_reads_partitions_and_removes_spark_s_checksums(tmp_path: Path) -> None:
    target = tmp_path / "tx" / "0-t"
    folder = target / "p=a%2Fb" / "q=__HIVE_DEFAULT_PARTITION__"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), folder / "part-0.parquet")
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), folder / "part-1.parquet")
    (folder / ".part-0.parquet.crc").write_bytes(b"crc")
    (file,) = list_files(tmp_path, target)
    assert file.path == "tx/0-t/p=a%2Fb/q=__HIVE_DEFAULT_PARTITION__/part-0.parquet"
    assert (file.rows, file.partition) == (2, {"p": "a/b", "q": None})
    assert not list(folder.glob(".*"))


def test_many_rows_do_not_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WAITING_BYTES", 20_000)
    stage = _stage(tmp_path, _definition("string"))
    kept = []
    for number in range(200):
        # A row of a partition of its own keeps the memory of its whole batch.
        stage.write(_batch(pa.string(), ["a", f"p{number % 3}"] * 50))
        kept.append(sum(part.nbytes for one in stage._open.values() for part in one.waiting))
    assert max(kept) <= 20_000
    assert sum(file.rows for file in stage.close()) == 200 * 100


def test_files_are_closed_at_their_limit_and_the_largest_at_that_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WAITING_BYTES", 1)
    (tmp_path / "tx").mkdir()
    definition = _definition("string")
    stage = FileStage(tmp_path, "tx", "part", definition, limits=(3_000, 7_000))
    open_bytes, closed = [], []
    for number in range(300):
        stage.write(_batch(pa.string(), ["a", f"p{number % 20}"]))
        open_bytes.append(sum(one.size_bytes for one in stage._open.values()))
        for file in stage.take_closed():
            (tmp_path / file.path).unlink()  # as after an upload
            closed.append(file)
    assert max(open_bytes) <= 7_000
    closed += stage.close()
    assert len({file.path for file in closed}) == len(closed) > 20
    assert sum(file.rows for file in closed) == 600
    assert all(str((file.partition or {})["p"]) in file.path for file in closed)
    stage.discard()
