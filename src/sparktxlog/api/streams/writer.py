"""The sink of a streaming query: each batch is one append, exactly once.

The transaction id of a batch follows from the query id, which stands in the checkpoint, and from
the number of the batch.  So a batch that is run again is the same transaction, at every site.
The first one wins: the source may have other rows by then.

Spark makes a writer for the tasks of each batch, and another one, in another process, for its
commit.  The two share nothing but the messages of the tasks.  Spark names the query id only to
tasks.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.api.staging.shared_store import check_directory
from sparktxlog.api.staging.staged_append import StagedAppend, folder_of, nodes_of, staging_of
from sparktxlog.errors import InvalidRequestError, StaleSchemaError
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.model.transactions.receipt import Receipt, ReceiptRejection

#: Properties that Spark sets for the jobs of a micro-batch.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


def batch_transaction_id(query_id: str, batch_id: int, attempt: int = 0) -> uuid.UUID:
    """Return the transaction id of a batch of a streaming query: the same whenever it is run.

    Args:
        query_id: Spark's id of the query, which its checkpoint keeps.
        batch_id: Number of the batch, from 0.
        attempt: How many ids of the batch were rejected because the table changed.
    """
    text = f"sparktxlog stream {query_id} {batch_id}" + (f" {attempt}" if attempt else "")
    return uuid.UUID(bytes=hashlib.sha256(text.encode()).digest()[:16])


def open_batch_id(
    find: Callable[[bytes], Receipt | None], query_id: str, batch_id: int
) -> uuid.UUID:
    """Return the id under which a batch took effect, or still may.

    An id that was ordered after a change of its table is rejected for ever, and a batch that is
    run again has other rows: those of the table as it is.  So it gets its next id.

    Args:
        find: Returns what the nodes know of an id.
    """
    for attempt in itertools.count():
        identity = batch_transaction_id(query_id, batch_id, attempt)
        receipt = find(identity.bytes)
        if receipt is None or not any(map(_is_stale, receipt.rejections)):
            break
    return identity


def _is_stale(rejection: ReceiptRejection) -> bool:
    return rejection.code == StaleSchemaError.code


class StagedPart(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, append: StagedAppend, query_id: str, files: tuple[StagedFile, ...]) -> None:
        self.append = append
        self.query_id = query_id
        self.files = files


class TxLogStreamWriter(DataSourceStreamArrowWriter):
    """Stages the rows of a batch from tasks, and posts them when all are done.

    Args:
        options: Those of the data source.
        definition: The table, with which the rows' schema was compared.
        home: The node that takes the rows.
        payload_root: Its payload store.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        definition: TableDefinition,
        home: UploadTarget,
        payload_root: str,
    ) -> None:
        self._options = dict(options)
        self._definition = definition
        self._home = home
        self._root = Path(payload_root)
        if staging_of(options) == "shared":
            check_directory(self._root, home.url)
        #: Different for each attempt at a batch, and the same for all its tasks.
        self._attempt = uuid.uuid4().hex[:8]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows; runs on an executor."""
        context = TaskContext.get()
        assert context is not None
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query_id or not batch_id:
            raise InvalidRequestError(
                "Spark does not say which batch of which query this is",
                hint="Use foreachBatch and log.append(…, transaction_id=…).",
            )
        identity = batch_transaction_id(query_id, int(batch_id)).bytes
        append = StagedAppend(
            options=self._options,
            definition=self._definition,
            home=self._home,
            root=self._root,
            transaction_id=identity,
            folder=folder_of(identity, self._definition.name, self._attempt),
            session=query_id,
            first_wins=True,
        )
        append.make_folder()
        return StagedPart(append, query_id, append.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Post the batch; one that the log has already, or that has no rows, posts nothing."""
        parts = _parts(messages)
        if not parts:
            return
        append = parts[0].append
        if append.transaction_id != batch_transaction_id(parts[0].query_id, batch_id).bytes:
            append.abort()
            raise InvalidRequestError(f"the tasks wrote another batch than {batch_id}")
        files = tuple(file for part in parts for file in part.files)
        if files:
            find = nodes_of(self._options).find
            identity = open_batch_id(find, parts[0].query_id, batch_id)
            append, files = append.under(identity.bytes, files)
        append.commit(files)

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Remove what tasks wrote, unless the log may have the batch; see `StagedAppend.abort`.

        If no task got far enough to report its directory, the node removes its files with others
        that no transaction names.
        """
        for part in _parts(messages)[:1]:
            part.append.abort()


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    """Return the messages of tasks that ended; those that were still running sent None."""
    return [message for message in messages if isinstance(message, StagedPart)]
