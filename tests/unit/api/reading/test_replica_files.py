"""Tables as `format("txlog")` reads them, file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.worker_log import LogBuilder, table

from sparktxlog.api.reading.replica_files import TableFilesReader, schema_of
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.worker.apply.altering import alter_table
from sparktxlog.worker.apply.placing import Placer
from sparktxlog.worker.apply.tables import OwnCommit, create_table


def own(version: int) -> OwnCommit:
    return OwnCommit(
        log_id="l",
        epoch=1,
        table="t",
        first=version,
        last_position=version,
        step=0,
        last=True,
        from_hash="",
        to_hash="",
        signature="",
    )


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
    log, root = LogBuilder(tmp_path), tmp_path / "lake" / "t"
    definition = table("t", "id bigint, v string, p string", partition_by=["p"])
    create_table(root, definition, "{}", {"appId": "a", "version": 0})
    log.transaction().create(definition).staged("append", "t", [(1, "x", "a b/%"), (2, "y", None)])
    log.publish()
    files = [file for effect in log.segments[-1].effects for file in effect.files]
    Placer(tmp_path / "lake", log.payloads).place(definition, files, own(1), 0)
    if names:
        alter_table(root, 1, definition, TableChange(rename=tuple(names.items())), own(2))
    assert read(root) == [
        {names.get(name, name): value for name, value in row.items()}
        for row in (
            {"id": 1, "v": "x", "p": "a b/%"},
            {"id": 2, "v": "y", "p": None},
        )
    ]


def read(root: Path) -> list[dict[str, Any]]:
    """Return the rows, ordered by their first column."""
    found = DeltaTable(root)
    reader = TableFilesReader("t", found, schema_of(found))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return sorted(rows, key=lambda row: str(next(iter(row.values()))))
