"""The data source `txlog`: `df.write.format("txlog")` appends, `spark.read.format("txlog")` reads.

The same as streams: `writeStream` and `readStream` (`api/streams`).

Spark runs every method here in separate Python processes: without a session, without the user's
memory, with options in lower case.  Tasks write files into the payload store; the commit posts
them.  Transactions of this data source carry no signature, because Spark's hash is not available
here.  Prefer `log.append`, which is also faster.

Filters are never pushed down: Spark 4.2 then gives wrong results without an error (measured).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from sparktxlog.api.nodes import Nodes, submit_prepared
from sparktxlog.api.reading.replica_files import (
    TableFilesReader,
    TableVersion,
    open_table,
    schema_of,
)
from sparktxlog.api.schema import arrow_schema_of, check_fit, columns_of
from sparktxlog.api.spark_errors import FOREACH_BATCH
from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.api.staging.staged_append import (
    StagedAppend,
    check_level,
    folder_of,
    nodes_of,
    timeout_of,
)
from sparktxlog.api.streams.lag_stream import LagStreamReader
from sparktxlog.api.streams.positions import ReadOptions
from sparktxlog.api.streams.published import log_table
from sparktxlog.api.streams.reader import ChangesReader, TxLogStreamReader, check_streams
from sparktxlog.api.streams.table_changes import changes_schema
from sparktxlog.api.streams.writer import TxLogStreamWriter
from sparktxlog.api.writing.schema_merge import change_table_to_fit
from sparktxlog.codec.state_views import KEPT, VIEWS
from sparktxlog.codec.submits.content_digests import RowsContent
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.ids import table_name, transaction_id_from_text
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUEUE = "queue"


class TxLogDataSource(DataSource):
    """`format("txlog")`.

    Options: `url` and `token` of the node, or of several with commas between their URLs, and
    `caFile`, the authority of their certificates (known after `connect`, as is `staging`); to write
    `table`, `transaction_id`, `level`, `timeout`, `after`, a position that the node must have
    reached, and `mergeSchema`, which gives the table the columns of the rows first; to read,
    `load(name)` of a row table, with `replica` of one of the site's replicas, or of what the log
    says of itself: `KEPT` and `VIEWS` of `codec.state_views`; or `table` for the changes of one.
    docs/streams.md has the options of streams.
    """

    #: Set by `register_format`: url, token and authority of `connect`.
    defaults: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({**self.defaults, **options})

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "txlog"

    def schema(self) -> StructType:
        """Return the columns of the table or view that `load` names, or of a table's changes."""
        if self._is_table():
            options = ReadOptions.of(self.options)
            assert options.table is not None
            return changes_schema(self._link().table(options.table), options)
        name = self._view()
        if name in VIEWS:
            return from_arrow_schema(VIEWS[name].schema)
        return schema_of(self._opened(name))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for what `schema` describes; its content is fixed now."""
        if self._is_table():
            return ChangesReader(TxLogStreamReader(self.options, schema))
        name = self._view()
        if name in VIEWS:
            arrow = arrow_schema_of(schema)
            return _ViewReader(self._link().view(name).cast(arrow))
        return TableFilesReader(name, self._opened(name), schema)

    def _opened(self, name: str) -> TableVersion:
        """Return a table of the log, or a row table, at one version."""
        link = self._link()
        if (kept := KEPT.get(name)) is not None:
            root = str(link.get("/v1/info")["log_root"])
            return TableVersion.read(log_table(root, kept.directory))
        return open_table(link, name, self.options)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> TxLogStreamReader | LagStreamReader:
        """Return the reader of the queue, of a history, or of the changes of a table."""
        check_streams()
        if not self._is_table() and self._view() == "lag":
            return LagStreamReader(self.options, schema)
        if not self._is_table() and self._view() != _QUEUE:
            raise InvalidRequestError(
                f".load({self._view()!r}) cannot be read as a stream",
                hint="Streams are read of .load('queue'), .load('lag') and "
                ".option('table', name); read other things with spark.read.",
            )
        return TxLogStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of an append, its rows' schema checked against the table's."""
        if overwrite:
            raise InvalidRequestError(
                "the data source 'txlog' only appends",
                hint="Use .mode('append'), or log.overwrite(table, df) of sparktxlog.connect.",
            )
        return TxLogWriter(dict(self.options), *self._target(schema))

    def streamWriter(  # noqa: N802 - the name that Spark calls
        self, schema: StructType, overwrite: bool
    ) -> TxLogStreamWriter:
        """Return the writer of one batch, or the one that commits it; checked like `writer`."""
        if overwrite:
            raise InvalidRequestError(
                "a stream into 'txlog' only appends, and the output mode 'complete' replaces",
                hint=FOREACH_BATCH,
            )
        return TxLogStreamWriter(dict(self.options), *self._target(schema))

    def _target(self, schema: StructType) -> tuple[TableDefinition, UploadTarget, str]:
        """Return the table to write, the node that takes rows, and its payload store."""
        name = self.options.get("table") or self.options.get("path")
        if not name:
            raise InvalidRequestError("no table is given", hint="Write .save(name).")
        if name in KEPT or name in VIEWS:
            raise InvalidRequestError(f"{name!r} is what the log says of itself, and only read")
        check_level(self.options)
        link = self._link()
        home, info = link.choose()
        definition: TableDefinition = link.table(table_name(name))
        if self.options.get("mergeschema", "false").lower() == "true":
            definition = self._merged(schema, definition.name, link)
        check_fit(schema, definition, OperationKind.APPEND)
        return definition, UploadTarget.of(home), info["payload_root"]

    def _merged(self, schema: StructType, table: str, link: Nodes) -> TableDefinition:
        """Change the table so that it has the columns of the rows."""

        def alter(change: TableChange) -> None:
            operation = PreparedOperation(
                table=table,
                kind=OperationKind.ALTER_TABLE,
                schema_version=link.table(table).schema_version,
                change=change,
            )
            identity = uuid.uuid4().bytes
            transaction = PreparedTransaction(transaction_id=identity, operations=(operation,))
            timeout_s = timeout_of(self.options)
            submit_prepared(link, "", transaction, level="ordered", timeout_s=timeout_s)

        return change_table_to_fit(columns_of(schema), lambda: link.table(table), alter)

    def _is_table(self) -> bool:
        """Whether the changes of a table are read; `load` names a table or a view."""
        return bool(self.options.get("table")) and not self.options.get("path")

    def _view(self) -> str:
        name = self.options.get("path") or self.options.get("view") or ""
        if not name:
            raise InvalidRequestError(
                "nothing is named to read",
                hint=f".load(name) takes a row table, {', '.join((*KEPT, *VIEWS))}; the changes "
                "of a table are read with .option('table', name).load().",
            )
        return name

    def _link(self) -> Nodes:
        return nodes_of(self.options)


class _ViewReader(DataSourceReader):
    """Rows fetched when the DataFrame was made: every action on it sees the same."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches()


class _Staged(WriterCommitMessage):
    """What one task wrote."""

    def __init__(self, files: tuple[StagedFile, ...], content: RowsContent | None) -> None:
        self.files = files
        self.content = content


class TxLogWriter(DataSourceArrowWriter):
    """Stages the rows of one append from tasks, and posts it when all are done.

    Built once for each job and pickled to tasks and commit, so the transaction id made here is the
    same everywhere.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        definition: TableDefinition,
        home: UploadTarget,
        payload_root: str,
    ) -> None:
        text = options.get("transaction_id")
        identity = transaction_id_from_text(text) if text else uuid.uuid4().bytes
        self._append = StagedAppend(
            options=dict(options),
            definition=definition,
            home=home,
            root=Path(payload_root),
            transaction_id=identity,
            folder=folder_of(identity, definition.name, uuid.uuid4().hex[:8]),
            recorded=bool(text),
            first_wins=options.get("first_wins", "false").lower() == "true",
        )
        self._append.make_folder()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows; runs on an executor."""
        is_compared = self._append.recorded and not self._append.first_wins
        content = RowsContent() if is_compared else None
        return _Staged(self._append.write(iterator, content), content)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Post the transaction; if it certainly failed, remove its files."""
        counted = [one.content for one in _staged(messages) if one.content is not None]
        content = sum(counted, RowsContent()).to_text() if counted else ""
        self._append.commit(tuple(file for one in _staged(messages) for file in one.files), content)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks wrote; see `StagedAppend.abort`."""
        self._append.abort()


def _staged(messages: list[WriterCommitMessage | None]) -> list[_Staged]:
    """Return the messages of tasks that ended; those that were still running sent None."""
    return [message for message in messages if isinstance(message, _Staged)]


#: Session → what `txlog` means there.
_registered: WeakKeyDictionary[SparkSession, dict[str, str | None]] = WeakKeyDictionary()


def register_format(
    spark: SparkSession,
    *,
    url: str | None = None,
    token: str | None = None,
    ca_file: str | None = None,
    staging: str | None = None,
) -> None:
    """Register `format("txlog")` with a session.

    Args:
        spark: The session.
        url: Default of the option `url`: the node, or several with commas.
        token: Their client token.
        ca_file: Authority of their certificates.
        staging: How executors hand over staged files; see `connect`.
    """
    known = {"url": url, "token": token, "cafile": ca_file, "staging": staging}
    # Spark warns if a name is registered again.
    if _registered.get(spark) == known:
        return

    # A class made here is pickled by value, with its defaults.
    class ConnectedDataSource(TxLogDataSource):
        defaults: ClassVar[Mapping[str, str]] = {
            name: value for name, value in known.items() if value is not None
        }

    spark.dataSource.register(ConnectedDataSource)
    _registered[spark] = known
