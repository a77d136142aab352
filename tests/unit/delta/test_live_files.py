"""Which files a version needs, as its log says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.replica_lakes import append_rows

from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.delta.live_files import live_files, needed_files
from sparktxlog.delta.log_files import commit_path, log_of
from sparktxlog.errors import CorruptLogError, StorageError

NAME = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 1,
    "sizeInBytes": 36,
    "cardinality": 1,
}
#: Partition values that are quoted in names of directories, in logs, or in both.
ODD = ["plain", "a b", "a%20b", "ü", "a+b", "a/b", "a:b", "#?&=", "it's", "🦆", "1,2;3"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of three versions, a file of none, and hidden ones."""
    for seed in range(3):
        append_rows(tmp_path / "t", 5, seed=seed)
    (tmp_path / "t" / ".part.crc").write_bytes(b"hidden")
    (tmp_path / "t" / "p=a%20b").mkdir()
    (tmp_path / "t" / "p=a%20b" / "x.parquet").write_bytes(b"x" * 10)
    return tmp_path / "t"


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    commit_path(table, version).write_text("\n".join(map(json.dumps, actions)))


def as_delta_rs_says(table: Path, version: int) -> dict[str, int]:
    found = pa.table(DeltaTable(table, version=version).get_add_actions())
    paths = map(path_of_file, found.column("path").to_pylist())
    return dict(zip(paths, found.column("size_bytes").to_pylist(), strict=True))


def test_live_files_are_those_of_the_version(table: Path) -> None:
    for version in range(3):
        found = live_files(table, version).sizes
        assert len(found) == version + 1 and found == as_delta_rs_says(table, version)
        assert all((table / path).stat().st_size == size for path, size in found.items())
    assert live_files(table).sizes == live_files(table, 2).sizes


@pytest.mark.parametrize("checkpoint", [False, True])
def test_odd_names_are_those_of_the_files(tmp_path: Path, checkpoint: bool) -> None:
    rows = pa.table({"id": range(len(ODD)), "p": ODD})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    write_deltalake(tmp_path, rows.slice(0, 6), mode="append")
    write_deltalake(tmp_path, rows, mode="overwrite")
    write_deltalake(tmp_path, rows.slice(3), mode="append")
    if checkpoint:
        DeltaTable(tmp_path).create_checkpoint()
        for path in log_of(tmp_path).glob("*[012].json"):
            path.unlink()
    found = live_files(tmp_path, 3).sizes
    assert len(found) == 2 * len(ODD) - 3 and found == as_delta_rs_says(tmp_path, 3)
    assert all((tmp_path / path).stat().st_size == size for path, size in found.items())


def test_a_vector_is_needed_with_its_file(table: Path) -> None:
    path = min(live_files(table, 2).sizes)
    remove = {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}}
    commit(table, 3, {"add": {"path": path, "size": 9, "deletionVector": VECTOR}}, remove)
    assert NAME not in live_files(table, 2).needed
    found = live_files(table, 3)
    assert found.needed[NAME].size >= 37 and not found.needed[NAME].is_exact
    assert found.sizes.keys() == live_files(table, 2).sizes.keys()
    commit(table, 4, remove)
    assert {NAME, path}.isdisjoint(live_files(table, 4).needed)


def test_a_log_that_is_not_whole_is_refused(table: Path) -> None:
    with pytest.raises(CorruptLogError, match="not a Delta table"):
        live_files(table / "p=a%20b")
    with pytest.raises(CorruptLogError, match="has no version 3"):
        live_files(table, 3)
    for text, problem in (("{", "cannot be read"), ('{"add":{"path":"../x"}}', "no path below")):
        commit_path(table, 3).write_text(text)
        with pytest.raises(CorruptLogError, match=problem):
            live_files(table, 3)
    commit_path(table, 1).unlink()
    with pytest.raises(CorruptLogError, match="has no version 1"):
        live_files(table, 2)


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 99, "minWriterVersion": 99},
        {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["of tomorrow"]},
    ],
)
def test_where_the_log_means_what_nobody_knows_all_data_files_count(
    table: Path, protocol: dict[str, Any]
) -> None:
    every = {path: file.size for path, file in needed_files(table, 2).items()}
    assert every == live_files(table, 2).sizes
    commit(table, 3, {"protocol": protocol})
    with pytest.raises(StorageError, match="not known here"):
        live_files(table, 3)
    found = {path: file.size for path, file in needed_files(table, 3).items()}
    assert found == every | {"p=a%20b/x.parquet": 10}  # neither hidden files nor the log
    with pytest.raises(StorageError, match="not a Delta table"):
        needed_files(table / "p=a%20b", 0)
