"""Files of any format that Spark reads, committed to a table: the job `commit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from sparktxlog.api.connect import TxLog, connect
from sparktxlog.api.jobs.job import LAGGING, OK, JobContext
from sparktxlog.api.jobs.job_options import FORMATS
from sparktxlog.api.jobs.progress_lines import say
from sparktxlog.api.schema import struct_of
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import InvalidRequestError, UnknownTableError, first_lines
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import ROW_KINDS, OperationKind
from sparktxlog.model.transactions.receipt import Level


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
    #: Column each of whose values makes one transaction.
    transaction_column: str | None = None
    #: Column with the UUIDs of those transactions.
    transaction_ids_column: str | None = None
    level: str = "ordered"
    #: Seconds.
    timeout: float = 60.0
    #: Id that makes repeated commits one transaction; not with a transaction column.
    transaction_id: str | None = None
    #: Whatever the log has under that id counts.
    first_wins: bool = False


def commit(context: JobContext) -> tuple[int, dict[str, Any]]:
    """Commit the job's input, and print the result to stderr."""
    a = context.arguments
    wanted = Ingest(
        table=a.table,
        source=a.input,
        format=a.format,
        kind=OperationKind(a.op),
        options=dict(pair.partition("=")[::2] for pair in a.option),
        create=a.create,
        keys=tuple(filter(None, a.keys.split(","))),
        partition_by=tuple(filter(None, a.partition_by.split(","))),
        transaction_column=a.transaction_column,
        level=a.level,
        timeout=a.timeout,
        transaction_ids_column=a.transaction_ids_column,
        transaction_id=a.transaction_id,
        first_wins=a.first_wins,
    )
    with connect(context.spark, a.url) as log:
        result = ingest(log, wanted)
    say(describe(wanted, result))
    return LAGGING if result["late"] else OK, result


def describe(wanted: Ingest, result: Mapping[str, Any]) -> str:
    """Return one sentence on what `ingest` committed, and the level it reached."""
    act = f"{wanted.kind.value} of {wanted.source} to {wanted.table}"
    if wanted.transaction_column:
        runs = result["runs"]
        text = f"{act}: {result['transactions']:,} transactions of {result['rows']:,} rows"
        levels = {Level(run["level"]).value for run in runs}
        text += "".join(f", {level}" for level in sorted(levels))
        positions = [run["position"] for run in runs if run["position"] is not None]
        if positions:
            text += f" from position {min(positions):,} on"
    elif not result["transactions"]:
        text = f"{act}: no rows, so nothing was submitted"
    else:
        text = f"{act}: transaction {result['transaction_id']} is {Level(result['level']).value}"
        if result["position"] is not None:
            text += f" at position {result['position']:,}"
    if result["late"]:
        text += f"; {wanted.level} is late"
    refused = len(result["rejections"])
    return f"{text}; {refused:,} rejected" if refused else text


def ingest(log: TxLog, wanted: Ingest) -> dict[str, Any]:
    """Read the input and commit it; return the result in a form for JSON.

    Raises:
        InvalidRequestError: The input cannot be read, or arguments exclude one another (definite).
        CommitRejectedError: It was refused; the class says why (definite).
        CommitStateUnknownError: It was not ordered in time (not definite).
    """
    if wanted.transaction_id and wanted.transaction_column:
        raise InvalidRequestError(
            "only one transaction id is given for many transactions",
            hint="Name a column of ids with --transaction-ids-column.",
        )
    definition = _definition(log, wanted)
    frame = read_input(log.site.spark, wanted, definition)
    if wanted.transaction_column:
        if definition is None:  # many transactions, and one before them
            log.create_table(
                wanted.table, frame, keys=wanted.keys, partition_by=wanted.partition_by
            )
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
            "late": receipt.late,
            "rejections": [asdict(rejection) for rejection in receipt.rejections],
        }
    with log.transaction(
        level=wanted.level,
        timeout=wanted.timeout,
        transaction_id=wanted.transaction_id,
        first_wins=wanted.first_wins,
    ) as t:
        if definition is None:
            t.create_table(wanted.table, frame, keys=wanted.keys, partition_by=wanted.partition_by)
        t.add(wanted.kind, wanted.table, frame)
    return {"transactions": t.receipt.n, **asdict(t.receipt)}


def _definition(log: TxLog, wanted: Ingest) -> TableDefinition | None:
    try:
        return log.site.definition(wanted.table)
    except UnknownTableError:
        if wanted.create:
            return None
        raise


def read_input(
    spark: SparkSession, wanted: Ingest, definition: TableDefinition | None
) -> DataFrame:
    """Return the input as a DataFrame.

    CSV and JSON hold no types: if the table exists, its column types are used, and a value that
    does not fit fails the job; otherwise Spark infers the types.

    Raises:
        InvalidRequestError: Unknown format or kind, no such path (definite).
    """
    if wanted.format not in FORMATS or wanted.kind not in ROW_KINDS:
        raise InvalidRequestError(
            f"format {wanted.format!r} or operation {wanted.kind.value!r} is not possible",
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
        raise InvalidRequestError(
            f"{wanted.source[:200]!r} cannot be read as {wanted.format}: {first_lines(error, 2)}",
            hint="Check path and format.",
        ) from error
    return frame.select(
        *(F.col(quoted_name(f.name)).cast(f.dataType).alias(f.name) for f in typed.fields)
    )


def _typed(given: StructType, table: StructType) -> StructType:
    """Return the input's columns with the table's types where it has them."""
    types = {field.name.lower(): field.dataType for field in table.fields}
    return StructType(
        [StructField(f.name, types.get(f.name.lower(), f.dataType)) for f in given.fields]
    )
