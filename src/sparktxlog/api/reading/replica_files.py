"""A row table of the site's replica, read file by file: `spark.read.format("txlog").load(table)`.

The node says which Delta version of the table belongs to the newest position that is applied whole,
so a read shows no parts of transactions, also while a worker is in the middle of a batch.  Spark's
own reader of Delta (`log.table`) skips columns and files; a data source of Python reads them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sparktxlog.api.schema import arrow_schema_of
from sparktxlog.api.staging.staged_append import timeout_of
from sparktxlog.codec.calendars import SPARK_READS_IT, batches_of, open_parquet
from sparktxlog.delta.commit_contents import STORED_NAME
from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.errors import (
    DivergedError,
    MissingDependencyError,
    NotAppliedError,
    StaleSchemaError,
)
from sparktxlog.model.ids import table_name

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from sparktxlog.api.nodes import Nodes


class _File(InputPartition):
    """A data file, the values of its partition columns, and which of its rows are there."""

    def __init__(self, path: str, values: Mapping[str, Any], kept: bytes | None) -> None:
        self.path = path
        #: Column → value.
        self.values = values
        #: One bit for each row, 1 = it is there; None = all are.
        self.kept = kept


def delta_table(path: Path, version: int | None = None) -> DeltaTable:
    """Return a Delta table, to read its rows.

    Args:
        version: None = the newest.

    Raises:
        MissingDependencyError: The package deltalake is not installed (definite).
    """
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise MissingDependencyError(
            "reading the log needs the package deltalake",
            hint="Run: pip install 'sparktxlog[spark]'",
        ) from error
    return DeltaTable(path, version=version)


def open_table(link: Nodes, name: str, options: Mapping[str, str]) -> DeltaTable:
    """Return a row table at the version of the newest position that is applied whole.

    Args:
        link: The nodes; with option `after` the position that must be applied.
        name: Of the table.
        options: Those of the data source.

    Raises:
        UnknownTableError: The log has no such table (definite).
        NotAppliedError: No worker has applied it here (definite).
    """
    definition = link.table(table_name(name))
    answer = link.get(
        "/v1/snapshot", at_least=link.position, timeout_s=timeout_of(options), waits=True
    )
    found = answer["tables"].get(definition.name)
    if found is None:
        raise NotAppliedError(
            f"table {name!r} is not applied here yet: this site's replica has applied position "
            f"{answer['position']}",
            hint="Run a worker: sparktxlog apply, or spark-submit.sh jobs/apply.py.",
            table=name,
            applied=answer["position"],
        )
    if found["diverged"]:
        raise DivergedError(
            f"table {definition.name!r} of this site stands still: {found['diverged']}",
            hint=f"Repair it: sparktxlog repair {definition.name}.",
            table=definition.name,
        )
    return delta_table(Path(found["uri"]), int(found["version"]))


def schema_of(table: DeltaTable) -> StructType:
    """Return the columns of a Delta table; each may be NULL, as in every data source."""
    found = StructType.fromJson(_fields(table))
    for field in found.fields:
        field.nullable, field.metadata = True, {}
    return found


def _fields(table: DeltaTable) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(table.schema().to_json())
    return fields


def _local(root: str, path: str) -> Path:
    """Return the local path of a file as the log of the table names it."""
    return Path(root, path_of_file(path.removeprefix("file://")))


class TableFilesReader(DataSourceReader):
    """Reads the files of a Delta table at one version, with deletion vectors and renamed columns.

    Raises:
        StaleSchemaError: The table changed since Spark asked for its columns (definite).
    """

    def __init__(self, name: str, table: DeltaTable, schema: StructType) -> None:
        self._name = name
        self._schema = arrow_schema_of(schema)
        if schema_of(table).simpleString() != schema.simpleString():
            raise StaleSchemaError(
                f"table {name!r} changed while Spark planned to read it", table=name
            )
        #: Name in files → column.
        self._stored = {
            field["metadata"].get(STORED_NAME, field["name"]): field["name"]
            for field in _fields(table)["fields"]
        }
        self._files = self._planned(table)

    def _planned(self, table: DeltaTable) -> list[InputPartition]:
        root = table.table_uri.removeprefix("file://")
        kept: dict[Path, bytes] = {}
        for batch in table.deletion_vectors():
            for one in pa.record_batch(batch).to_pylist():
                kept[_local(root, one["filepath"])] = np.packbits(one["selection_vector"]).tobytes()
        files: list[InputPartition] = []
        for file in pa.table(table.get_add_actions()).to_pylist():
            path = _local(root, file["path"])
            # deltalake names partition columns as the table does, and other columns as files do.
            files.append(_File(str(path), file.get("partition") or {}, kept.get(path)))
        return files

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each file."""
        return self._files or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; runs on an executor."""
        if not isinstance(partition, _File):
            return
        kept, first = None, 0
        if partition.kept is not None:
            kept = np.unpackbits(np.frombuffer(partition.kept, dtype=np.uint8)).astype(bool)
        with open_parquet(partition.path) as file:
            stored = {name: column for column, name in self._stored.items()}
            for batch in batches_of(file, partition.path, SPARK_READS_IT):
                rows = pa.record_batch(
                    [self._column(batch, field, stored, partition) for field in self._schema],
                    schema=self._schema,
                )
                if kept is not None:
                    rows = rows.filter(pa.array(kept[first : first + batch.num_rows]))
                first += batch.num_rows
                yield rows

    def _column(
        self, batch: pa.RecordBatch, field: pa.Field, stored: Mapping[str, str], file: _File
    ) -> pa.Array:
        name = stored[field.name]
        if field.name in file.values:
            return pa.repeat(pa.scalar(file.values[field.name], field.type), batch.num_rows)
        if name not in batch.schema.names:  # a column that was added later
            return pa.nulls(batch.num_rows, field.type)
        return batch.column(name).cast(field.type)
