"""A row table of the site's replica, read file by file: `spark.read.format("txlog").load(table)`.

The node says which Delta version of the table belongs to the newest position that is applied whole,
so a read shows no parts of transactions, also while a worker is in the middle of a batch.  Spark's
own reader of Delta (`log.table`) skips columns and files; a data source of Python reads them all.

A table in a bucket is read by planner and tasks as the environment of their processes says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sparktxlog.api.reading.replica_snapshot import reached_answer
from sparktxlog.api.schema import arrow_schema_of
from sparktxlog.api.staging.staged_append import timeout_of
from sparktxlog.api.streams.table_changes import partition_value
from sparktxlog.codec.calendars import SPARK_READS_IT, batches_of, open_parquet
from sparktxlog.delta.deletion_vectors import deleted_rows
from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import DivergedError, NotAppliedError, StaleSchemaError
from sparktxlog.model.ids import table_name
from sparktxlog.worker.lakes.lake_places import bucket_at, is_in_bucket

if TYPE_CHECKING:
    from sparktxlog.api.nodes import Nodes


class _File(InputPartition):
    """A data file, the values of its partition columns, and which of its rows are not there."""

    def __init__(
        self, table: str, path: str, values: Mapping[str, str | None], deleted: NDArray[np.int64]
    ) -> None:
        #: Path or URL of the table.
        self.table = table
        #: Below the table.
        self.path = path
        #: Name in files → value, as Delta writes it.
        self.values = values
        #: Numbers of rows, ascending.
        self.deleted = deleted


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A Delta table at one version."""

    place: TablePlace
    log: LogState

    @classmethod
    def read(cls, place: TablePlace, version: int | None = None) -> TableVersion:
        """Return a version, None = the newest; errors as `LogState.read`."""
        return cls(place, LogState.read(place, version, known=True))


def open_table(link: Nodes, name: str, options: Mapping[str, str]) -> TableVersion:
    """Return a row table at the version of the newest position that is applied whole.

    Args:
        link: The nodes; with option `after` the position that must be applied.
        name: Of the table.
        options: Those of the data source; `replica` names a replica of the site, default: the most
            current one that holds the table, and whose files this process sees.

    Raises:
        UnknownTableError: The log has no such table (definite).
        NotFoundError: The site has no such replica (definite).
        NotAppliedError: No worker has applied it here (definite).
        MissingDependencyError: It lies in a bucket, and what reaches that is not installed
            (definite).
        StorageError: As `Store`.
    """
    definition = link.table(table_name(name))

    def of(replica: str | None) -> Mapping[str, Any]:
        found: Mapping[str, Any] = link.get(
            "/v1/snapshot",
            at_least=link.position,
            replica=replica,
            table=definition.name,
            timeout_s=timeout_of(options),
            waits=True,
        )
        return found

    answer = reached_answer(of, options.get("replica") or None, definition.name)
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
    return TableVersion.read(_place_at(str(found["uri"])), int(found["version"]))


def _place_at(table: str) -> TablePlace:
    """Return the place of a table's path or URL."""
    return bucket_at(table) if is_in_bucket(table) else Path(table)


@contextmanager
def _opened(file: _File) -> Iterator[pq.ParquetFile]:
    """Open a data file; one of a bucket is read as it is needed.

    Raises:
        ObjectMissingError: Nothing is there any more (definite).
        StorageError: As `Store`.
    """
    place = _place_at(file.table)
    with ExitStack() as opened:
        # The library maps what lies on a disk.
        source = place / file.path if isinstance(place, Path) else place.reader(file.path)
        if not isinstance(source, Path):
            opened.enter_context(source)
        yield opened.enter_context(open_parquet(source))


def schema_of(table: TableVersion) -> StructType:
    """Return the columns of a Delta table; each may be NULL, as in every data source."""
    found = StructType.fromJson(json.loads(table.log.metadata["schemaString"]))
    for field in found.fields:
        field.nullable, field.metadata = True, {}
    return found


class TableFilesReader(DataSourceReader):
    """Reads the files of a Delta table at one version, with deletion vectors and renamed columns.

    Raises:
        StaleSchemaError: The table changed since Spark asked for its columns (definite).
    """

    def __init__(self, name: str, table: TableVersion, schema: StructType) -> None:
        self._name = name
        self._schema = arrow_schema_of(schema)
        if schema_of(table).simpleString() != schema.simpleString():
            raise StaleSchemaError(
                f"table {name!r} changed while Spark planned to read it", table=name
            )
        #: Column → name in files.
        self._stored = {column: stored for stored, column in table.log.names_in_files.items()}
        self._files: list[InputPartition] = [
            _File(
                store_of(table.place).url,
                path,
                add.get("partitionValues") or {},
                deleted_rows(table.place, add),
            )
            for path, add in table.log.adds.items()
        ]

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each file."""
        return self._files or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file; runs on an executor."""
        if not isinstance(partition, _File):
            return
        first = 0
        with _opened(partition) as file:
            for batch in batches_of(file, partition.path, SPARK_READS_IT):
                rows = pa.record_batch(
                    [self._column(batch, field, partition) for field in self._schema],
                    schema=self._schema,
                )
                ends = np.searchsorted(partition.deleted, [first, first + batch.num_rows])
                if ends[0] < ends[1]:
                    is_there = np.ones(batch.num_rows, bool)
                    is_there[partition.deleted[slice(*ends)] - first] = False
                    rows = rows.filter(pa.array(is_there))
                first += batch.num_rows
                yield rows

    def _column(self, batch: pa.RecordBatch, field: pa.Field, file: _File) -> pa.Array:
        name = self._stored[field.name]
        if name in file.values:
            return pa.repeat(partition_value(file.values[name], field.type), batch.num_rows)
        if name not in batch.schema.names:  # a column that was added later
            return pa.nulls(batch.num_rows, field.type)
        return batch.column(name).cast(field.type)
