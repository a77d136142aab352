"""`t.merge(…)`: a MERGE that is computed against the site's replica and committed as its effects.

Spark joins the table, as the transaction reads it, with a source.  What follows is committed as
keys to delete and rows to upsert, so no other site computes anything.  The transaction rests on
the read: if somebody writes to the table before it takes effect, it is a conflict and takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from sparktxlog.api.schema import HOW_OFTEN, check_fit, repeated_keys, struct_of
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import (
    InvalidRequestError,
    InvalidRowsError,
    LocalProtocolError,
    SchemaMismatchError,
    first_lines,
    wrong_value,
)
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A condition or value: Spark SQL, or a Column.
Expression: TypeAlias = "str | Column"
_Rows: TypeAlias = Literal["matched", "source", "target"]
_Change: TypeAlias = Literal["update", "delete", "insert"]

#: Columns in addition to those of the table; no table can have such names.
_IN_TARGET, _IN_SOURCE = "__txlog_in_target", "__txlog_in_source"
_CHANGE, _OLD = "__txlog_change", "__txlog_old_"
#: How many rows of a key are changed.
_CHANGED = "__txlog_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clause:
    """What happens to rows that are in both, in the source only, or in the target only."""

    rows: _Rows
    change: _Change
    condition: Expression | None
    #: Column → value; None = all columns of the source.
    values: Mapping[str, Expression] | None = None


class Merge:
    """Clauses of one MERGE; `execute` adds its effects to the transaction.

    The methods are those of `DeltaTable.merge`.  Expressions name the table `target` and the
    source `source`, if `t.merge` was given no other names.  The first clause whose condition
    holds for a row counts.
    """

    def __init__(
        self,
        definition: TableDefinition,
        target: DataFrame,
        source: DataFrame,
        condition: Expression,
        *,
        names: tuple[str, str],
        takes_more: Callable[[], bool],
        add: Callable[[OperationKind, DataFrame], None],
    ) -> None:
        #: Raises if the table has no keys.
        self._keys = struct_of(definition, OperationKind.DELETE_KEYS).names
        self._definition = definition
        self._columns = [column.name for column in definition.columns]
        self._target, self._source, self._condition = target, source, condition
        self._target_name, self._source_name = names
        #: Whether the transaction takes operations; False: it is a repeat of a known one.
        self._takes_more, self._add = takes_more, add
        self._clauses: list[_Clause] = []
        #: Its effects are part of the transaction.
        self.is_done = False

    # -- clauses, named as in Delta ----------------------------------------------------------------

    def whenMatchedUpdate(  # noqa: N802
        self,
        condition: Expression | None = None,
        set: Mapping[str, Expression] | None = None,  # noqa: A002
    ) -> Self:
        """Change columns of rows that have a match: column → value."""
        return self._when("matched", "update", condition, self._values("set", set))

    def whenMatchedUpdateAll(self, condition: Expression | None = None) -> Self:  # noqa: N802
        """Replace rows that have a match by the columns of the source with the same names."""
        return self._when("matched", "update", condition)

    def whenMatchedDelete(self, condition: Expression | None = None) -> Self:  # noqa: N802
        """Delete rows that have a match."""
        return self._when("matched", "delete", condition, {})

    def whenNotMatchedInsert(  # noqa: N802
        self, condition: Expression | None = None, values: Mapping[str, Expression] | None = None
    ) -> Self:
        """Insert rows of the source that match nothing: column → value, NULL for all others."""
        return self._when("source", "insert", condition, self._values("values", values))

    def whenNotMatchedInsertAll(self, condition: Expression | None = None) -> Self:  # noqa: N802
        """Insert rows of the source that match nothing, with the columns of the same names."""
        return self._when("source", "insert", condition)

    def whenNotMatchedBySourceUpdate(  # noqa: N802
        self,
        condition: Expression | None = None,
        set: Mapping[str, Expression] | None = None,  # noqa: A002
    ) -> Self:
        """Change columns of rows that no row of the source matches."""
        return self._when("target", "update", condition, self._values("set", set))

    def whenNotMatchedBySourceDelete(  # noqa: N802
        self, condition: Expression | None = None
    ) -> Self:
        """Delete rows that no row of the source matches."""
        return self._when("target", "delete", condition, {})

    def _when(
        self,
        rows: _Rows,
        change: _Change,
        condition: Expression | None,
        values: Mapping[str, Expression] | None = None,
    ) -> Self:
        if any(one.rows == rows and one.condition is None for one in self._clauses):
            raise self._refused(
                "a clause follows one without a condition, so it would never count",
                hint="Only the last clause of a kind can be without a condition.",
            )
        self._clauses.append(_Clause(rows=rows, change=change, condition=condition, values=values))
        return self

    def _values(
        self, name: str, given: Mapping[str, Expression] | None
    ) -> Mapping[str, Expression]:
        """Return column → value by the table's own names."""
        if not given:
            raise self._refused(f"{name}={given!r} sets no column", hint="Give column → value.")
        by_lower = {column.lower(): column for column in self._columns}
        found = {}
        for column, value in given.items():
            bare = column.removeprefix(f"{self._target_name}.").strip("`").lower()
            if bare not in by_lower:
                raise SchemaMismatchError(
                    f"table {self._definition.name!r} has no column {column!r}",
                    hint=f"It has: {', '.join(self._columns)}.",
                    table=self._definition.name,
                    column=column,
                )
            found[by_lower[bare]] = value
        return found

    # -- effects -----------------------------------------------------------------------------------

    def execute(self) -> None:
        """Compute the effects now, once, and add them to the transaction.

        Raises:
            InvalidRequestError: No clause, or Spark does not understand an expression (definite).
            SchemaMismatchError: A value does not fit its column without loss (definite).
            InvalidRowsError: Several rows of the source match one row that they change, a key
                would be there twice, or a value cannot be computed (definite).
            LocalProtocolError: It was executed already, or the transaction is submitted (definite).
        """
        if self.is_done:
            raise LocalProtocolError(
                f"this merge into {self._definition.name!r} was executed already",
                hint="Begin another one with t.merge(…).",
            )
        if not self._clauses:
            raise self._refused("it has no clause", hint="Add whenMatchedUpdate(…) or another one.")
        if not self._takes_more():
            self.is_done = True
            return
        try:
            changes = self._changes(self._target.withColumn(_IN_TARGET, F.lit(True)))
        except AnalysisException as error:
            raise self._refused(
                f"Spark does not understand it: {first_lines(error, 1)}",
                hint=f"Name columns as {self._target_name}.column and {self._source_name}.column.",
            ) from error
        try:
            # Computed once: deletes and upserts must come from the same rows of the source.
            changes = changes.localCheckpoint(eager=True)
        except (PySparkException, Py4JError) as error:
            if said := wrong_value(error):
                hint = "Mend or leave out the rows of the source that do not fit the table."
                raise self._wrong_rows(said, hint) from error
            raise
        self._check_one_match(changes)
        self._check_keys(changes)
        self._check_no_other_row(changes)
        kinds = {clause.change for clause in self._clauses}
        if "delete" in kinds or self._may_move():
            self._add(OperationKind.DELETE_KEYS, self._removed(changes))
        if kinds != {"delete"}:
            kept = changes.where(F.col(_CHANGE) != "delete")
            self._add(OperationKind.UPSERT, kept.select(*map(quoted_name, self._columns)))
        self.is_done = True

    def _changes(self, target: DataFrame) -> DataFrame:
        """Return one row for each change: which one, of which row, the old keys, and the new row.

        Args:
            target: Rows of the table, each with something in `_IN_TARGET`.
        """
        target = target.alias(self._target_name)
        source = self._source.withColumn(_IN_SOURCE, F.lit(True)).alias(self._source_name)
        joined = target.join(source, _expression(self._condition), self._how())
        number = F.lit(None).cast("int")
        for index, clause in reversed(list(enumerate(self._clauses))):
            holds = _region(clause.rows)
            if clause.condition is not None:
                holds = holds & F.coalesce(_expression(clause.condition), F.lit(False))
            number = F.when(holds, F.lit(index)).otherwise(number)
        rows = [self._row(clause, joined) for clause in self._clauses]
        kinds = [F.lit(clause.change) for clause in self._clauses]
        chosen = joined.withColumn("__txlog_clause", number).where("__txlog_clause IS NOT NULL")
        old = [self._old(key).alias(_OLD + key) for key in self._keys]
        new = [_chosen([row[name] for row in rows]).alias(name) for name in self._columns]
        return chosen.select(_chosen(kinds).alias(_CHANGE), _IN_TARGET, *old, *new)

    def _how(self) -> str:
        kinds = {clause.rows for clause in self._clauses}
        if {"source", "target"} <= kinds:
            return "full"
        return "right" if "source" in kinds else "left" if "target" in kinds else "inner"

    def _row(self, clause: _Clause, joined: DataFrame) -> dict[str, Column]:
        """Return column → value of the row that a clause leaves, in the types of the table."""
        if clause.change == "delete":
            given: Mapping[str, Expression] = {name: F.lit(None) for name in self._columns}
        elif clause.values is None:
            prefix = quoted_name(self._source_name)
            given = {name: F.col(f"{prefix}.{quoted_name(name)}") for name in self._columns}
        else:
            rest = self._old if clause.change == "update" else lambda _: F.lit(None)
            given = {name: clause.values.get(name, rest(name)) for name in self._columns}
        values = [_expression(value).alias(name) for name, value in given.items()]
        schema = joined.select(*values).schema
        fields = check_fit(schema, self._definition, OperationKind.UPSERT)
        return {
            field.name: _expression(given[field.name]).cast(field.dataType) for _, field in fields
        }

    def _old(self, column: str) -> Column:
        return F.col(f"{quoted_name(self._target_name)}.{quoted_name(column)}")

    def _removed(self, changes: DataFrame) -> DataFrame:
        """Return the keys that are gone: of deleted rows, and of those whose key changed."""
        gone = changes.where((F.col(_CHANGE) == "delete") | self._moved())
        return gone.select(*self._old_keys()).distinct()

    def _moved(self) -> Column:
        """Whether a row is changed into one with another key."""
        same = [
            F.col(quoted_name(key)).eqNullSafe(F.col(quoted_name(_OLD + key))) for key in self._keys
        ]
        return (F.col(_CHANGE) == "update") & ~_all(same)

    def _may_move(self) -> bool:
        updates = [clause.values for clause in self._clauses if clause.change == "update"]
        return any(values is None or not values.keys().isdisjoint(self._keys) for values in updates)

    def _old_keys(self) -> Sequence[Column]:
        return [F.col(quoted_name(_OLD + key)).alias(key) for key in self._keys]

    def _check_one_match(self, changes: DataFrame) -> None:
        """Refuse a row that several rows of the source change: which one counts is not defined."""
        matched = [clause for clause in self._clauses if clause.rows == "matched"]
        only_deletes = [(one.change, one.condition) for one in matched] == [("delete", None)]
        if not matched or only_deletes:
            return
        old = changes.where(F.col(_CHANGE) != "insert").select(*self._old_keys())
        several = repeated_keys(old, [quoted_name(key) for key in self._keys])
        for row in several.limit(1).collect():
            raise self._wrong_rows(
                f"{row[HOW_OFTEN]} rows of the source match the row with key {self._key(row)}",
                "Let one row of the source match each row: drop the others, or group them.",
            )

    def _check_keys(self, changes: DataFrame) -> None:
        """Refuse a new key that the table keeps already: an upsert would replace that row."""
        if not self._may_move() and all(clause.change != "insert" for clause in self._clauses):
            return
        fresh = changes.where((F.col(_CHANGE) == "insert") | self._moved())
        keys = self._keys
        clash = (
            fresh.select(*map(quoted_name, keys))
            .join(self._target.select(*map(quoted_name, keys)), keys, "left_semi")
            .join(self._removed(changes), keys, "left_anti")
        )
        for row in clash.limit(1).collect():
            raise self._wrong_rows(
                f"the table has a row with key {self._key(row)}, and it would get another one",
                "Match on the keys of the table, so that such a row is updated.",
            )

    def _check_no_other_row(self, changes: DataFrame) -> None:
        """Refuse to change some of the rows with one key: a delete or upsert removes all of them.

        An append does not look whether a key is there.
        """
        if all(clause.change == "insert" for clause in self._clauses):
            return
        keys, changed = [quoted_name(key) for key in self._keys], F.col(_CHANGE) != "insert"
        touched = changes.where(changed).select(*self._old_keys()).distinct()
        rows = self._target.join(touched, self._keys, "left_semi")
        several = repeated_keys(rows, keys)
        if several.isEmpty():
            return
        rows = self._target.join(several, self._keys, "left_semi")
        numbered = rows.withColumn(_IN_TARGET, F.monotonically_increasing_id()).localCheckpoint()
        found = self._changes(numbered).where(changed).select(*self._old_keys(), _IN_TARGET)
        counts = found.groupBy(*keys).agg(F.countDistinct(_IN_TARGET).alias(_CHANGED))
        others = several.join(counts, self._keys).where(f"{HOW_OFTEN} > {_CHANGED}")
        for row in others.limit(1).collect():
            raise self._wrong_rows(
                f"the table has {row[HOW_OFTEN]} rows with key {self._key(row)}, and it would "
                f"change {row[_CHANGED]} of them",
                "Match all rows of a key, or first make them one with t.upsert.",
            )

    def _key(self, row: Row) -> dict[str, object]:
        return {key: row[key] for key in self._keys}

    def _wrong_rows(self, text: str, hint: str) -> InvalidRowsError:
        table = self._definition.name
        return InvalidRowsError(f"merge into {table!r}: {text}", hint=hint, table=table)

    def _refused(self, text: str, *, hint: str) -> InvalidRequestError:
        table = self._definition.name
        return InvalidRequestError(f"merge into {table!r}: {text}", hint=hint, table=table)


def _expression(given: Expression) -> Column:
    return F.expr(given) if isinstance(given, str) else given


def _region(rows: _Rows) -> Column:
    """Whether a joined row is in both sides, or in one of them only."""
    target, source = F.col(_IN_TARGET).isNotNull(), F.col(_IN_SOURCE).isNotNull()
    if rows == "matched":
        return target & source
    return ~target if rows == "source" else ~source


def _chosen(values: Sequence[Column]) -> Column:
    """Return the value of the clause that counts for a row."""
    clause = F.col("__txlog_clause")
    chosen = F.when(clause == 0, values[0])
    for index, value in enumerate(values[1:], start=1):
        chosen = chosen.when(clause == index, value)
    return chosen


def _all(columns: Iterable[Column]) -> Column:
    return reduce(Column.__and__, columns)
