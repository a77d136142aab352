"""Stages rows on executors that do not see the node's payload store: their tasks upload files.

A task writes Parquet files into a directory of its own machine and sends each one when it is
closed.  There is a limit for each file, and one for all that are not sent yet, so a task needs
little disk and memory whatever its rows are.  If the node is slower than the task, the task waits.

Each attempt at a task has file names of its own.  Spark returns what the successful attempt
uploaded; the node removes other files with those that no transaction names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from sparktxlog.api.schema import struct_of
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.api.staging.uploaded_rows import upload_rows
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import PayloadStoreError, TxLogError, first_lines
from sparktxlog.http.link import Http
from sparktxlog.http.upload_link import UploadLink
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile

#: What a task says of each file.
_DESCRIPTION = pa.schema(
    {
        "path": pa.string(),
        "size_bytes": pa.int64(),
        "rows": pa.int64(),
        "digest": pa.string(),
        "partition": pa.map_(pa.string(), pa.string()),
    }
)
#: Column that numbers the rows of each key, and the observed key that two rows have, as JSON.
RANK, TWICE = "__txlog_rank", "__txlog_twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTarget:
    """The node that takes files; it is pickled to executors."""

    url: str
    #: Client token; never in texts.
    token: str | None = field(repr=False)
    #: Authority of the node's certificate.
    ca_file: str | None

    @classmethod
    def of(cls, home: Http) -> Self:
        """Return the node of a link."""
        return cls(url=home.url, token=home.token, ca_file=home.ca_file)

    def check(self, spark: SparkSession) -> None:
        """Let an executor ask the node: else a job finds out after minutes.

        Raises:
            PayloadStoreError: It does not reach the node, or lacks this package (definite).
        """

        def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with closing(UploadLink(self.url, token=self.token, ca_file=self.ca_file)) as link:
                link.get("/v1/info")
            yield from batches

        try:
            spark.range(1, numPartitions=1).mapInArrow(ask, "id bigint").collect()
        except (PySparkException, Py4JError) as error:
            raise self._failed(errors_from_spark(error)) from error

    def _failed(self, error: BaseException) -> PayloadStoreError:
        reason = error.message if isinstance(error, TxLogError) else first_lines(error)
        return PayloadStoreError(
            f"an executor cannot upload to {self.url}: {reason}",
            hint="Nothing was submitted. Executors need the way to that URL, the package "
            "sparktxlog, and the file that ca_file names.",
            url=self.url,
        )

    def stage(
        self, rows: DataFrame, folder: str, definition: TableDefinition, kind: OperationKind
    ) -> tuple[StagedFile, ...]:
        """Write rows that are conformed and checked, with a Spark job; return their files.

        Args:
            folder: Directory of the operation, relative to the payload store.

        Raises:
            TxLogError: The node did not take a file, and nothing was submitted (definite).
            PySparkException, Py4JError: The job failed.
        """

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            files = self.upload(batches, folder, definition, kind, checks=False)
            if files:
                said = [
                    {name: getattr(file, name) for name in _DESCRIPTION.names} for file in files
                ]
                yield pa.RecordBatch.from_pylist(said, schema=_DESCRIPTION)

        try:
            found = rows.mapInArrow(work, from_arrow_schema(_DESCRIPTION)).collect()
        except (PySparkException, Py4JError) as error:
            typed = errors_from_spark(error)
            if isinstance(typed, TxLogError) and not typed.definite:
                raise self._failed(typed) from error
            raise typed from error
        files = [StagedFile(**row.asDict()) for row in found]
        return tuple(sorted(files, key=lambda file: file.path))

    def upload(
        self,
        batches: Iterable[pa.RecordBatch],
        folder: str,
        definition: TableDefinition,
        kind: OperationKind = OperationKind.APPEND,
        *,
        checks: bool = True,
    ) -> list[StagedFile]:
        """Write one task's rows and upload their files; runs on an executor.

        Raises:
            SchemaMismatchError, InvalidRowsError: They do not fit the table (definite).
            TxLogError: As `UploadLink.upload`.
        """
        with closing(UploadLink(self.url, token=self.token, ca_file=self.ca_file)) as link:
            return upload_rows(
                link, batches, folder, definition, kind, name=attempt_name(), checks=checks
            )


def attempt_name() -> str:
    """Return how the names of this attempt's files begin; no other attempt has the same start."""
    context = TaskContext.get()
    assert context is not None
    return f"part-{context.partitionId():05d}-{context.taskAttemptId()}"


def _key_columns(definition: TableDefinition) -> list[Column]:
    """Return the columns of a table's keys."""
    return [
        F.col(quoted_name(name)) for name in struct_of(definition, OperationKind.DELETE_KEYS).names
    ]


def ranked(rows: DataFrame, definition: TableDefinition) -> DataFrame:
    """Return rows with the column `RANK`, which numbers those of each key."""
    window = Window.partitionBy(*_key_columns(definition)).orderBy(F.lit(1))
    return rows.withColumn(RANK, F.row_number().over(window))


def repeated_key(definition: TableDefinition) -> Column:
    """Return the observation `TWICE` of ranked rows; NULL = each key has one row."""
    shown = F.to_json(F.struct(*_key_columns(definition)))
    return F.max(F.when(F.col(RANK) > 1, shown)).alias(TWICE)
