"""Operations on tables, declared once: inside a transaction, or each as its own transaction."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar, Generic, Self, TypedDict, TypeVar, Unpack

from sparktxlog.errors import LocalProtocolError
from sparktxlog.model.operation import OperationKind
from sparktxlog.model.receipt import Receipt

RowsT = TypeVar("RowsT")
ColumnsT = TypeVar("ColumnsT")
ReceiptT = TypeVar("ReceiptT")


class CommitOptions(TypedDict, total=False):
    """How a transaction is submitted; `Client.transaction` and `TxLog.transaction` explain them."""

    transaction_id: str | uuid.UUID | None
    level: str | None
    valid_until: datetime | None
    #: Seconds; of `TxLog` only.
    timeout: float | None
    #: Seconds; of `Client` only.
    timeout_s: float | None
    #: Of `Client` only: a `TxLog` has one session.
    session: str | None


class Operations(ABC, Generic[RowsT, ColumnsT]):
    """What a transaction can do to tables."""

    def create_table(
        self,
        table: str,
        columns: ColumnsT,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        deletion_vectors: bool | None = None,
    ) -> None:
        """Create a table; creating an equal one again does nothing.

        Args:
            table: A letter, then letters, digits and underscores, 128 at most.
            columns: From Python: name → Spark's DDL type (`bigint`, with ` not null` if need be),
                an Arrow schema, or `Column`s.  From Spark: a StructType, a DDL string, or a
                DataFrame whose names and types are taken.
            keys: Columns that upserts and deletes match on; never NULL.
            partition_by: Partition columns.
            deletion_vectors: Whether Delta marks deleted rows instead of rewriting files; default:
                no from Python, with keys from Spark.

        Raises:
            InvalidNameError: A name is outside the allowed pattern (definite).
            SchemaMismatchError: An unknown type, key or partition column (definite).
        """
        self._create(table, columns, keys, partition_by, deletion_vectors)

    def append(self, table: str, rows: RowsT) -> None:
        """Add rows; keys are not enforced, and no rows change nothing."""
        self.add(OperationKind.APPEND, table, rows)

    def upsert(self, table: str, rows: RowsT) -> None:
        """Remove every row that has one of the keys, then add the rows."""
        self.add(OperationKind.UPSERT, table, rows)

    def delete_keys(self, table: str, rows: RowsT) -> None:
        """Remove the rows that have one of the keys; `rows` has the key columns only."""
        self.add(OperationKind.DELETE_KEYS, table, rows)

    def overwrite(self, table: str, rows: RowsT) -> None:
        """Replace all rows of the table; no rows empty it."""
        self.add(OperationKind.OVERWRITE, table, rows)

    def delete_where(self, table: str, predicate: str) -> None:
        """Remove the rows for which a deterministic predicate is true, such as `age > 3`.

        Raises:
            InvalidRequestError: At submit: the predicate is outside the allowed grammar (definite).
        """
        self._delete_where(table, predicate)

    @abstractmethod
    def add(self, kind: OperationKind, table: str, rows: RowsT) -> None:
        """Add an operation of a kind that carries rows."""

    @abstractmethod
    def _create(
        self,
        table: str,
        columns: ColumnsT,
        keys: Sequence[str],
        partition_by: Sequence[str],
        deletion_vectors: bool | None,
    ) -> None: ...

    @abstractmethod
    def _delete_where(self, table: str, predicate: str) -> None: ...


class Draft(ABC, Generic[ReceiptT]):
    """A transaction or batch: filled in a `with` block, submitted at its end or by `commit`."""

    #: Call that begins another one, for messages.
    _another: ClassVar[str]
    _receipt: ReceiptT | None = None

    def _named(self) -> tuple[str, dict[str, str]]:
        """Return its name in errors, and their fields."""
        return "the batch", {}

    @property
    def receipt(self) -> ReceiptT:
        """The receipt of the commit.

        Raises:
            LocalProtocolError: It is not committed, or its commit failed (definite).
        """
        if self._receipt is None:
            name, fields = self._named()
            raise LocalProtocolError(
                f"{name} has no receipt, because no commit of it succeeded",
                hint="Call its commit(), or leave its `with` block.",
                **fields,
            )
        return self._receipt

    def _take_more(self, submitted: bool) -> None:
        """Refuse another operation after the submit."""
        if submitted:
            name, fields = self._named()
            raise LocalProtocolError(
                f"{name} was submitted and takes no more operations",
                hint=f"Begin another one with {self._another}.",
                **fields,
            )

    @abstractmethod
    def commit(self) -> ReceiptT:
        """Submit it and return the receipt; again, it returns the same one."""

    def _drop(self) -> None:
        """Drop it, because the `with` block raised."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self._drop()


class TransactionDraft(Draft[Receipt], Operations[RowsT, ColumnsT]):
    """Operations over one or more tables, all or nothing."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The transaction id, a UUID."""

    def _named(self) -> tuple[str, dict[str, str]]:
        return f"transaction {self.id}", {"transaction_id": self.id}


class Commits(Generic[RowsT, ColumnsT]):
    """Commits single operations, each as its own transaction.

    Options are those of `transaction`; arguments and errors those of `Operations`, and of the
    transaction's `commit`.
    """

    #: Begins a transaction for a `with` block.
    transaction: Callable[..., TransactionDraft[RowsT, ColumnsT]]

    def create_table(
        self,
        table: str,
        columns: ColumnsT,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        deletion_vectors: bool | None = None,
        **options: Unpack[CommitOptions],
    ) -> Receipt:
        """Create a table; see `Operations.create_table`."""
        with self.transaction(**options) as t:
            t.create_table(table, columns, keys, partition_by, deletion_vectors)
        return t.receipt

    def append(self, table: str, rows: RowsT, **options: Unpack[CommitOptions]) -> Receipt:
        """Add rows; keys are not enforced, and no rows change nothing."""
        return self._commit(OperationKind.APPEND, table, rows, options)

    def upsert(self, table: str, rows: RowsT, **options: Unpack[CommitOptions]) -> Receipt:
        """Remove every row that has one of the keys, then add the rows."""
        return self._commit(OperationKind.UPSERT, table, rows, options)

    def delete_keys(self, table: str, rows: RowsT, **options: Unpack[CommitOptions]) -> Receipt:
        """Remove the rows that have one of the keys; `rows` has the key columns only."""
        return self._commit(OperationKind.DELETE_KEYS, table, rows, options)

    def overwrite(self, table: str, rows: RowsT, **options: Unpack[CommitOptions]) -> Receipt:
        """Replace all rows of the table; no rows empty it."""
        return self._commit(OperationKind.OVERWRITE, table, rows, options)

    def delete_where(self, table: str, predicate: str, **options: Unpack[CommitOptions]) -> Receipt:
        """Remove the rows for which a predicate is true."""
        with self.transaction(**options) as t:
            t.delete_where(table, predicate)
        return t.receipt

    def _commit(
        self, kind: OperationKind, table: str, rows: RowsT, options: CommitOptions
    ) -> Receipt:
        with self.transaction(**options) as t:
            t.add(kind, table, rows)
        return t.receipt
