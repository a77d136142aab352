"""Tables as `format("txlog")` reads them, file by file."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.worker_log import LogBuilder, own_commit, table
from tests.unit.delta.test_deletion_vectors import in_file

from sparktxlog.api.reading.replica_files import TableFilesReader, TableVersion, schema_of
from sparktxlog.delta.commit_files import commit_by_hand
from sparktxlog.delta.log_state import LogState
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.apply.altering import alter_table
from sparktxlog.worker.apply.placing import Placer
from sparktxlog.worker.apply.tables import create_table
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.payload_files import StagedOnDisk


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"id": "number"},
        {"p": "place"},
        {"v": "p", "p": "v"},
    ],
)
def test_values_of_partitions_are_found_under_every_name(
    tmp_path: Path, names: dict[str, str]
) -> None:
    log = LogBuilder(tmp_path)
    definition = table("t", "id bigint, v string, p string", partition_by=["p"])
    log.transaction().create(definition).staged("append", "t", [(1, "x", "a b/%"), (2, "y", None)])
    root = placed(log, definition)
    if names:
        alter_table(root, 1, definition, TableChange(rename=tuple(names.items())), own_commit(2))
    assert read(root) == [
        {names.get(name, name): value for name, value in row.items()}
        for row in (
            {"id": 1, "v": "x", "p": "a b/%"},
            {"id": 2, "v": "y", "p": None},
        )
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 7),
        ("date", date(2024, 1, 31)),
        ("boolean", False),
        ("decimal(10,2)", Decimal("-1.50")),
        ("double", -0.1),
        ("timestamp", datetime(2024, 1, 31, 10, 0, 0, 5, tzinfo=UTC)),
    ],
)
def test_partitions_have_values_of_their_type(tmp_path: Path, kind: str, value: Any) -> None:
    log, definition = LogBuilder(tmp_path), table("t", f"id bigint, p {kind}", partition_by=["p"])
    log.transaction().create(definition).staged("append", "t", [(1, value), (2, None)])
    assert read(placed(log, definition)) == [{"id": 1, "p": value}, {"id": 2, "p": None}]


def test_files_from_before_a_column_was_widened_are_read(tmp_path: Path) -> None:
    log, definition = LogBuilder(tmp_path), table("t", "id bigint, n int")
    log.transaction().create(definition).staged("append", "t", [(1, 5), (2, None)])
    root = placed(log, definition)
    alter_table(root, 1, definition, TableChange(widen=(("n", "bigint"),)), own_commit(2))
    assert schema_of(TableVersion.read(root)).simpleString() == "struct<id:bigint,n:bigint>"
    assert read(root) == [{"id": 1, "n": 5}, {"id": 2, "n": None}]


def test_deleted_rows_are_left_out_of_every_batch(tmp_path: Path) -> None:
    log, definition = LogBuilder(tmp_path), table("t", "id bigint")
    log.transaction().create(definition).staged("append", "t", [(n,) for n in range(70_000)])
    root, gone = placed(log, definition), [0, 65_535, 65_536, 69_999]
    low, high = (struct.pack("<HH", *(n % 65_536 for n in part)) for part in (gone[:2], gone[2:]))
    heads = struct.pack("<IIHHHHII", 12_346, 2, 0, 1, 1, 1, 24, 28)
    (root / "v").mkdir()
    deleting = in_file(
        root / "v", struct.pack("<iqI", 1_681_511_377, 1, 0) + heads + low + high, len(gone)
    )["deletionVector"]
    deleting["pathOrInlineDv"] = f"v/{deleting['pathOrInlineDv']}"
    (add,) = LogState.read(root).adds.values()
    commit_by_hand(root, 2, {}, "", [{"add": {**add, "deletionVector": deleting}}])
    found = [row["id"] for row in read(root)]
    assert sorted(found) == sorted(set(range(70_000)) - set(gone))


def placed(log: LogBuilder, definition: TableDefinition) -> Path:
    """Make a table of the files that were staged for it; return its directory."""
    lake = log.payloads.parent / "lake"
    create_table(lake / "t", definition, "{}", {"appId": "a", "version": 0})
    log.publish()
    files = [file for effect in log.segments[-1].effects for file in effect.files]
    Placer(DiskLake(lake), StagedOnDisk(log.payloads)).place(definition, files, own_commit(1), 0)
    return lake / "t"


def read(root: Path) -> list[dict[str, Any]]:
    """Return the rows, ordered by their first column."""
    found = TableVersion.read(root)
    reader = TableFilesReader("t", found, schema_of(found))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return sorted(rows, key=lambda row: str(next(iter(row.values()))))
