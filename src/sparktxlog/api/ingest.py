"""Files of any format that Spark reads, committed to a table: what `jobs/commit.py` does."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from sparktxlog.api.connect import TxLog
from sparktxlog.api.schema import struct_of
from sparktxlog.errors import InvalidRequestError, UnknownTableError
from sparktxlog.model.operation import ROW_KINDS, OperationKind
from sparktxlog.model.table import TableDefinition
from sparktxlog.worker.signatures import quoted

FORMATS = ("parquet", "csv", "json", "delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """One input and what to do with it."""

    table: str
    #: Path or URI, as Spark reads it.
    source: str
    #: One of `FORMATS`.
    format: str = "parquet"
    kind: OperationKind = OperationKind.APPEND
    #: Spark's reader options.
    options: Mapping[str, str] = field(default_factory=dict)
    #: Create the table with the input's columns if it is not there.
    create: bool = False
    keys: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    #: Makes one transaction for each value of a column.
    transaction_column: str | None = None
    #: Column with the UUIDs of those transactions.
    transaction_ids_column: str | None = None
    level: str = "ordered"
    #: Seconds.
    timeout: float = 60.0
    #: Makes a repeated commit one; without a transaction column.
    transaction_id: str | None = None


def ingest(log: TxLog, wanted: Ingest) -> dict[str, Any]:
    """Read the input and commit it; return what became of it, as JSON takes it.

    Raises:
        InvalidRequestError: The input cannot be read, or arguments exclude one another (definite).
        CommitRejectedError: The class that fits (definite).
        CommitStateUnknownError: The level was not reached in time (not definite).
    """
    if wanted.transaction_id and wanted.transaction_column:
        raise InvalidRequestError(
            "one transaction id is given for many transactions",
            hint="Name a column of ids with --transaction-ids-column.",
        )
    definition = _definition(log, wanted)
    frame = read_input(log.spark, wanted, definition)
    if definition is None:
        log.create_table(wanted.table, frame, keys=wanted.keys, partition_by=wanted.partition_by)
    if wanted.transaction_column:
        receipt = log.commit_many(
            frame,
            table=wanted.table,
            kind=wanted.kind.value,
            transaction=wanted.transaction_column,
            transaction_ids=wanted.transaction_ids_column,
            level=wanted.level,
            timeout=wanted.timeout,
        )
        return {
            "transactions": receipt.transactions,
            "rows": receipt.rows,
            "runs": [asdict(run) for run in receipt.runs],
            "rejections": [asdict(rejection) for rejection in receipt.rejections],
        }
    transaction_id = wanted.transaction_id or str(uuid.uuid4())
    with log.transaction(
        level=wanted.level, timeout=wanted.timeout, transaction_id=transaction_id
    ) as t:
        t.add(wanted.kind, wanted.table, frame)
    return {"transactions": 1, **asdict(t.committed)}


def _definition(log: TxLog, wanted: Ingest) -> TableDefinition | None:
    try:
        return log.definition(wanted.table)
    except UnknownTableError:
        if wanted.create:
            return None
        raise


def read_input(
    spark: SparkSession, wanted: Ingest, definition: TableDefinition | None
) -> DataFrame:
    """Return the input as a DataFrame.

    CSV and JSON hold no types: with a known table each of its columns is read as the table has
    it, and a value that does not fit fails the job; without one, Spark infers the types.

    Raises:
        InvalidRequestError: Unknown format or kind, no such path (definite).
    """
    if wanted.format not in FORMATS or wanted.kind not in ROW_KINDS:
        raise InvalidRequestError(
            f"format {wanted.format!r} and operation {wanted.kind.value!r} do not go",
            hint=f"Formats: {', '.join(FORMATS)}; operations carry rows.",
        )
    try:
        reader = spark.read.format(wanted.format)
        if wanted.format == "csv":
            infer = str(definition is None).lower()
            reader = reader.options(header="true", inferSchema=infer, mode="FAILFAST")
        frame = reader.options(**wanted.options).load(wanted.source)
        if definition is None or wanted.format not in ("csv", "json"):
            return frame
        typed = _typed(frame.schema, struct_of(definition, wanted.kind))
        if wanted.format == "json":
            options = {"mode": "FAILFAST", **wanted.options}
            return spark.read.schema(typed).options(**options).json(wanted.source)
    except PySparkException as error:
        text = " ".join(str(error).split("\n")[:2])[:400]
        raise InvalidRequestError(
            f"{wanted.source[:200]!r} cannot be read as {wanted.format}: {text}",
            hint="Check path and format.",
        ) from error
    return frame.select(
        *(F.col(quoted(f.name)).cast(f.dataType).alias(f.name) for f in typed.fields)
    )


def _typed(given: StructType, table: StructType) -> StructType:
    """Return the input's columns with the table's types where it has them."""
    types = {field.name.lower(): field.dataType for field in table.fields}
    return StructType(
        [StructField(f.name, types.get(f.name.lower(), f.dataType)) for f in given.fields]
    )
