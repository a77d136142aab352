"""Reader tables for readers without a catalog: read by deltalake, followed, made again."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.support.delta_writer import BEGIN, FEATURES, StagedTable, info_of, lines_of

from sparktxlog.errors import CorruptLogError
from sparktxlog.storage.commit_tables.reader_table import ReaderTable, remove_unknown

PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": FEATURES,
    "writerFeatures": [*FEATURES, "inCommitTimestamp", "rowTracking", "domainMetadata"],
}
SCHEMA = json.dumps({"type": "struct", "fields": [
    {"name": "id", "type": "long", "nullable": True, "metadata": {}}]})  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> StagedTable:
    """A table with row 0, as Delta makes it."""
    directory = tmp_path / "tables" / str(uuid.uuid4())
    directory.mkdir(parents=True)
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": SCHEMA,
        "partitionColumns": [],
        "configuration": {
            "delta.enableDeletionVectors": "true",
            "delta.checkpointPolicy": "v2",
            "delta.enableInCommitTimestamps": "true",
        },
        "createdTime": BEGIN,
    }
    made = StagedTable(directory.name, directory, "", metadata, PROTOCOL)
    made.write_first(row(made, 0))
    return made


def row(table: StagedTable, number: int) -> dict[str, Any]:
    """Write a file with a row; return the action that adds it."""
    path = table.directory / f"{uuid.uuid4()}.parquet"
    pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), path)
    added = {"path": path.name, "size": path.stat().st_size, "partitionValues": {}}
    return {"add": added | {"modificationTime": BEGIN, "dataChange": True}}


def publish(table: StagedTable, version: int, *actions: dict[str, Any]) -> None:
    table.published(version).write_bytes(lines_of(info_of(BEGIN + version), *actions))


def read(path: Path) -> tuple[int, list[int]]:
    """Return version and rows, as deltalake reads them."""
    found = DeltaTable(str(path))
    return found.version(), sorted(found.to_pyarrow_table()["id"].to_pylist())


def test_a_reader_table_follows_its_table(table: StagedTable, tmp_path: Path) -> None:
    target = tmp_path / "plain" / "s" / "t"
    plain = ReaderTable(table.directory, target)
    plain.follow(0)
    assert read(target) == (0, [0])
    added = row(table, 1)
    publish(table, 1, added)
    publish(table, 2, row(table, 2), {"remove": {"path": added["add"]["path"], "dataChange": True}})
    plain.follow(2)
    assert read(target) == (2, [0, 2])
    assert (target / added["add"]["path"]).samefile(table.directory / added["add"]["path"])
    # After a start of the node it goes on where it was.
    kept = (target / "_delta_log" / f"{0:020}.json").stat().st_ino
    publish(table, 3, row(table, 3))
    ReaderTable(table.directory, target).follow(3)
    assert read(target) == (3, [0, 2, 3])
    assert (target / "_delta_log" / f"{0:020}.json").stat().st_ino == kept
    # Also where Delta cleaned the table's log up meanwhile.
    table.published(0).unlink()
    publish(table, 4, row(table, 4))
    ReaderTable(table.directory, target).follow(4)
    assert read(target) == (4, [0, 2, 3, 4])
    assert (target / "_delta_log" / f"{0:020}.json").stat().st_ino == kept


def test_a_long_log_gets_checkpoints(table: StagedTable, tmp_path: Path) -> None:
    target = tmp_path / "plain" / "s" / "t"
    plain = ReaderTable(table.directory, target)
    for version in range(1, 102):
        publish(table, version)
    publish(table, 100, row(table, 100))
    plain.follow(99)
    assert not [*target.glob("_delta_log/*.checkpoint.parquet")]
    plain.follow(101)
    assert [path.name[:20] for path in target.glob("_delta_log/*.checkpoint.parquet")] == [
        f"{101:020}"
    ]
    assert read(target) == (101, [0, 100])


def test_a_touched_one_is_made_again(table: StagedTable, tmp_path: Path) -> None:
    target = tmp_path / "plain" / "s" / "t"
    plain = ReaderTable(table.directory, target)
    plain.follow(0)
    foreign = target / "_delta_log" / f"{1:020}.json"
    foreign.write_bytes(lines_of(info_of(BEGIN + 1), {"add": {"path": "x", "size": 1}}))
    publish(table, 1, row(table, 1))
    plain.follow(1)
    assert read(target) == (1, [0, 1])
    foreign.write_bytes(lines_of(info_of(BEGIN + 5)))  # in place: the next start finds it
    ReaderTable(table.directory, target).follow(1)
    assert read(target) == (1, [0, 1])
    assert [path.name for path in target.parent.iterdir()] == ["t"]


def test_deletion_vectors_are_named_from_the_first_one_on(
    table: StagedTable, tmp_path: Path
) -> None:
    target = tmp_path / "plain" / "s" / "t"
    plain = ReaderTable(table.directory, target)
    inline = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    added = row(table, 1)
    publish(table, 1, added)
    vector = {"add": added["add"] | {"deletionVector": inline}}
    publish(table, 2, vector, {"remove": {"path": added["add"]["path"], "dataChange": True}})
    publish(table, 3)
    plain.follow(3)
    features = [
        DeltaTable(str(target), version=version).protocol().reader_features or []
        for version in range(4)
    ]
    assert features == [[], [], ["deletionVectors"], ["deletionVectors"]]


def test_the_directory_of_somebody_else_is_left_alone(table: StagedTable, tmp_path: Path) -> None:
    target = tmp_path / "plain" / "s" / "t"
    target.mkdir(parents=True)
    with pytest.raises(CorruptLogError, match="no reader table of this node"):
        ReaderTable(table.directory, target).follow(0)
    assert remove_unknown(tmp_path / "plain", set()) == []
    other = target.with_name("o")
    ReaderTable(table.directory, other).follow(0)
    assert remove_unknown(tmp_path / "plain", {other}) == []
    assert remove_unknown(tmp_path / "plain", {target}) == [other]
    assert target.is_dir()
    assert not other.exists()
