"""Operations on tables, declared once: inside a transaction, or each as its own transaction."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import (
    ClassVar,
    Generic,
    Literal,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from sparktxlog.api.given_data import columns_in, kept_rows, with_missing
from sparktxlog.api.writing.retry import Parameters, Result, Retry
from sparktxlog.api.writing.schema_merge import change_table_to_fit
from sparktxlog.codec.submits.arguments import (
    flag_given,
    is_whole,
    mapping_given,
    text_given,
    texts_given,
)
from sparktxlog.codec.submits.mark_requests import participants_of
from sparktxlog.codec.submits.requests import parse_level
from sparktxlog.codec.submits.transactions import Rollback
from sparktxlog.errors import (
    ConflictError,
    InvalidRequestError,
    LocalProtocolError,
    SchemaMismatchError,
)
from sparktxlog.model.ids import table_name
from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.tables.table_properties import GROUP_OF_TABLE, property_pairs
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Level, Receipt

RowsT = TypeVar("RowsT")
ColumnsT = TypeVar("ColumnsT")
ReceiptT = TypeVar("ReceiptT")
_Made = TypeVar("_Made")
_Known = TypeVar("_Known", bound="TableDefinition | Sequence[TableDefinition]")

#: What a transaction promises about its reads; None: it records none, and the last write in the
#: order wins.
Isolation: TypeAlias = Literal["serializable"] | None

#: What an append does with keys that are there already; None: they are not looked up.
OnDuplicate: TypeAlias = Literal["error"] | None


class CommitOptions(TypedDict, total=False):
    """How a transaction is submitted; `Client.transaction` and `TxLog.transaction` explain them."""

    transaction_id: str | uuid.UUID | None
    first_wins: bool
    level: str | None
    valid_until: datetime | None
    #: Seconds.
    timeout: float | None
    #: These two of `Client` only: a `TxLog` has one session.
    session: str | None
    rollback: Rollback
    is_sync: bool


def _check_choice(field: str, value: object, allowed: str, without: str) -> None:
    """Refuse an option that is neither left out nor the one value that it can have.

    Args:
        without: What it means to leave it out.
    """
    if value not in (None, allowed):
        raise InvalidRequestError(
            f"{field}={value!r} is unknown",
            hint=f"Use {field}={allowed!r}, or leave it out: then {without}.",
            field=field,
            value=value,
            allowed=[allowed],
        )


def made_for_newest(
    known: _Known, ask: Callable[[], _Known], use: Callable[[_Known], _Made]
) -> _Made:
    """Return what is made for a table's definition: for the newest one if the kept one is old.

    Args:
        known: The kept definition, or those of several tables.
        ask: Returns the node's.
        use: Makes it.

    Raises:
        SchemaMismatchError: From `use`, with the newest definition (definite).
    """
    try:
        return use(known)
    except SchemaMismatchError:
        newest = ask()
        if newest == known:
            raise
    return use(newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """What `create_table` says other than columns; None = as the table has it, if there is one."""

    table: str
    keys: tuple[str, ...]
    partition_by: tuple[str, ...]
    deletion_vectors: bool | None
    is_sync: bool
    cluster_by: tuple[str, ...]
    comment: str
    properties: tuple[tuple[str, str], ...] | None


class Operations(ABC, Generic[RowsT, ColumnsT]):
    """What a transaction can do to tables."""

    def create_table(
        self,
        table: str,
        columns: ColumnsT,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        deletion_vectors: bool | None = None,
        *,
        is_sync: bool = False,
        cluster_by: Sequence[str] = (),
        comment: str = "",
        properties: Mapping[str, str] | None = None,
        group: str | None = None,
    ) -> None:
        """Create a table; creating an equal one again does nothing.

        Args:
            table: A letter, then letters, digits and underscores; with a schema before it,
                `bronze.orders`, else it is in schema `default`.  128 characters at most.
            columns: DDL text (`id bigint not null, name string comment 'full'`), name → DDL type,
                an Arrow schema, a StructType, `Column`s, or a Spark DataFrame whose names, types
                and comments are taken.
            keys: Columns that upserts and deletes match on; never NULL.
            partition_by: Partition columns.
            deletion_vectors: Whether Delta marks deleted rows instead of rewriting files, which is
                faster, and hides the table from readers such as pandas.  Default: no; of a
                table that is there: as it has it.
            is_sync: Whether each transaction that writes to it is synchronous: ordered only once
                as many members hold it as `synchro-quorum` says.
            cluster_by: Up to four columns by which OPTIMIZE arranges rows in files; not of a
                partitioned table.
            comment: For people.  A table that is there keeps its own, and those of its columns.
            properties: Of Delta's those that docs/changing-tables.md lists, and any whose names do
                not begin with `delta.`.  Default: none; of a table that is there: as it has them.
            group: Only the sites of this group hold its rows.  Default: the group of its schema,
                or all sites; of a table that is there: as it has it.

        Raises:
            InvalidNameError: A name is outside the allowed pattern (definite).
            UnknownGroupError: There is no such group (definite).
            SchemaMismatchError: An unknown type, key, partition or clustering column (definite).
            InvalidRequestError: A property that the log decides itself (definite).
        """
        if properties is not None or group is not None:
            properties = mapping_given(properties, "properties")
        if group is not None:
            properties = {**(properties or {}), GROUP_OF_TABLE: group}
        request = NewTable(
            table=table,
            keys=texts_given(keys, "keys"),
            partition_by=texts_given(partition_by, "partition_by"),
            deletion_vectors=deletion_vectors,
            is_sync=is_sync,
            cluster_by=texts_given(cluster_by, "cluster_by"),
            comment=comment,
            properties=None if properties is None else property_pairs(table, properties),
        )
        self._create(columns, request)

    def alter_table(
        self,
        table: str,
        *,
        add: Mapping[str, str | tuple[str, str]] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        widen: Mapping[str, str] | None = None,
        keys: Sequence[str] | None = None,
        is_sync: bool | None = None,
        comment: str | None = None,
        comments: Mapping[str, str] | None = None,
        properties: Mapping[str, str | None] | None = None,
        cluster_by: Sequence[str] | None = None,
    ) -> None:
        """Change a table where this transaction takes effect; at every site alike.

            t.alter_table("orders", add={"note": "string", "rank": ("int", "1 is best")})

        What was committed before sees the table as it was; what is ordered later and was made for
        it as it was is rejected (StaleSchemaError).  The transaction has no other operation on the
        table.

        Args:
            table: Its name.
            add: New column → its type, or type and comment; rows that are there have NULL in it.
            rename: Column → its new name; its rows are not touched.
            drop: Columns that nobody sees any more, not keys; what is in the files stays there
                until a row of the file changes.
            widen: Column → its new type, which has every value of the old one (`int` to `bigint`).
            keys: Columns that upserts and deletes match on from then on, by their new names; none:
                it has no keys.
            is_sync: Whether its transactions are synchronous from then on, see `create_table`.
            comment: Of the table; "": none.
            comments: Column → its comment; "": none.
            properties: Name → value, see `create_table`; None: without it from then on.
            cluster_by: Columns by which OPTIMIZE arranges rows from then on, by their new names;
                none: by no columns.

        Raises:
            UnknownTableError, UnknownColumnError, NameTakenError, ColumnInUseError: At submit, or
                before (definite).
            SchemaMismatchError: At submit: an unknown type, one that keys cannot have, or one that
                is not wider (definite).
            InvalidRequestError: Nothing is to change; or at submit: the log cannot do it yet
                (definite).
        """
        change = TableChange(
            add=tuple(_added(name, kind) for name, kind in mapping_given(add, "add").items()),
            rename=_pairs("rename", rename),
            drop=_names("drop", drop) or (),
            widen=_pairs("widen", widen),
            keys=_names("keys", keys),
            is_sync=is_sync,
            comment=comment,
            comments=_pairs("comments", comments),
            properties=tuple(mapping_given(properties, "properties").items()),
            cluster_by=_names("cluster_by", cluster_by),
        )
        if change.is_nothing:
            raise InvalidRequestError(
                f"the change of table {table!r} changes nothing",
                hint="Give add={'note': 'string'}, or another change.",
                table=table,
            )
        self._alter(table, change)

    def change(self, table: str, change: TableChange) -> None:
        """Change a table as `alter_table` does, said in one value."""
        if not isinstance(change, TableChange):
            raise InvalidRequestError(
                f"the change of table {table!r} is given as {type(change).__name__}",
                hint="Use alter_table, which takes what is to change by name.",
                field="change",
            )
        self._alter(table, change)

    def drop_table(self, table: str) -> None:
        """Drop a table where this transaction takes effect; at every site alike.

        What is ordered later and writes to it is rejected.  Each site keeps its files aside, and
        snapshots of older positions show it.  A table that is created again under the name is
        another one.  The transaction has no other operation on the table.

        Raises:
            UnknownTableError: At submit, or before (definite).
            InvalidRequestError: At submit: another operation on the table, or the log cannot do it
                yet (definite).
        """
        self._alter(table, DROPPED)

    def append(self, table: str, rows: RowsT, *, on_duplicate: OnDuplicate = None) -> None:
        """Add rows; no rows change nothing.

        Args:
            table: Its name.
            rows: Of all of its columns.
            on_duplicate: None: keys are not enforced, and the table may then have two rows with one
                key.  "error": it takes effect only if no row with one of their keys is in the table
                then.  `TxLog` looks them up in this site's replica and records that read: if
                anybody writes to the table before the transaction takes effect, that is a conflict,
                see `retry`.  A `Client` has no tables, and refuses it.

        Raises:
            KeyConditionError: One of the keys is in the table (definite).
            InvalidRowsError: Two of the rows have one key (definite).
            InvalidRequestError: Of a `Client`; the table has no keys, or the level is below
                `ordered` (definite).
            LocalProtocolError, UnknownTableError, NotAppliedError: As `read` (definite).
        """
        _check_choice("on_duplicate", on_duplicate, "error", "keys are not checked")
        if on_duplicate is None:
            self.add(OperationKind.APPEND, table, rows)
        else:
            self._append_new(table, rows)

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
    def _create(self, columns: ColumnsT, table: NewTable) -> None: ...

    @abstractmethod
    def _append_new(self, table: str, rows: RowsT) -> None: ...

    @abstractmethod
    def _alter(self, table: str, change: TableChange) -> None: ...

    @abstractmethod
    def _delete_where(self, table: str, predicate: str) -> None: ...


def _added(name: str, kind: str | tuple[str, str]) -> Column:
    said = (kind, "") if isinstance(kind, str) else texts_given(kind, "add")
    if len(said) != 2:
        raise InvalidRequestError(
            f"column {name!r} is given as {said!r}"[:200],
            hint="Give its type, or type and comment: {'note': ('string', 'why')}.",
            field="add",
        )
    return Column(name=name, type=said[0], comment=said[1])


def _pairs(role: str, given: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    found = mapping_given(given, role)
    return tuple((name, text_given(value, role)) for name, value in found.items())


def _names(role: str, given: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if given is None else texts_given(given, role)


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

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: object
    ) -> None:
        if raised is None:
            self.commit()
            return
        try:
            self._drop()
        except Exception as error:  # noqa: BLE001 - why the block raised counts for more
            raised.add_note(f"What the transaction left could not be removed: {error}")


class TransactionDraft(Draft[Receipt], Operations[RowsT, ColumnsT]):
    """Operations over one or more tables, all or nothing, and their conditions."""

    def __init__(
        self,
        isolation: Isolation,
        level: str,
        *,
        is_sync: bool = False,
        participants: Sequence[str] = (),
    ) -> None:
        parse_level(level)
        self._is_sync = flag_given(is_sync, "is_sync")
        self._participants = participants_of(texts_given(participants, "participants") or None)
        _check_choice("isolation", isolation, "serializable", "no reads are recorded")
        self._isolation = isolation
        self._level = level
        if isolation is not None:
            self._check_is_told()
        #: Oldest position that it read at.
        self._read_position: int | None = None
        self._reads: dict[str, None] = {}
        self._versions: dict[str, int] = {}

    @property
    @abstractmethod
    def id(self) -> str:
        """The transaction id, a UUID."""

    def _named(self) -> tuple[str, dict[str, str]]:
        return f"transaction {self.id}", {"transaction_id": self.id}

    @abstractmethod
    def _takes_more(self) -> bool:
        """Whether something is to be added; False: it is a repeat of a known transaction.

        Raises:
            LocalProtocolError: It is submitted already (definite).
        """

    def expect_version(self, table: str, version: int) -> None:
        """Let it take effect only if a table has this version then: compare and set.

        Args:
            table: One of the log.
            version: How many transactions wrote to it: `client.table(name).version`, or the column
                `version` of `log.tables()`.  Ask for it first, then read the rows.

        Raises:
            InvalidRequestError: It is no version, or not the one expected before, or the level is
                below `ordered` (definite).
            LocalProtocolError: The transaction is submitted already (definite).
        """
        self._check_is_told()
        table = table_name(table)
        expected = self._versions.get(table, version)
        if not is_whole(version, 0) or version != expected:
            raise InvalidRequestError(
                f"table {table!r}: {version!r} is no version that it can have"
                + ("" if version == expected else f", not {expected}, which is expected already"),
                hint="A version is a whole number, 0 or more; client.table(name).version says it.",
                field="version",
                value=version,
            )
        if self._takes_more():
            self._versions[table] = int(version)

    def _check_is_told(self) -> None:
        """Refuse a level at which a commit returns before its conditions are judged."""
        if LEVEL_RANK[parse_level(self._level)[0]] < LEVEL_RANK[Level.ORDERED]:
            raise InvalidRequestError(
                f"at level {self._level!r} a commit cannot say whether its conditions hold",
                hint="They are judged where it is ordered: use level 'ordered', or 'applied'.",
                field="level",
                value=self._level,
                allowed=["ordered", "applied", "applied(k)"],
            )

    def _check_records_reads(self) -> None:
        """Refuse to read in a transaction that would not say so when it is committed."""
        if self._isolation is None:
            name, fields = self._named()
            raise LocalProtocolError(
                f"{name} records no reads, it would take effect whatever became of them",
                hint=f"Begin it with {self._another[:-1]}isolation='serializable').",
                **fields,
            )

    def _record(self, position: int, tables: Sequence[str]) -> None:
        """Note tables that were read; the oldest of several positions is safe for all."""
        oldest = position if self._read_position is None else min(position, self._read_position)
        self._read_position = oldest
        self._reads |= dict.fromkeys(tables)

    def _condition(self) -> Condition | None:
        """Return the condition under which it takes effect, None = there is none."""
        if not self._reads and not self._versions:
            return None
        return Condition(
            read_position=self._read_position,
            reads=tuple(self._reads),
            versions=tuple(self._versions.items()),
        )

    def _only_read(self, *operations: object) -> bool:
        """Whether it read at one position and did nothing else: nobody has to judge that."""
        return bool(self._reads) and not self._versions and not operations


class Commits(ABC, Generic[RowsT, ColumnsT]):
    """Commits single operations, each as its own transaction.

    Options are those of `transaction`; arguments and errors those of `Operations`, and of the
    transaction's `commit`.
    """

    #: Begins a transaction for a `with` block.
    transaction: Callable[..., TransactionDraft[RowsT, ColumnsT]]

    @overload
    def retry(self, function: Callable[Parameters, Result], /) -> Callable[Parameters, Result]: ...

    @overload
    def retry(
        self, function: None = None, /, *, attempts: int = ..., timeout: float = ...
    ) -> Retry: ...

    def retry(
        self,
        function: Callable[Parameters, Result] | None = None,
        /,
        *,
        attempts: int = 100,
        timeout: float = 60.0,
    ) -> Callable[Parameters, Result] | Retry:
        """Repeat a function that reads, computes and commits, as long as it loses to others.

            @log.retry                          # or @log.retry(attempts=5, timeout=10)
            def sell(amount: int) -> int:
                with log.transaction(isolation="serializable") as t:
                    left = t.read("stock").first()["n"] - amount
                    t.overwrite("stock", spark.createDataFrame([(left,)], "n bigint"))
                return left

        Only a `ConflictError` repeats it.  Each attempt begins after a random pause, at most four
        times what the last one took and half a second, and once the position that the last one lost
        to is here: in this site's replica (`TxLog`) or at the node (`Client`).  Each
        must begin a transaction with an id of its own.

        Args:
            function: Runs the whole transaction, its reads and what they lead to; it is called
                again with the same arguments, so it should change nothing else.
            attempts: Calls of the function, 1 or more.
            timeout: Seconds after which no further attempt begins.

        Raises:
            ConflictError: From the function: it lost `attempts` times, or for `timeout`; the text
                and field `attempts` say how often (definite).
            InvalidRequestError: An option is out of range, or the function is a coroutine or a
                generator (definite).
        """
        repeat = Retry(attempts=attempts, timeout_s=timeout, catch_up=self._catch_up)
        return repeat if function is None else repeat(function)

    @abstractmethod
    def _catch_up(self, lost: ConflictError, timeout_s: float) -> None:
        """Wait until what a transaction lost to can be read here.

        Raises:
            TxLogError: Not in time, or no node answers.
        """

    def create_table(
        self,
        table: str,
        columns: ColumnsT,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        deletion_vectors: bool | None = None,
        *,
        cluster_by: Sequence[str] = (),
        comment: str = "",
        properties: Mapping[str, str] | None = None,
        group: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Receipt:
        """Create a table; see `Operations.create_table`."""
        is_sync = options.pop("is_sync", False)
        with self.transaction(**options) as t:
            t.create_table(
                table,
                columns,
                keys,
                partition_by,
                deletion_vectors,
                is_sync=is_sync,
                cluster_by=cluster_by,
                comment=comment,
                properties=properties,
                group=group,
            )
        return t.receipt

    def alter_table(
        self,
        table: str,
        *,
        add: Mapping[str, str | tuple[str, str]] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        widen: Mapping[str, str] | None = None,
        keys: Sequence[str] | None = None,
        comment: str | None = None,
        comments: Mapping[str, str] | None = None,
        properties: Mapping[str, str | None] | None = None,
        cluster_by: Sequence[str] | None = None,
        **options: Unpack[CommitOptions],
    ) -> Receipt:
        """Change a table; see `Operations.alter_table`."""
        is_sync = options.pop("is_sync", None)
        with self.transaction(**options) as t:
            t.alter_table(
                table,
                add=add,
                rename=rename,
                drop=drop,
                widen=widen,
                keys=keys,
                is_sync=is_sync,
                comment=comment,
                comments=comments,
                properties=properties,
                cluster_by=cluster_by,
            )
        return t.receipt

    def drop_table(self, table: str, **options: Unpack[CommitOptions]) -> Receipt:
        """Drop a table; see `Operations.drop_table`."""
        with self.transaction(**options) as t:
            t.drop_table(table)
        return t.receipt

    def append(
        self,
        table: str,
        rows: RowsT,
        *,
        on_duplicate: OnDuplicate = None,
        merge_schema: bool = False,
        **options: Unpack[CommitOptions],
    ) -> Receipt:
        """Add rows; keys are enforced only with `on_duplicate`, see `Operations.append`.

        Args:
            table: Its name.
            rows: With exactly the columns of the table, in any order.
            on_duplicate: "error": refuse rows whose key is there.
            merge_schema: First change the table, as `alter_table` does, so that it has all columns
                of the rows, and types that are as wide; the rows get NULL in columns that they do
                not have.
            **options: Of the transaction.
        """
        if flag_given(merge_schema, "merge_schema"):
            rows = self._merge_schema(OperationKind.APPEND, table, rows)
        with self.transaction(**options) as t:
            t.append(table, rows, on_duplicate=on_duplicate)
        return t.receipt

    def upsert(
        self,
        table: str,
        rows: RowsT,
        *,
        merge_schema: bool = False,
        **options: Unpack[CommitOptions],
    ) -> Receipt:
        """Remove every row that has one of the keys, then add the rows.

        With `merge_schema` the table is changed first, see `append`; a column that the rows do not
        have is refused all the same, because its values would be lost.
        """
        if flag_given(merge_schema, "merge_schema"):
            rows = self._merge_schema(OperationKind.UPSERT, table, rows)
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

    def _merge_schema(self, kind: OperationKind, table: str, rows: RowsT) -> RowsT:
        """Change a table so that rows fit; return appended rows with all of its columns."""
        rows = kept_rows(rows)
        definition = change_table_to_fit(
            columns_in(rows),
            lambda: self._newest_definition(table),
            lambda change: self._change(table, change),
        )
        return with_missing(rows, definition) if kind is OperationKind.APPEND else rows

    def _change(self, table: str, change: TableChange) -> None:
        with self.transaction(level=Level.ORDERED.value) as t:
            t.change(table, change)

    @abstractmethod
    def _newest_definition(self, table: str) -> TableDefinition:
        """Ask the node for a table."""

    def _commit(
        self, kind: OperationKind, table: str, rows: RowsT, options: CommitOptions
    ) -> Receipt:
        with self.transaction(**options) as t:
            t.add(kind, table, rows)
        return t.receipt
