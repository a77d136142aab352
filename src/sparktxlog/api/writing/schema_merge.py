"""`merge_schema`: a table is changed, by a transaction of its own, so that rows fit it.

Columns that the rows have and the table has not are added; a column whose values are wider in the
rows becomes as wide, where `alter_table` can do that.  Nothing is dropped, renamed or narrowed.
The change is ordered before the rows; if several writers make it, one of them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.submits.alterations import widens
from sparktxlog.errors import ConflictError, NameTakenError
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition

#: Others may change the table each time; then somebody has to look at it.
_ATTEMPTS = 5


def change_to_fit(given: Iterable[Column], table: TableDefinition) -> TableChange:
    """Return the change that a table needs so that it has all columns of the rows.

    Types that cannot become wider stay; the check of the rows says what is wrong with them.
    """
    known = {column.name.lower(): column for column in table.columns}
    add, widen = [], []
    for column in given:
        found = known.get(column.name.lower())
        if found is None:
            add.append(replace(column, nullable=True))
        elif found.name not in table.partition_by and widens(
            arrow_type(found.type), arrow_type(column.type)
        ):
            widen.append((found.name, column.type))
    return TableChange(add=tuple(add), widen=tuple(widen))


def change_table_to_fit(
    given: Iterable[Column],
    newest: Callable[[], TableDefinition],
    alter: Callable[[TableChange], object],
) -> TableDefinition:
    """Change a table until it has all columns of the rows; return it as it is then.

    Args:
        given: Columns of the rows.
        newest: Asks the node for the table.
        alter: Commits a change of it.

    Raises:
        CommitRejectedError: From `alter` (definite).
    """
    columns = tuple(given)
    for left in reversed(range(_ATTEMPTS)):
        table = newest()
        change = change_to_fit(columns, table)
        if change.is_nothing:
            return table
        try:
            alter(change)
        except (ConflictError, NameTakenError):
            # Another writer changed the table in between, perhaps in the same way.
            if not left:
                raise
    return newest()
