"""A replica without Spark, and what its images hold."""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.support.delta_writer import FEATURES, StagedTable, info_of, lines_of
from tests.support.worker_log import table

from sparktxlog.model.signature import TableSignature
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.replica.state import (
    ReplicaDirectory,
    ReplicaState,
    ReplicaTable,
)

DEFINITION = table("t", "id bigint, p string", partition_by=["p"])


class Lake:
    """A replica of one table, written by delta-rs.

    Args:
        table: Its name.
    """

    def __init__(self, path: Path, table: str = "t") -> None:
        self.path = path
        self.table = table
        self.position = 0

    def append(self, *rows: tuple[int, str]) -> ReplicaState:
        data = pa.table({"id": [r[0] for r in rows], "p": [r[1] for r in rows]})
        write_deltalake(self.path / self.table, data, mode="append", partition_by=["p"])
        return self.record()

    def record(self, **changes: object) -> ReplicaState:
        self.position += 1
        signature = TableSignature(rows=self.position, lane0=2**64 - 1, lane1=7)
        with closing(ReplicaDirectory(self.path)) as directory:
            changes = {"log_id": "l", "chain_hash": f"{self.position:064x}"} | changes
            state = replace(
                directory.load(),
                epoch=1,
                position=self.position,
                tables={
                    self.table: ReplicaTable(
                        definition=replace(DEFINITION, name=self.table),
                        version=DeltaTable(self.path / self.table).version(),
                        signature=signature,
                    )
                },
                **changes,  # type: ignore[arg-type]
            )
            directory.save(state)
        return state


def rows(lake: Path, version: int | None = None, table: str = "t") -> list[tuple[int, str]]:
    """Return the rows of a table, sorted."""
    found = DeltaTable(lake / table, version=version).to_pyarrow_table().to_pydict()
    return sorted(zip(found["id"], found["p"], strict=True))


def stored_files(store: DiskImages) -> dict[int, Path]:
    """Return the files that images, finished or not, hold: each once, however many have it."""
    found = (path for path in store.root.glob("*/*/**/*") if path.is_file())
    return {path.stat().st_ino: path for path in found}


def three_versions(root: Path) -> StagedTable:
    """Return a commit table of versions 0 to 2; version 2 removes what version 1 adds."""
    identity = str(uuid.uuid4())
    directory = root / identity
    table = StagedTable(
        table_id=identity,
        directory=directory,
        location="",
        metadata={"schemaString": "{}", "configuration": {}},
        protocol={
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": FEATURES,
            "writerFeatures": FEATURES,
        },
    )
    directory.mkdir(parents=True)
    table.write_first(table.add(b"zero"))
    removed = table.add(b"one")
    publish(table, 1, removed)
    publish(table, 2, {"remove": removed["add"]}, table.add(b"two"))
    return table


def publish(table: StagedTable, version: int, *actions: dict[str, Any]) -> None:
    """Publish a version."""
    table.published(version).write_bytes(lines_of(info_of(version), *actions))


def files_of(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
