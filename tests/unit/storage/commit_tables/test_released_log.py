"""A released table has no features but those that it uses, in all of its versions."""

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

from sparktxlog.codec.delta_catalog.table_states import REQUIRED_PROPERTIES, TABLE_ID
from sparktxlog.delta.live_files import live_files
from sparktxlog.errors import StorageError
from sparktxlog.storage.commit_tables.released_log import drop_unused_features
from sparktxlog.storage.commit_tables.twin import make_plain_twin

SCHEMA = json.dumps({"type": "struct", "fields": [
    {"name": "id", "type": "long", "nullable": True, "metadata": {}}]})  # fmt: skip


def made(directory: Path, *writer_features: str) -> StagedTable:
    """Make a table with row 0, as a catalog's clients do."""
    directory.mkdir(parents=True)
    table = StagedTable(
        directory.name,
        directory,
        "",
        {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": SCHEMA,
            "partitionColumns": [],
            "configuration": REQUIRED_PROPERTIES
            | {
                TABLE_ID: directory.name,
                "delta.inCommitTimestampEnablementVersion": "0",
                "delta.appendOnly": "false",
            },
            "createdTime": BEGIN,
        },
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": FEATURES,
            "writerFeatures": [*FEATURES, "inCommitTimestamp", *writer_features],
        },
    )
    table.write_first(row(table, 0))
    return table


def row(table: StagedTable, number: int, **more: Any) -> dict[str, Any]:
    """Write a file with a row; return the action that adds it."""
    path = table.directory / f"{uuid.uuid4()}.parquet"
    pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), path)
    added = {"path": path.name, "size": path.stat().st_size, "partitionValues": {}}
    return {"add": added | {"modificationTime": BEGIN, "dataChange": True} | more}


def publish(table: StagedTable, version: int, *actions: dict[str, Any]) -> None:
    table.published(version).write_bytes(lines_of(info_of(BEGIN + 1000 * version), *actions))


def released(table: StagedTable, version: int) -> tuple[Path, tuple[str, ...]]:
    twin = table.directory.with_name("released")
    make_plain_twin(table.directory, version, twin)
    return twin, drop_unused_features(twin)


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize(
    ("writer_features", "protocol"),
    [
        ([], (1, 2, None, None)),
        (["appendOnly", "invariants"], (1, 2, None, None)),
        (["rowTracking", "domainMetadata"], (1, 7, None, ["domainMetadata", "rowTracking"])),
    ],
)
def test_nothing_stays_that_no_version_uses(
    tmp_path: Path, writer_features: list[str], protocol: tuple[Any, ...]
) -> None:
    table = made(tmp_path / "table", *writer_features)
    before = table.published(0).read_bytes()
    publish(table, 1, row(table, 1))
    twin, features = released(table, 1)
    found = DeltaTable(twin)
    shown = found.protocol()
    assert (
        shown.min_reader_version,
        shown.min_writer_version,
        shown.reader_features,
        shown.writer_features,
    ) == protocol
    assert features == tuple(protocol[3] or ())
    assert found.metadata().configuration == {"delta.appendOnly": "false"}
    assert ids(found) == [0, 1] and ids(DeltaTable(twin, version=0)) == [0]
    # Where Delta looks for the time of a version now.
    times = [path.stat().st_mtime_ns for path in sorted(twin.glob("_delta_log/*.json"))]
    assert times == [BEGIN * 1_000_000, (BEGIN + 1000) * 1_000_000]
    # The table itself is as it was.
    assert table.published(0).read_bytes() == before
    assert not (twin / "_delta_log" / f"{1:020}.json").samefile(table.published(1))


def test_deletion_vectors_stay_where_a_version_has_one(tmp_path: Path) -> None:
    table = made(tmp_path / "table")
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    added = row(table, 1, deletionVector=vector)
    publish(table, 1, added)
    removed = {"path": added["add"]["path"], "deletionVector": vector, "dataChange": True}
    publish(table, 2, {"remove": removed})
    twin, features = released(table, 2)
    assert features == ("deletionVectors",)
    found = DeltaTable(twin)
    assert found.protocol().reader_features == ["deletionVectors"]
    assert found.metadata().configuration["delta.enableDeletionVectors"] == "true"


def test_a_log_that_delta_cleaned_up_begins_with_a_classic_checkpoint(tmp_path: Path) -> None:
    table = made(tmp_path / "table")
    log = table.directory / "_delta_log"
    first = json.loads(table.published(0).read_bytes().splitlines()[-1])["add"]
    added = row(table, 1)["add"]
    publish(table, 1, {"add": added})
    publish(table, 2)
    publish(table, 3, row(table, 3))
    # As Delta writes it: what is no file is in the first one.
    (log / "_sidecars").mkdir()
    sidecar = log / "_sidecars" / f"{uuid.uuid4()}.parquet"
    values = pa.map_(pa.string(), pa.string())
    fields = {"path": pa.string(), "partitionValues": values, "size": pa.int64()}
    fields |= {"modificationTime": pa.int64(), "dataChange": pa.bool_()}
    kind = pa.struct([pa.field(name, one) for name, one in fields.items()])
    pq.write_table(pa.table({"add": pa.array([first, added], kind)}), sidecar)
    stat = sidecar.stat()
    named = {"path": sidecar.name, "sizeInBytes": stat.st_size, "modificationTime": BEGIN}
    top = [{"checkpointMetadata": {"version": 2}}, {"protocol": table.protocol}]
    top += [{"metaData": table.metadata}, {"sidecar": named}]
    top += [{"txn": {"appId": "stream", "version": 7}}]
    (log / f"{2:020}.checkpoint.{uuid.uuid4()}.json").write_bytes(lines_of(*top))
    for version in (0, 1):
        table.published(version).unlink()

    twin, features = released(table, 3)
    assert features == ()
    assert [path.name for path in twin.glob("_delta_log/*.checkpoint*")] == [
        f"{2:020}.checkpoint.parquet"
    ]
    assert not [*twin.glob("_delta_log/_sidecars/*")]
    found = DeltaTable(twin)
    assert (found.version(), ids(found)) == (3, [0, 1, 3])
    assert ids(DeltaTable(twin, version=2)) == [0, 1]
    assert found.protocol().min_reader_version == 1
    assert found.transaction_version("stream") == 7
    assert found.metadata().configuration == {"delta.appendOnly": "false"}


def test_files_at_the_top_of_a_checkpoint_are_not_lost(tmp_path: Path) -> None:
    table = made(tmp_path / "table")
    added = row(table, 1)
    publish(table, 1, added)
    first = json.loads(table.published(0).read_bytes().splitlines()[-1])
    top = [{"checkpointMetadata": {"version": 1}}, {"protocol": table.protocol}]
    top += [{"metaData": table.metadata}, first, added]
    log = table.directory / "_delta_log"
    (log / f"{1:020}.checkpoint.{uuid.uuid4()}.json").write_bytes(lines_of(*top))
    table.published(0).unlink()
    twin = table.directory.with_name("released")
    make_plain_twin(table.directory, 1, twin)
    with pytest.raises(StorageError, match="only its sidecars should have") as caught:
        drop_unused_features(twin)
    assert "--keep-features" in str(caught.value)
    assert set(live_files(twin, 1).needed) == {first["add"]["path"], added["add"]["path"]}
