"""Streaming queries into tables: `foreachBatch`, and the writer that fits an output mode."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from sparktxlog.api.connect import TxLog
from sparktxlog.api.schema import check_fit
from sparktxlog.api.session import check_has_jvm
from sparktxlog.api.streams.writer import QUERY_ID, batch_transaction_id, open_batch_id
from sparktxlog.codec.submits.arguments import text_given
from sparktxlog.codec.submits.requests import parse_level
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.transactions.operation import ROW_KINDS, OperationKind

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def transaction_id_of_batch(frame: DataFrame, batch_id: int, log: TxLog | None = None) -> str:
    """Return the transaction id of a batch inside `foreachBatch`, a UUID.

    If the log has that transaction already, read the whole frame all the same: Spark fails a query
    that keeps state if a batch is not read.  `stream_into` does so.

    Args:
        log: Where the batch goes.  With it, a batch that was rejected because a table changed gets
            another id when it is run again; without it, it stays rejected.

    Raises:
        InvalidRequestError: This is no batch of a streaming query, or one of Spark Connect
            (definite).
    """
    check_has_batches(frame.sparkSession)
    query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if not query_id:
        raise InvalidRequestError(
            "this is no batch of a streaming query",
            hint="Call it in the function that foreachBatch is given.",
        )
    if log is None:
        return str(batch_transaction_id(query_id, batch_id))
    return str(open_batch_id(lambda found: log.find(uuid.UUID(bytes=found)), query_id, batch_id))


def check_has_batches(spark: SparkSession) -> None:
    """Refuse `foreachBatch` where the batch's query is not known.

    Raises:
        InvalidRequestError: The session is one of Spark Connect (definite).
    """
    instead = "Write with .writeStream.format('txlog').option('table', name) instead."
    check_has_jvm(spark, "foreachBatch", instead)


def stream_into(
    log: TxLog, table: str, kind: str = "upsert", *, level: str = "ordered"
) -> Callable[[DataFrame, int], None]:
    """Return the function for `foreachBatch` that commits each batch to a table, exactly once.

        totals.writeStream.outputMode("update").foreachBatch(
            sparktxlog.stream_into(log, "totals")
        ).option("checkpointLocation", path).start()

    Args:
        log: Of `connect`.
        table: The table.
        kind: append, upsert, delete_keys or overwrite.
        level: How far each commit must get before the next batch begins.

    Raises:
        InvalidRequestError: No such kind or level, or a session of Spark Connect (definite).
    """
    check_has_batches(log.site.spark)
    if kind not in {known.value for known in ROW_KINDS}:
        raise InvalidRequestError(
            f"kind {kind[:40]!r} is unknown",
            hint=f"Use one of: {', '.join(sorted(known.value for known in ROW_KINDS))}.",
        )
    parse_level(level)

    def save(frame: DataFrame, batch_id: int) -> None:
        identity = transaction_id_of_batch(frame, batch_id, log)
        if log.find(identity) is not None:
            frame.write.format("noop").mode("overwrite").save()  # its state must be written
        with log.transaction(level=level, transaction_id=identity, first_wins=True) as transaction:
            transaction.add(OperationKind(kind), table, frame)

    return save


#: Output mode of a query → kind of operation that its batches are.
_KINDS = {
    "append": OperationKind.APPEND,
    "update": OperationKind.UPSERT,
    "complete": OperationKind.OVERWRITE,
}


def write_stream(
    log: TxLog, frame: DataFrame, table: str, mode: str = "append", *, level: str = "ordered"
) -> DataStreamWriter:
    """Return the writer of a stream into a table, which then needs a checkpoint and `start()`.

        totals = orders.groupBy("customer").count()
        sparktxlog.write_stream(log, totals, "totals", "update").option(
            "checkpointLocation", path
        ).start()

    What cannot be done is refused here, before the query is started.

    Args:
        log: Of `connect`.
        frame: A stream whose columns fit the table.
        table: The table.
        mode: Output mode: append, update (upserts by the table's keys) or complete (overwrites).
        level: How far each batch must get before the next one begins.

    Raises:
        UnknownTableError: The log has no such table (definite).
        SchemaMismatchError: The columns do not fit (definite).
        InvalidRequestError: No such mode or level, no stream, or an update of a table without
            keys (definite).
    """
    kind = _KINDS.get(text_given(mode, "mode").lower())
    if kind is None:
        raise InvalidRequestError(
            f"output mode {mode[:40]!r} is unknown",
            hint=f"Use one of: {', '.join(_KINDS)}.",
            field="mode",
            value=mode[:40],
        )
    if not getattr(frame, "isStreaming", False):
        raise InvalidRequestError("this is no stream", hint=f"Use log.{kind.value}(table, frame).")
    parse_level(level)
    definition = log.site.definition(table)
    if kind is OperationKind.UPSERT and not definition.keys:
        raise InvalidRequestError(
            f"table {table!r} has no keys, so no batch can update its rows",
            hint="Use the mode 'complete', or create the table with keys.",
            table=table,
        )
    log.site.fitting(table, lambda known: check_fit(frame.schema, known, kind))
    writer = frame.writeStream.outputMode(mode)
    if kind is OperationKind.APPEND:
        return writer.format("txlog").option("table", table).option("level", level)
    return writer.foreachBatch(stream_into(log, table, kind.value, level=level))
