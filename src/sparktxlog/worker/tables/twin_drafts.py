"""Commit tables that a transaction of Spark reads and writes, each on a plain twin of its own.

Delta itself runs the statements, on the twin, by its path.  What they did there together is staged
as one commit of the table, and one request asks for all tables.  A twin belongs to one
transaction: the next attempt makes another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.rows import nearest
from sparktxlog.codec.submits.transactions import StagedCommitRequest
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    RowTableError,
    SchemaMismatchError,
    StorageError,
    UnknownSchemaError,
    UnknownTableError,
    first_lines,
    wrong_value,
)
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.http.link import Http
from sparktxlog.model.ids import full_table_name
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.storage.commit_tables.shared_tables import SharedTable, Twin
from sparktxlog.storage.commit_tables.table_places import TRANSACTION_TWINS
from sparktxlog.storage.commit_tables.twin import TwinCommit
from sparktxlog.worker.apply.deltalog import forget_log
from sparktxlog.worker.apply.worker_session import has_jvm
from sparktxlog.worker.tables.commit_table_merge import (
    CommitTableMerge,
    append_only,
    is_append_only,
)
from sparktxlog.worker.tables.places_of_tables import tables_beside

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MODES = {OperationKind.APPEND: "append", OperationKind.OVERWRITE: "overwrite"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    uuid: str
    table: SharedTable
    #: What the twin was made of.
    version: int
    twin: Twin


@contextmanager
def _refusals(
    table: str, given: Sequence[str], columns: Callable[[], Sequence[str]]
) -> Iterator[None]:
    """Raise the typed error for rows that Delta refuses; others stay as they are."""
    try:
        yield
    except AnalysisException as error:
        known = columns()
        lower = {name.lower() for name in known}
        extra = next((name for name in given if name.lower() not in lower), None)
        said = first_lines(error, 1) if extra is None else f"it has no column {extra!r}"
        raise SchemaMismatchError(
            f"commit table {table!r} does not take the rows: {said}",
            hint="Give the table's columns in their types; nothing is guessed."
            if extra is None
            else nearest(extra, known),
            table=table,
            **({} if extra is None else {"column": extra}),
        ) from error
    except (PySparkException, Py4JError) as error:
        if is_append_only(error):
            raise append_only(table) from error
        said = wrong_value(error)
        if not said:
            raise
        raise InvalidRowsError(
            f"commit table {table!r} does not take the rows: {said}",
            hint="Mend or leave out the rows that break the constraint.",
            table=table,
        ) from error


class TwinDrafts:
    """The commit tables of one transaction.

    Args:
        spark: Runs the statements.
        home: The node of this site, which shares the tables' storage with driver and executors.
    """

    def __init__(self, spark: SparkSession, home: Http) -> None:
        self._spark = spark
        self._home = home
        #: By lower-case name, in the order in which they were touched.
        self._drafts: dict[str, _Draft] = {}
        self._staged: list[tuple[SharedTable, TwinCommit]] = []

    @property
    def names(self) -> list[str]:
        """Names of the tables, in lower case."""
        return list(self._drafts)

    def frame(self, name: str) -> DataFrame:
        """Return a table with what the transaction wrote to it; errors as `in_sql`."""
        return self._spark.read.format("delta").load(self._draft(name).twin.path)

    def in_sql(self, name: str) -> str:
        """Return what names the twin of a table in SQL.

        Raises:
            UnknownTableError, RowTableError: There is no such commit table (definite).
            StorageError: Its files are not here, or the disk is full.
        """
        return f"delta.{quoted_name(self._draft(name).twin.path)}"

    def write(self, kind: OperationKind, name: str, rows: DataFrame | None) -> None:
        """Append rows, or replace all rows by others.

        Args:
            rows: None = there are none.

        Raises:
            InvalidRequestError: An operation that needs keys, or one that removes rows of an
                append-only table (definite).
            SchemaMismatchError: Delta does not take the columns or their types (definite).
            InvalidRowsError: A row breaks a constraint of the table (definite).
            UnknownTableError, RowTableError, StorageError: As `in_sql`.
        """
        mode = _MODES.get(kind)
        if mode is None:
            raise InvalidRequestError(
                f"commit table {name!r} has no keys, which {kind.value} needs",
                hint="Use t.merge(…), which says what matches.",
                field="kind",
                value=kind.value,
            )
        path = self._draft(name).twin.path
        if rows is not None:
            with _refusals(name, rows.columns, lambda: self.frame(name).columns):
                rows.write.format("delta").mode(mode).save(path)
        elif kind is OperationKind.OVERWRITE:
            self.delete(name, "true")

    def delete(self, name: str, predicate: str) -> None:
        """Delete the rows for which a predicate is true; errors as `in_sql`.

        Raises:
            InvalidRequestError: Spark does not understand the predicate, or it has no value for a
                row, or the table is append-only (definite).
        """
        table = self.in_sql(name)
        try:
            self._spark.sql(f"DELETE FROM {table} WHERE {predicate}")
        except AnalysisException as error:  # of the parser, too
            raise InvalidRequestError(
                f"Spark does not understand the predicate: {first_lines(error, 1)}",
                hint="Give a condition of Spark SQL over the table's columns.",
                field="predicate",
                value=predicate[:140],
            ) from error
        except (PySparkException, Py4JError) as error:
            if is_append_only(error):
                raise append_only(name) from error
            said = wrong_value(error)
            if not said:
                raise
            raise InvalidRequestError(
                f"the predicate has no value for a row of commit table {name!r}: {said}",
                hint="Leave out the rows for which it has none, or use try_cast and try_divide.",
                field="predicate",
                value=predicate[:140],
            ) from error

    def merge(
        self, name: str, source: DataFrame, condition: str | Column, target: str, source_name: str
    ) -> CommitTableMerge:
        """Begin a MERGE of Delta into a table; errors as `in_sql`."""
        table = DeltaTable.forPath(self._spark, self._draft(name).twin.path).alias(target)
        return CommitTableMerge(name, lambda: table.merge(source.alias(source_name), condition))

    def written(self) -> list[str]:
        """Return the tables that statements changed, in lower case."""
        return [n for n, one in self._drafts.items() if one.twin.newest() > one.version]

    def claim_reads(self) -> None:
        """Give each table that was only read a version without changes.

        So the transaction loses if somebody else commits to it meanwhile.
        """
        for name in self._drafts.keys() - {*self.written()}:
            self._drafts[name].twin.add_unchanged_version()

    def staged(self) -> tuple[StagedCommitRequest, ...]:
        """Stage what was done to each table, in its directory; return what a request says of it.

        Raises:
            StagedCommitError: It cannot be a commit of a commit table (definite).
            InvalidRequestError: Statements cannot be one commit, see `merged_commits` (definite).
            StorageError: The disk is full, or fails.
        """
        found = []
        for draft in self._drafts.values():
            last = draft.twin.newest()
            if last == draft.version:
                continue  # nothing was changed
            staged = draft.twin.stage(draft.version + 1, last)
            self._staged.append((draft.table, staged))
            found.append(
                StagedCommitRequest(
                    table_id=draft.uuid,
                    proposed_version=staged.proposed.version,
                    timestamp=staged.proposed.timestamp,
                    file_name=staged.proposed.file_name,
                    file_size=staged.proposed.file_size,
                )
            )
        return tuple(found)

    def close(self) -> None:
        """Remove the twins: no more is done on them."""
        for draft in self._drafts.values():
            draft.twin.remove()
            if has_jvm(self._spark):  # a server of Spark Connect forgets it by itself, later
                forget_log(self._spark, draft.twin.path)
        self._drafts.clear()

    def withdraw(self) -> None:
        """Remove what was staged, for the transaction did not take effect, and never will."""
        for table, commit in self._staged:
            with suppress(StorageError):  # a vacuum of the table removes what is left
                table.withdraw(commit)
        self._staged.clear()

    def _draft(self, name: str) -> _Draft:
        found = self._drafts.get(full_table_name(name).lower())
        if found is None:
            try:
                with closing(CatalogLink.to_same_node(self._home)) as link:
                    shown = link.load(name)
            except (UnknownSchemaError, UnknownTableError) as error:
                raise UnknownTableError(
                    f"there is no table {name!r}, of either kind",
                    hint="Create it first: log.create_table for a row table, CREATE TABLE for a "
                    "commit table.",
                    table=name,
                ) from error
            if shown.metadata.table_type != "MANAGED":
                raise RowTableError(
                    f"{name!r} is a row table, and is only read through the catalog", value=name
                )
            location, version = shown.metadata.location, shown.latest_table_version
            table = tables_beside(location).table(full_table_name(name), location)
            found = _Draft(
                uuid=shown.metadata.table_uuid,
                table=table,
                version=version,
                twin=table.twin(version, TRANSACTION_TWINS, guarded=True),
            )
            self._drafts[full_table_name(name).lower()] = found
        return found
