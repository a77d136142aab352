"""A MERGE of Delta into a commit table of a transaction, whose refusals are typed errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    TxLogError,
    first_lines,
    java_cause,
    wrong_value,
)

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame

#: Delta's own error of a column that nobody has; Spark has no text of it in some releases.
_UNRESOLVED = "DELTA_MERGE_UNRESOLVED_EXPRESSION"
_SEVERAL = "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"
_APPEND_ONLY = "DELTA_CANNOT_MODIFY_APPEND_ONLY"


class CommitTableMerge:
    """The clauses of `DeltaTable.merge`, with its methods; `execute` runs it.

    Args:
        table: Name of the table.
        begin: Begins Delta's MERGE.

    Raises:
        InvalidRequestError: From each method: Delta or Spark do not understand a clause (definite).
    """

    def __init__(self, table: str, begin: Callable[[], DeltaMergeBuilder]) -> None:
        self._table = table
        with self._refusals():
            self._merge = begin()

    def whenMatchedUpdate(  # noqa: N802
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002
    ) -> Self:
        """Change columns of rows that have a match: column → value."""
        return self._with("whenMatchedUpdate", condition, set)

    def whenMatchedUpdateAll(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Replace rows that have a match by the columns of the source with the same names."""
        return self._with("whenMatchedUpdateAll", condition)

    def whenMatchedDelete(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Delete rows that have a match."""
        return self._with("whenMatchedDelete", condition)

    def whenNotMatchedInsert(  # noqa: N802
        self,
        condition: str | Column | None = None,
        values: Mapping[str, str | Column] | None = None,
    ) -> Self:
        """Insert rows of the source that match nothing: column → value."""
        return self._with("whenNotMatchedInsert", condition, values)

    def whenNotMatchedInsertAll(self, condition: str | Column | None = None) -> Self:  # noqa: N802
        """Insert rows of the source that match nothing, with the columns of the same names."""
        return self._with("whenNotMatchedInsertAll", condition)

    def whenNotMatchedBySourceUpdate(  # noqa: N802
        self,
        condition: str | Column | None = None,
        set: Mapping[str, str | Column] | None = None,  # noqa: A002
    ) -> Self:
        """Change columns of rows that no row of the source matches."""
        return self._with("whenNotMatchedBySourceUpdate", condition, set)

    def whenNotMatchedBySourceDelete(  # noqa: N802
        self, condition: str | Column | None = None
    ) -> Self:
        """Delete rows that no row of the source matches."""
        return self._with("whenNotMatchedBySourceDelete", condition)

    def withSchemaEvolution(self) -> Self:  # noqa: N802
        """Let the table get the columns of the source that it does not have."""
        return self._with("withSchemaEvolution")

    def execute(self) -> DataFrame:
        """Run it; return Delta's counts of rows.

        Raises:
            InvalidRequestError: No clause, an expression that Spark does not understand, or the
                table is append-only (definite).
            InvalidRowsError: Several rows of the source match one row that they change, or a value
                does not fit its column, or breaks a constraint (definite).
        """
        with self._refusals():
            return self._merge.execute()

    def _with(self, clause: str, *given: Any) -> Self:
        with self._refusals():
            self._merge = getattr(self._merge, clause)(*given)
        return self

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JError, TypeError, ValueError) as error:
            typed = self._refusal(error)
            if typed is None:
                raise
            raise typed from error

    def _refusal(self, error: BaseException) -> TxLogError | None:
        text, merge = f"{error}\n{java_cause(error)}", f"merge into commit table {self._table!r}"
        if is_append_only(error):
            return append_only(self._table)
        if _SEVERAL in text:
            return InvalidRowsError(
                f"{merge}: several rows of the source match a row that they change",
                hint="Let one row of the source match each row: drop the others, or group them.",
                table=self._table,
            )
        if said := wrong_value(error):
            return InvalidRowsError(
                f"{merge}: {said}",
                hint="Mend or leave out the rows that do not fit the table.",
                table=self._table,
            )
        if isinstance(error, (AnalysisException, TypeError, ValueError)):
            said = first_lines(error, 1)
        elif _UNRESOLVED in text:
            said = "an expression names a column that neither of both has"
        else:
            return None
        return InvalidRequestError(
            f"{merge}: {said}",
            hint="Give the clauses of DeltaTable.merge, with columns by the names of both.",
            table=self._table,
        )


def append_only(table: str) -> InvalidRequestError:
    """Return the error of a statement that changes rows of an append-only table."""
    return InvalidRequestError(
        f"commit table {table!r} is append-only",
        hint="Append to it, or let it be changed: ALTER TABLE … SET TBLPROPERTIES "
        "('delta.appendOnly' = 'false').",
        table=table,
    )


def is_append_only(error: BaseException) -> bool:
    """Return whether Delta refused a statement because the table is append-only."""
    return _APPEND_ONLY in f"{error}\n{java_cause(error)}"
