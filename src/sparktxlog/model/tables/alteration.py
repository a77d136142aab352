"""How tables change (protocol P33): the change itself, and the definition that it leads to.

A change is one operation of a transaction.  The fold of the tables, the accepting node and the
workers compute the new definition with the same function, so all of them agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparktxlog.errors import (
    ColumnInUseError,
    InvalidRequestError,
    NameTakenError,
    UnknownColumnError,
)
from sparktxlog.model.ids import RESERVED_PREFIX
from sparktxlog.model.tables.table import Column, TableDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """What becomes of a table, all of it at one position.

    Columns are named as they were before; `keys` and `cluster_by` as they are afterwards.
    """

    #: Columns that it gets; rows that were there before have NULL in them.
    add: tuple[Column, ...] = ()
    #: (name, new name).
    rename: tuple[tuple[str, str], ...] = ()
    drop: tuple[str, ...] = ()
    #: (column, new DDL type).
    widen: tuple[tuple[str, str], ...] = ()
    #: Key columns from now on; None = as they were.
    keys: tuple[str, ...] | None = None
    #: Whether its transactions are synchronous from now on (P34); None = as it was.
    is_sync: bool | None = None
    #: The table is dropped; nothing else is changed then.
    is_dropped: bool = False
    #: Of the table; None = as it was.
    comment: str | None = None
    #: (column, its comment from now on).
    comments: tuple[tuple[str, str], ...] = ()
    #: (name of a property, its value from now on; None = there is none).
    properties: tuple[tuple[str, str | None], ...] = ()
    #: Columns by which OPTIMIZE arranges rows from now on; None = as they were.
    cluster_by: tuple[str, ...] | None = None

    @property
    def changes_hashes(self) -> bool:
        """Whether rows that are there get another hash, so that they are counted again (S2)."""
        return bool(self.drop or self.widen)

    @property
    def is_nothing(self) -> bool:
        """Whether it changes nothing."""
        return self == _NOTHING

    def applied_to(self, table: TableDefinition) -> TableDefinition:
        """Return the table after the change: the next schema version.

        Raises:
            UnknownColumnError: A column to change, or a key, is not there (definite).
            ColumnInUseError: A key or partition column would be dropped (definite).
            NameTakenError: A new name is that of another column (definite).
            InvalidRequestError: A column is changed in two ways, or nothing is changed (definite).
            SchemaMismatchError: No column would be left that rows have (definite).
        """
        if self.is_dropped:
            return table.dropped()
        self._check(table)
        renamed, widened, dropped = dict(self.rename), dict(self.widen), set(self.drop)
        comments = dict(self.comments)
        version = table.schema_version + 1
        # Files that are there keep their names of columns, and later files have the same ones.
        maps = table.is_mapped or bool(renamed or dropped)
        columns = [
            replace(
                column,
                name=renamed.get(column.name, column.name),
                type=widened.get(column.name, column.type),
                stored=column.in_files if maps else "",
                comment=comments.get(column.name, column.comment),
            )
            for column in table.columns
            if column.name not in dropped
        ]
        added = [
            replace(
                column,
                # It is not that of a dropped column, whose values are still in the files.
                stored=f"{RESERVED_PREFIX}{version}_{column.name}" if maps else "",
            )
            for column in self.add
        ]
        taken = set[str]()
        for column in (*columns, *added):
            if column.name.lower() in taken:
                raise NameTakenError(
                    f"table {table.name!r}: there is a column {column.name!r} already (case is "
                    "ignored)",
                    hint="Choose another name.",
                    table=table.name,
                    column=column.name,
                )
            taken.add(column.name.lower())
        names = {column.name for column in (*columns, *added)}
        for name in (*(self.keys or ()), *(self.cluster_by or ())):
            if name not in names:
                raise _unknown(table, name)

        def chosen(given: tuple[str, ...] | None, before: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(renamed.get(name, name) for name in before) if given is None else given

        return replace(
            table,
            columns=(*columns, *added),
            keys=chosen(self.keys, table.keys),
            partition_by=chosen(None, table.partition_by),
            cluster_by=chosen(self.cluster_by, table.cluster_by),
            is_sync=table.is_sync if self.is_sync is None else self.is_sync,
            schema_version=version,
            comment=table.comment if self.comment is None else self.comment,
            properties=self._changed_properties(table),
        )

    def _changed_properties(self, table: TableDefinition) -> tuple[tuple[str, str], ...]:
        found: dict[str, str | None] = {**dict(table.properties), **dict(self.properties)}
        return tuple(sorted((name, value) for name, value in found.items() if value is not None))

    def _check(self, table: TableDefinition) -> None:
        """Refuse a change of what is not there, or is changed twice, or is needed; see above."""
        if self.is_nothing:
            raise InvalidRequestError(
                f"the change of table {table.name!r} changes nothing",
                hint="Name what to add, rename, drop or widen, the keys, is_sync, a comment, "
                "properties, or clustering columns.",
                table=table.name,
            )
        named = [*(old for old, _ in self.rename), *self.drop, *(name for name, _ in self.widen)]
        for name in named:
            if table.column(name) is None:
                raise _unknown(table, name)
            if named.count(name) > 1 or (name, name) in self.rename:
                how = "changed twice" if named.count(name) > 1 else "renamed to itself"
                raise InvalidRequestError(
                    f"table {table.name!r}: column {name!r} is {how}",
                    hint="Name each column once, with what becomes of it.",
                    table=table.name,
                    column=name,
                )
        for name, _ in self.comments:
            if table.column(name) is None or name in self.drop:
                raise _unknown(table, name)
        keys = table.keys if self.keys is None else ()
        clustering = table.cluster_by if self.cluster_by is None else ()
        for name in self.drop:
            roles = {"key": keys, "partition": table.partition_by, "clustering": clustering}
            for role in (role for role, names in roles.items() if name in names):
                raise ColumnInUseError(
                    f"table {table.name!r}: {name!r} is a {role} column",
                    hint="Create another table without it, and copy the rows."
                    if role == "partition"
                    else f"Give the table other {role} columns in the same change.",
                    table=table.name,
                    column=name,
                )


_NOTHING = TableChange()
#: Drops a table.
DROPPED = TableChange(is_dropped=True)


def _unknown(table: TableDefinition, name: str) -> UnknownColumnError:
    return UnknownColumnError(
        f"table {table.name!r} has no column {name!r}",
        hint=f"Columns: {', '.join(column.name for column in table.columns)}."[:2000],
        table=table.name,
        column=name,
    )
