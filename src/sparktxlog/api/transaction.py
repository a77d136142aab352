"""The transaction builder: operations are checked and staged one by one, submitted at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from sparktxlog.api.schema import columns_of
from sparktxlog.api.staging import PayloadStore, SignatureExpressions, Staging
from sparktxlog.codec.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import InvalidRequestError, TxLogError
from sparktxlog.model.operation import OperationKind
from sparktxlog.model.receipt import Receipt
from sparktxlog.model.table import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Submitter(Protocol):
    """What a transaction needs of its log."""

    spark: SparkSession
    store: PayloadStore
    expressions: SignatureExpressions

    def definition(self, table: str) -> TableDefinition:
        """Return a table's definition; raises UnknownTableError."""

    def submit(self, transaction: PreparedTransaction, level: str, timeout_s: float) -> Receipt:
        """Commit; raises CommitRejectedError or CommitStateUnknownError."""

    def known(self, transaction_id: bytes, level: str, timeout_s: float) -> Receipt | None:
        """Return the receipt of a transaction that the node knows, once at its level."""


class Transaction:
    """Operations over one or more tables, all or nothing.

    Used in a `with` statement: submitted at its end, or given up, and its staged files removed,
    if the block raises.

    Args:
        log: Where to submit.
        level: `accepted`, `acquired`, `ordered`, `applied` or `applied(k)`.
        timeout_s: Seconds to wait for the level.
        transaction_id: 16 bytes of a UUID.  A transaction that the node already knows is not
            staged again; its first receipt is returned.
        repeatable: The id was given by the user, so the node may know it already.
    """

    def __init__(
        self,
        log: Submitter,
        *,
        level: str,
        timeout_s: float,
        transaction_id: bytes,
        repeatable: bool,
    ) -> None:
        self._log = log
        self._level = level
        self._timeout_s = timeout_s
        self._transaction_id = transaction_id
        self._repeatable = repeatable
        self._operations: list[PreparedOperation] = []
        self._created: dict[str, TableDefinition] = {}
        self._staging = Staging(log.spark, log.store, transaction_id, log.expressions)
        #: None until the transaction is submitted, or found to be known.
        self.receipt: Receipt | None = None

    @property
    def committed(self) -> Receipt:
        """The receipt of a submitted transaction."""
        assert self.receipt is not None
        return self.receipt

    def __enter__(self) -> Self:
        if self._repeatable:
            self.receipt = self._log.known(self._transaction_id, self._level, self._timeout_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._staging.discard()
            return
        if self.receipt is None:
            self._submit()

    def _submit(self) -> None:
        if not self._operations:
            raise InvalidRequestError(
                "the transaction has no operation", hint="Call t.append(…) or another one in it."
            )
        transaction = PreparedTransaction(
            transaction_id=self._transaction_id, operations=tuple(self._operations)
        )
        try:
            self.receipt = self._log.submit(transaction, self._level, self._timeout_s)
        except TxLogError as error:
            if error.definite:  # else it may have been accepted, and needs its files
                self._staging.discard()
            raise

    def create_table(
        self,
        name: str,
        schema: StructType | str | DataFrame,
        *,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        deletion_vectors: bool | None = None,
    ) -> None:
        """Create a table; an identical one may exist already.

        Args:
            name: A letter, then letters, digits and underscores, 128 at most.
            schema: StructType, DDL string, or DataFrame whose names and types are taken.
            keys: Columns that upserts and deletes match on; never NULL.
            partition_by: Columns whose values make directories.
            deletion_vectors: Upserts mark old rows instead of rewriting files; default: with keys.

        Raises:
            InvalidNameError: A name is outside the allowed pattern (definite).
            SchemaMismatchError: An unknown type, key or partition column (definite).
        """
        if self.receipt is not None:
            return
        for role, given in (("keys", keys), ("partition_by", partition_by)):
            if isinstance(given, str):
                raise InvalidRequestError(f"{role}={given!r} is a string", hint=f"Write {[given]}.")
        definition = TableDefinition(
            name=name,
            columns=columns_of(schema),
            keys=tuple(keys),
            partition_by=tuple(partition_by),
            deletion_vectors=bool(keys) if deletion_vectors is None else deletion_vectors,
        )
        self._created[name] = definition
        self._operations.append(
            PreparedOperation(table=name, kind=OperationKind.CREATE_TABLE, definition=definition)
        )

    def append(self, table: str, frame: DataFrame) -> None:
        """Add rows; keys are not enforced.  Errors: see `Staging.stage`."""
        self.add(OperationKind.APPEND, table, frame)

    def upsert(self, table: str, frame: DataFrame) -> None:
        """Replace every row that has one of the keys, and add the rows."""
        self.add(OperationKind.UPSERT, table, frame)

    def delete_keys(self, table: str, frame: DataFrame) -> None:
        """Delete the rows that have one of the keys; `frame` has the key columns only."""
        self.add(OperationKind.DELETE_KEYS, table, frame)

    def overwrite(self, table: str, frame: DataFrame) -> None:
        """Replace all rows of the table."""
        self.add(OperationKind.OVERWRITE, table, frame)

    def delete_where(self, table: str, predicate: str) -> None:
        """Delete the rows for which a deterministic predicate is true, such as `age > 3`.

        Raises:
            InvalidRequestError: At submit: the predicate is outside the allowed grammar (definite).
        """
        if self.receipt is not None:
            return
        definition = self._definition(table)
        self._operations.append(
            PreparedOperation(
                table=table,
                kind=OperationKind.DELETE_WHERE,
                schema_version=definition.schema_version,
                predicate=predicate,
            )
        )

    def add(self, kind: OperationKind, table: str, frame: DataFrame) -> None:
        """Add an operation of a kind that carries rows; they are checked and staged now.

        Raises:
            UnknownTableError: The table is not in the catalog (definite).
            SchemaMismatchError, InvalidRowsError, PayloadStoreError: See `Staging.stage`.
        """
        if self.receipt is not None:
            return
        place = len(self._operations)
        self._operations.append(self._staging.stage(frame, self._definition(table), kind, place))

    def _definition(self, table: str) -> TableDefinition:
        return self._created.get(table) or self._log.definition(table)
