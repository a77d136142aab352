"""The transaction builder: operations are checked and staged one by one, then submitted."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sparktxlog.api.given_data import (
    Columns,
    Rows,
    check_is_frame,
    check_is_no_stream,
    columns_given,
    kept_rows,
)
from sparktxlog.api.long_steps import long_step
from sparktxlog.api.nodes import Doubt
from sparktxlog.api.schema import key_values, struct_of
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.api.staging.commit_table_rows import frame_of
from sparktxlog.api.staging.frame_staging import FrameStager, keys_of
from sparktxlog.api.writing.merge import Merge
from sparktxlog.api.writing.operations import Isolation, NewTable, TransactionDraft
from sparktxlog.api.writing.replaced_partitions import partitions_predicate
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.submits.arguments import flag_given, kind_given, microseconds, seconds_given
from sparktxlog.codec.submits.condition_requests import is_ordered
from sparktxlog.codec.submits.requests import parse_level
from sparktxlog.codec.submits.transactions import (
    PreparedOperation,
    PreparedTransaction,
    StagedCommitRequest,
)
from sparktxlog.errors import (
    CommittedNotAppliedError,
    ConflictError,
    IdTakenError,
    InvalidRequestError,
    KeyConditionError,
    LocalProtocolError,
    NameTakenError,
    SchemaMismatchError,
    StaleSchemaError,
    TxLogError,
    java_cause,
)
from sparktxlog.model.ids import (
    full_table_name,
    table_name,
    transaction_id_from_text,
    transaction_id_to_text,
)
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.commit_table import REPLACES_NOTHING
from sparktxlog.model.tables.table import TableDefinition, VersionedTable
from sparktxlog.model.tables.table_kind import TableKind
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.worker.tables.twin_drafts import TwinDrafts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparktxlog.api.reading.replica_snapshot import Snapshot
    from sparktxlog.worker.tables.commit_table_merge import CommitTableMerge


class SparkTransaction(TransactionDraft[Rows, Columns]):
    """Operations over one or more tables, all or nothing.

    The end of its `with` block submits it; if the block raises, the transaction is dropped and its
    staged files are removed.  Without a `with` block, `commit` submits it.

    An append, upsert or delete of no rows is checked and changes nothing.  A transaction of only
    these is recorded if the user gave an id, so that a repeat is recognised; otherwise its receipt
    has no id, no position and `n` 0.

    The arguments are those of `TxLog.transaction`.
    """

    _another = "log.transaction()"

    def __init__(
        self,
        site: SiteSession,
        *,
        level: str = "ordered",
        timeout: float | None = None,
        transaction_id: str | uuid.UUID | None = None,
        first_wins: bool = False,
        valid_until: datetime | None = None,
        isolation: Isolation = None,
        is_sync: bool = False,
        participants: Sequence[str] = (),
    ) -> None:
        given = None if transaction_id is None else transaction_id_from_text(str(transaction_id))
        super().__init__(isolation, level, is_sync=is_sync, participants=participants)
        self._site = site
        self._timeout_s = site.timeout_s if timeout is None else seconds_given(timeout)
        self._transaction_id = given or uuid.uuid4().bytes
        #: The user gave the id: a transaction without effect is still recorded under it.
        self._given = given is not None
        self._first_wins = flag_given(first_wins, "first_wins")
        #: What the nodes had under the id before; asked once.
        self._earlier: Receipt | None = None
        self._is_asked = not self._given
        #: Microseconds since 1970 UTC after which no copy of it takes effect.
        self._valid_until = microseconds(valid_until)
        self._operations: list[PreparedOperation] = []
        self._created: dict[str, TableDefinition] = {}
        self._staging = FrameStager(site.spark, site.store, self._transaction_id, site.expressions)
        #: What `read` shows, since it was called first.
        self._snapshot: Snapshot | None = None
        #: Tables that were read, as they were shown.
        self._shown: dict[str, DataFrame] = {}
        self._merges: list[Merge] = []
        #: Commit tables that it reads or writes.
        self._drafts = TwinDrafts(site.spark, site.home)
        #: What it did to them, once it is staged.
        self._commits: tuple[StagedCommitRequest, ...] = ()
        #: Submitted: staged files are removed only after a definite error.
        self._submitted = False
        self._doubt = Doubt()
        #: It was ordered and lost; that stays its outcome.
        self._lost: ConflictError | None = None

    @property
    def id(self) -> str:
        """The transaction id, a UUID."""
        return transaction_id_to_text(self._transaction_id)

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: object
    ) -> None:
        super().__exit__(kind, raised, trace)
        if raised is None:
            return
        if REPLACES_NOTHING in str(raised):
            raise errors_from_spark(raised) from raised
        if cause := java_cause(raised):
            raised.add_note(f"Caused by {cause}")

    def _drop(self) -> None:
        try:
            self._drafts.close()
        finally:
            if not self._submitted:
                self._staging.discard()
                self._drafts.withdraw()

    def commit(self) -> Receipt:
        """Submit it and return the receipt; again, it returns the same one.

        After an unknown outcome or an interrupt it may be called again: the id makes both one
        transaction.

        Raises:
            ConflictError: What it read or expected does not hold; again, it is the same error,
                and a new attempt needs a new transaction (definite).
            CommitRejectedError: It does not take effect; the class says why (definite).
            CommitStateUnknownError: Not known in time; field `transaction_id` (not definite).
            CommittedNotAppliedError: Ordered but not applied by `apply="inline"` (not definite).
            UnreachableError: No node answers; nothing was sent (definite).
            InvalidRequestError: There is no operation in it (definite).
        """
        if self._receipt is None and not self._is_known():
            try:
                self._receipt = self._submit()
            except CommittedNotAppliedError as error:
                self._receipt = error.receipt
                raise
        return self.receipt

    def _submit(self) -> Receipt:
        if self._lost is not None:
            raise self._lost
        if not all(merge.is_done for merge in self._merges):
            name, fields = self._named()
            raise LocalProtocolError(
                f"{name} has a merge that was not executed",
                hint="End its clauses with .execute().",
                **fields,
            )
        if self._only_read(*self._operations, *self._drafts.names, *self._commits):
            self._submitted = True
            return Receipt.of_nothing(parse_level(self._level)[0])
        if not (self._operations or self._drafts.names or self._commits):
            raise InvalidRequestError(
                "the transaction has no operation",
                hint="Call t.append(…) or another one before its commit; what was refused has to "
                "be built again.",
            )
        if self._drafts.names:
            if self._isolation is not None and (self._operations or self._drafts.written()):
                self._drafts.claim_reads()
            try:
                self._commits = self._drafts.staged()
            except InvalidRequestError:  # to commit it again would not help
                self._drop()
                raise
            self._drafts.close()
        transaction = PreparedTransaction(
            transaction_id=self._transaction_id,
            operations=self._compared(),
            valid_until=self._valid_until,
            condition=self._condition(),
            is_sync=self._is_sync,
            participants=self._participants,
            staged_commits=self._commits,
        )
        self._submitted = True
        is_nothing = all(operation.is_nothing for operation in self._operations)
        is_nothing = is_nothing and not self._participants and not self._commits
        is_recorded = bool(self._operations) and (self._given or transaction.condition is not None)
        if is_nothing and not is_recorded:
            return Receipt.of_nothing(parse_level(self._level)[0])
        tables = {operation.table for operation in self._operations}
        self._is_repeat()  # later it would be found itself
        try:
            with self._doubt.posting() as doubt:
                receipt = self._site.submit(
                    transaction, self._level, self._timeout_s, self._first_wins, doubt
                )
            self._discard_repeat(receipt)
            if any(operation.change is not None for operation in self._operations):
                self._site.forget_definitions(tables)
            return receipt
        except TxLogError as error:
            self._site.forget_definitions(tables)
            if not error.definite:  # it may have been accepted, and needs its files
                raise
            self._drafts.withdraw()
            if not is_ordered(error):
                self._staging.discard()
            if isinstance(error, ConflictError):
                self._lost = error
            else:
                self._operations.clear()
                self._commits = ()
            raise

    def _compared(self) -> tuple[PreparedOperation, ...]:
        """Return the operations; under an id that was made here nothing else can come."""
        if self._given:
            return tuple(self._operations)
        return tuple(replace(one, content="") for one in self._operations)

    def _discard_repeat(self, receipt: Receipt) -> None:
        """Remove what it staged if the log has the files of the first one."""
        there = self._earlier.position if self._is_repeat() and self._earlier else None
        if there is not None and there == receipt.position:
            self._staging.discard()

    def _is_known(self) -> bool:
        """Whether the log has it, and that counts whatever this one does."""
        if self._first_wins and not self._is_asked:
            self._receipt = self._site.known(self._transaction_id, self._level, self._timeout_s)
            self._earlier = self._receipt
            self._is_asked = True
        return self._first_wins and self._earlier is not None

    def _is_repeat(self) -> bool:
        """Whether the log has something under its id, with which this one is to be compared."""
        if not self._first_wins and not self._is_asked:
            found = self._site.link.find(self._transaction_id)
            self._earlier = None if found is None or found.level is None else found
            self._is_asked = True
        return not self._first_wins and self._earlier is not None

    def _check_comparable(self) -> None:
        """Refuse what rests on tables: they are others now than when the id was used.

        Raises:
            IdTakenError: The log has the id (definite).
        """
        if self._is_repeat():
            assert self._earlier is not None
            raise IdTakenError(
                f"the log has transaction {self.id} already, and what rests on the content of "
                "tables cannot be compared with it",
                hint="If that one counts, whatever it did, give first_wins=True; else another id.",
                transaction_id=self.id,
                position=self._earlier.position,
            )

    def _takes_more(self) -> bool:
        if self._is_known():
            return False
        self._take_more(self._submitted)
        return True

    def read(self, table: str) -> DataFrame:
        """Return a table of this site's replica, and record that the transaction rests on it.

        A commit table (`schema.table`) is shown as it was when the transaction first touched it,
        with what the transaction wrote to it since.  If it writes to it, nobody else may have.  If
        it only reads it, that holds with `isolation="serializable"`: the table then gets a version
        without changes.

        All other reads show one position: the newest that is applied whole here when the first of
        them is called, and not before this log's own commits.  What the transaction itself writes
        is not in it.

        Raises:
            LocalProtocolError: It was begun without `isolation="serializable"`, or is submitted
                already (definite).
            UnknownTableError: The log has no such table (definite).
            NotAppliedError: It is not applied here yet, or what this log committed was not applied
                in time (definite).
        """
        if self._is_commit_table(table):
            return self._drafts.frame(table)
        self._check_records_reads()
        return self._read(table)[1]

    def in_sql(self, table: str) -> str:
        """Return what names a commit table in SQL statements that belong to this transaction.

            spark.sql(f"UPDATE {t.in_sql('shop.orders')} SET paid = true WHERE id = 7")

        It is a table of its own, which begins as the commit table is now.  Delta runs statements on
        it as on any other.  The commit of the transaction makes one version of the commit table
        out of all of them; after that it is gone.

        Raises:
            UnknownTableError: There is no such commit table (definite).
            InvalidRequestError: The level is below `ordered` (definite).
            LocalProtocolError: The transaction is submitted already (definite).
        """
        self._takes_more_commits()
        return self._drafts.in_sql(table)

    def _is_commit_table(self, table: str) -> bool:
        """Whether a name is that of a commit table.

        Raises:
            UnknownTableError: It is of no table (definite).
        """
        if table_name(table).lower() in self._created:
            return False
        is_used = full_table_name(table).lower() in self._drafts.names
        return is_used or self._site.kind_of(table) is TableKind.COMMIT_TABLE

    def _takes_more_commits(self) -> bool:
        self._check_is_told()
        self._check_comparable()
        return self._takes_more()

    def _read(self, table: str) -> tuple[int, DataFrame]:
        """Return a table and the position that all reads show, and record it."""
        is_open = self._takes_more()
        self._check_comparable()
        if self._snapshot is None:
            self._snapshot = self._site.latest_snapshot(self._timeout_s)
        found, name = self._snapshot.table(table), self._snapshot.name_of(table)
        if is_open:
            self._record(self._snapshot.position, [name])
            self._shown[name] = found
        return self._snapshot.position, found

    def merge(
        self,
        table: str,
        source: DataFrame,
        condition: str | Column,
        *,
        target_name: str = "target",
        source_name: str = "source",
    ) -> Merge | CommitTableMerge:
        """Begin a MERGE into a table with keys, with the clauses of `DeltaTable.merge`.

            t.merge("stock", sold, "target.id = source.id").whenMatchedUpdate(
                set={"n": "target.n - source.n"}
            ).whenNotMatchedInsertAll().execute()

        It is computed here, on what `read` would return, and committed as its effects.  It records
        that read, whatever the isolation: if anybody writes to the table before the transaction
        takes effect, that is a conflict (`retry`), so no update is lost.

        A MERGE into a commit table is Delta's own, with all of its clauses.

        Args:
            table: One with keys, or a commit table.
            source: Rows, of any columns.
            condition: When a row of the source matches one of the table: SQL or a Column.
            target_name: Name of the table in expressions.
            source_name: Name of the source in expressions.

        Raises:
            InvalidRequestError: The table has no keys, the source is no DataFrame of Spark or a
                stream, both names are the same, or the level is below `ordered` (definite).
            LocalProtocolError: The transaction wrote to the table before, which a merge would not
                see, or is submitted (definite).
            UnknownTableError, NotAppliedError: As `read`.
            StaleSchemaError: The table changed, and this site's replica shows it as it was before
                (definite).
        """
        self._check_is_told()
        if target_name.lower() == source_name.lower():
            raise InvalidRequestError(
                f"table and source are both named {source_name!r}",
                hint="Give them two names.",
                field="source_name",
                value=source_name,
            )
        check_is_frame(source)
        if self._is_commit_table(table):
            self._takes_more_commits()
            return self._drafts.merge(table, source, condition, target_name, source_name)
        definition, target = self._unwritten(table, "merge")
        merge = Merge(
            definition,
            target,
            source,
            condition,
            names=(target_name, source_name),
            takes_more=self._takes_more,
            add=lambda kind, rows: self.add(kind, table, rows),
        )
        self._merges.append(merge)
        return merge

    def _unwritten(self, table: str, act: str) -> tuple[TableDefinition, DataFrame]:
        """Return the newest definition of a table and its rows, and record that they were read.

        Args:
            act: What is done with them, for messages.
        """
        known = table_name(table).lower()
        if any(operation.table.lower() == known for operation in self._operations):
            name, fields = self._named()
            raise LocalProtocolError(
                f"{name} wrote to {table!r} already, and a {act} would not see that",
                hint=f"Begin with the {act}, or use another transaction.",
                **fields,
            )
        _, target = self._read(table)
        definition = self._definition(table)
        if not _shows(target, definition):
            # The table changed since this session has read its definition.
            definition = self._site.definition(table, newest=True)
            self._check_read(definition)
        return definition, target

    def rename_table(self, table: str, name: str) -> None:
        """Give a table another name, where this transaction takes effect.

        Its rows are copied into a new table, with the columns, keys, comments and settings of this
        one, and it is dropped.  The rows are those that `read` would return, and that
        read is recorded: if anybody writes to the table before the transaction takes effect, that
        is a conflict (`retry`), so no row is lost.

        Args:
            table: As it is named now.
            name: Its new name; no table has it.

        Raises:
            NameTakenError: There is a table of the new name (definite).
            InvalidNameError: The new name is outside the allowed pattern (definite).
            InvalidRequestError: The level is below `ordered` (definite).
            LocalProtocolError: The transaction wrote to the table before, or is submitted
                (definite).
            UnknownTableError, NotAppliedError, StaleSchemaError: As `merge`.
        """
        self._check_is_told()
        name = table_name(name)
        # What is read does not show changes of keys or of is_sync: the kept definition is renewed.
        self._site.definition(table, newest=True)
        definition, rows = self._unwritten(table, "renaming")
        if not self._takes_more():
            return
        if name.lower() in self._created or self._site.existing(name) is not None:
            raise NameTakenError(
                f"table {table!r} cannot be named {name!r}: there is a table of that name",
                hint="Choose another name; names of tables ignore case.",
                table=table,
                name=name,
            )
        self._add_table(definition.named(name))
        self.append(name, rows)
        self.drop_table(table)

    def if_absent(self, table: str, key: object) -> None:
        """Let it take effect only if a table has no row with a key.

        The key is looked up here, on what `read` would return, and that read is recorded: if
        anybody writes to the table before the transaction takes effect, that is a conflict.

        Args:
            table: One with keys.
            key: Key column → value, or the value alone of a table with one key column.

        Raises:
            KeyConditionError: The key is there (definite).
            InvalidRequestError: The table has no keys, or the level is below `ordered` (definite).
            SchemaMismatchError, InvalidRowsError: It is no key of the table (definite).
            LocalProtocolError, UnknownTableError, NotAppliedError: As `read`.
        """
        self._expect_key(table, key, is_there=False)

    def if_present(self, table: str, key: object) -> None:
        """Let it take effect only if a table has a row with a key; otherwise as `if_absent`."""
        self._expect_key(table, key, is_there=True)

    def _expect_key(self, table: str, key: object, *, is_there: bool) -> None:
        self._check_is_told()
        values = key_values(self._definition(table), key)
        position, rows = self._read(table)
        if self._is_known():
            return
        for column, value in values.items():
            rows = rows.where(F.col(quoted_name(column)) == F.lit(value))
        if rows.isEmpty() is is_there:
            raise KeyConditionError(
                f"table {table!r} has {'no' if is_there else 'a'} row with key {key!r} at "
                f"position {position}",
                hint="Decide what to do by a read of the table, or leave the condition out.",
                table=table,
                key=str(key),
                position=position,
            )

    def _create(self, columns: Columns, table: NewTable) -> None:
        if not self._takes_more():
            return
        has_vectors, properties, present = table.deletion_vectors, table.properties, None
        if has_vectors is None or properties is None:  # then as the table has it
            present = self._site.existing(table.table)
        if has_vectors is None:
            has_vectors = present is not None and present.deletion_vectors
        if properties is None:
            properties = () if present is None else present.properties
        definition = TableDefinition(
            name=table_name(table.table),
            columns=columns_given(columns),
            keys=table.keys,
            partition_by=table.partition_by,
            deletion_vectors=has_vectors,
            is_sync=table.is_sync,
            cluster_by=table.cluster_by,
            comment=table.comment,
            properties=properties,
        )
        self._add_table(definition)

    def _add_table(self, definition: TableDefinition) -> None:
        name = definition.name
        self._created[name.lower()] = definition
        self._operations.append(
            PreparedOperation(table=name, kind=OperationKind.CREATE_TABLE, definition=definition)
        )

    def _alter(self, table: str, change: TableChange) -> None:
        if self._takes_more():
            name, version = table_name(table), 0
            if not self._is_repeat():  # else the node compares it by the table as it was
                definition = self._site.definition(table, newest=True)
                change.applied_to(definition)
                name, version = definition.name, definition.schema_version
            kind = OperationKind.DROP_TABLE if change.is_dropped else OperationKind.ALTER_TABLE
            self._operations.append(
                PreparedOperation(table=name, kind=kind, schema_version=version, change=change)
            )

    def _delete_where(self, table: str, predicate: str) -> None:
        if self._is_commit_table(table):
            if self._takes_more_commits():
                self._drafts.delete(table, predicate)
            return
        if not self._takes_more():
            return
        definition = self._definition(table)
        self._operations.append(
            PreparedOperation(
                table=definition.name,
                kind=OperationKind.DELETE_WHERE,
                schema_version=definition.schema_version,
                predicate=predicate,
            )
        )

    def add(self, kind: OperationKind, table: str, rows: Rows) -> None:
        """Add an operation of a kind that carries rows; they are checked and staged now.

        Raises:
            UnknownTableError: The log has no such table (definite).
            SchemaMismatchError, InvalidRowsError, PayloadStoreError: See `FrameStager.stage`.
            StaleSchemaError: The rows do not fit, because the table changed after the position at
                which this transaction read it (definite).
            InvalidRequestError: The rows are a stream, or none of the accepted kinds (definite).
        """
        kind = kind_given(kind)
        check_is_no_stream(rows)
        if self._is_commit_table(table):
            if self._takes_more_commits():
                frame = frame_of(
                    self._site.spark, rows, table, lambda: self._drafts.frame(table).schema
                )
                self._drafts.write(kind, table, frame)
            return
        if not self._takes_more():
            return
        place, created = len(self._operations), self._creates(table)
        rows = kept_rows(rows)  # staged once more if the table has changed

        def staged(definition: TableDefinition) -> PreparedOperation:
            with long_step(f"staging rows for {table}"):
                return self._staging.stage(rows, definition, kind, place)

        try:
            prepared = staged(created) if created else self._site.fitting(table, staged)
        except SchemaMismatchError:
            if not created:
                self._check_read(self._site.definition(table))
            raise
        self._operations.append(prepared)

    def discard(self) -> None:
        """Drop it, and remove what it staged, unless it was submitted."""
        self._drop()

    def definition(self, table: str) -> TableDefinition:
        """Return the table that an operation of this transaction writes to; errors as `add`."""
        return self._definition(table)

    def link(
        self, table: str, files: Sequence[tuple[Callable[[Path], None], Mapping[str, str | None]]]
    ) -> tuple[StagedFile, ...]:
        """Stage files of a Delta table without writing them again; see `FrameStager.link`."""
        if not self._takes_more():
            return ()
        return self._staging.link(files, self._definition(table))

    def add_files(
        self,
        kind: OperationKind,
        table: str,
        files: tuple[StagedFile, ...],
        claim: TableSignature | None,
    ) -> None:
        """Add an operation whose rows are those of linked files.

        Args:
            kind: APPEND or OVERWRITE.
            files: What `link` returned.
            claim: Signature of their rows; None = workers count it.
        """
        if self._takes_more():
            self._operations.append(
                PreparedOperation(
                    table=table,
                    kind=kind,
                    schema_version=self._definition(table).schema_version,
                    files=files,
                    claim=claim,
                )
            )

    def _append_new(self, table: str, rows: Rows) -> None:
        self._check_is_told()
        if self._is_commit_table(table):
            raise InvalidRequestError(
                f"commit table {table!r} has no keys to look up",
                hint="Use t.merge(…).whenNotMatchedInsertAll(), which says what matches.",
                table=table,
                field="on_duplicate",
            )
        definition, target = self._unwritten(table, "check of keys")
        if self._is_known():
            return
        rows = kept_rows(rows)
        keys = keys_of(self._site.spark, rows, definition)
        there = keys.join(target, on=keys.columns, how="left_semi").first()
        if there is not None:
            raise KeyConditionError(
                f"table {table!r} has a row with key {there.asDict()!r}"[:1000],
                hint="Use upsert, which replaces it, or leave on_duplicate out.",
                table=table,
                key=str(there.asDict())[:1000],
            )
        self.add(OperationKind.APPEND, table, rows)

    def replace_partitions(self, table: str, rows: Rows) -> None:
        """Replace the partitions that the rows are of: delete all that is in them, then append.

        Other partitions stay; without rows nothing is done.

        Raises:
            InvalidRequestError: The table has no partitions, or the rows are of too many, or it is
                a commit table (definite).
            SchemaMismatchError, InvalidRowsError, PayloadStoreError: As `append` (definite).
        """
        if self._is_commit_table(table) or not self._definition(table).partition_by:
            raise InvalidRequestError(
                f"{table!r} is no row table with partitions",
                hint="Use t.delete_where and t.append.",
                table=table,
            )
        if not self._takes_more():
            return
        self.add(OperationKind.APPEND, table, rows)
        appended = self._operations.pop()
        if not appended.is_nothing:
            definition = self._definition(table)
            self._delete_where(table, partitions_predicate(definition, appended))
        self._operations.append(appended)

    def _check_read(self, newest: TableDefinition) -> None:
        """Refuse to go on with a table that changed since this transaction read it.

        Rows that are made of the old columns do not fit; at its position it would be a conflict.

        Raises:
            StaleSchemaError: It changed (definite).
        """
        shown = self._shown.get(newest.name)
        if shown is None or self._snapshot is None or _shows(shown, newest):
            return
        written = newest.last_write if isinstance(newest, VersionedTable) else 0
        if written <= self._snapshot.position:
            return
        raise StaleSchemaError(
            f"table {newest.name!r} was read at position {self._snapshot.position}, and has schema "
            f"version {newest.schema_version} since",
            table=newest.name,
            schema_version=newest.schema_version,
            winner=written,
        )

    def _definition(self, table: str) -> TableDefinition:
        return self._creates(table) or self._site.definition(table)

    def _creates(self, table: str) -> TableDefinition | None:
        """Return what the transaction creates; an equal table that is there is used as it is."""
        created = self._created.get(table_name(table).lower())
        return None if created is None else self._site.present(created) or created


def _shows(frame: DataFrame, definition: TableDefinition) -> bool:
    """Return whether a table of a replica has the columns of a definition."""
    known, held = struct_of(definition, OperationKind.APPEND).fields, frame.schema.fields
    return [(f.name, f.dataType) for f in held] == [(f.name, f.dataType) for f in known]
