"""Row tables of the log."""

from __future__ import annotations

import hashlib
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from itertools import islice

from sparktxlog.errors import SchemaMismatchError
from sparktxlog.model.ids import check_column_name, check_table_name

#: What errors of Spark say of a statement that would write a row table through the catalog.
ONLY_READ = "a row table of sparktxlog is only read through the catalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    #: Spark's DDL name of the type, lower case: `bigint`, `decimal(10,2)`, `array<string>`.
    type: str
    nullable: bool = True
    #: Its name in files and signatures, once a column of the table was renamed or dropped (P33): it
    #: never changes, and no later column gets it.  Empty = `name`.
    stored: str = ""
    #: For people.
    comment: str = ""

    @property
    def in_files(self) -> str:
        """Name of the column in data files, and in row hashes (protocol S2)."""
        return self.stored or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """What `create_table` defines; equal definitions are the same table (protocol P25b)."""

    name: str
    columns: tuple[Column, ...]
    #: Columns that upserts and deletes match on; never NULL.
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    deletion_vectors: bool = False
    #: Transactions that write to it are synchronous (P34).
    is_sync: bool = False
    schema_version: int = 1
    #: Schema version that it was created with, above 1 if there was a table of its name before.
    #: Above its own one: it was dropped, and a new table of its name begins with that one (P33).
    first_version: int = 1
    #: Columns by which OPTIMIZE arranges rows in files (liquid clustering).
    cluster_by: tuple[str, ...] = ()
    #: For people.
    comment: str = ""
    #: (name, value) by name: of Delta's those in `table_properties`, and any of the user's own.
    properties: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_table_name(self.name)
        names = [check_column_name(column.name) for column in self.columns]
        if not names:
            raise SchemaMismatchError(f"table {self.name!r} has no columns", table=self.name)
        for name, count in Counter(name.lower() for name in names).items():
            if count > 1:
                raise SchemaMismatchError(
                    f"table {self.name!r}: column {name!r} stands twice (case is ignored)",
                    table=self.name,
                    column=name,
                )
        for role, wanted in (
            ("key", self.keys),
            ("partition", self.partition_by),
            ("clustering", self.cluster_by),
        ):
            for name in wanted:
                if name not in names:
                    raise SchemaMismatchError(
                        f"table {self.name!r}: {role} column {name!r} is not in its schema",
                        hint=f"Columns: {', '.join(names)}.",
                        table=self.name,
                        column=name,
                    )
        if set(self.partition_by) >= set(names):
            raise SchemaMismatchError(
                f"table {self.name!r}: every column is a partition column", table=self.name
            )

    def column(self, name: str) -> Column | None:
        """Return the column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def is_dropped(self) -> bool:
        """Whether there is no such table any more; its name and versions are remembered."""
        return self.first_version > self.schema_version

    def dropped(self) -> TableDefinition:
        """Return what is remembered of the table once it is dropped: the next schema version."""
        version = self.schema_version + 1
        return replace(self, schema_version=version, first_version=version + 1)

    def named(self, name: str) -> TableDefinition:
        """Return the new table that has another name, and is like this one."""
        return replace(self.created_after(None), name=name, schema_version=1)

    def created_after(self, former: TableDefinition | None) -> TableDefinition:
        """Return the table that comes into being when somebody creates this one (P33).

        Schema versions go on, so what was made for the former table does not fit.

        Args:
            former: The dropped table of that name, None if there never was one.
        """
        plain = tuple(replace(column, stored="") for column in self.columns)
        if former is None:
            return replace(self, columns=plain, first_version=1)
        first = former.first_version
        return replace(self, columns=plain, schema_version=first, first_version=first)

    @property
    def is_mapped(self) -> bool:
        """Whether columns have names of their own in files: then all of them say which."""
        return any(column.stored for column in self.columns)

    def in_files(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names of columns in data files."""
        stored = {column.name: column.in_files for column in self.columns}
        return tuple(stored[name] for name in names)

    def is_like(self, other: TableDefinition) -> bool:
        """Return whether a creator of the one may use the other (P25b); comments are for people."""
        one, two = (
            (
                table.name,
                tuple((column.name, column.type, column.nullable) for column in table.columns),
                (table.keys, table.partition_by, table.cluster_by),
                (table.deletion_vectors, table.is_sync, table.properties),
            )
            for table in (self, other)
        )
        return one == two

    def differences(self, other: TableDefinition) -> list[str]:
        """Return what another definition says that this table has not; none: `is_like`."""
        found = []
        if self.name != other.name:
            found.append(f"its name is {self.name!r}, not {other.name!r} (case is ignored)")
        mine = {column.name: column for column in self.columns}
        given = {column.name: column for column in other.columns}
        found += [f"it has no column {name!r}" for name in given if name not in mine]
        for name, column in mine.items():
            wanted = given.get(name)
            if wanted is None:
                found.append(f"it has a column {name!r}")
            elif column.type != wanted.type:
                found.append(f"column {name!r} is {column.type}, not {wanted.type}")
            elif column.nullable != wanted.nullable:
                found.append(f"column {name!r} is{' not' if column.nullable else ''} NOT NULL")
        if not found and list(mine) != list(given):
            found.append(f"its columns stand as {', '.join(mine)}")
        for what, mine_by, other_by in (
            ("keys", self.keys, other.keys),
            ("partition columns", self.partition_by, other.partition_by),
            ("clustering columns", self.cluster_by, other.cluster_by),
        ):
            if mine_by != other_by:
                found.append(f"its {what} are {list(mine_by)}, not {list(other_by)}")
        for flag in ("deletion_vectors", "is_sync"):
            if getattr(self, flag) != getattr(other, flag):
                found.append(f"its {flag} is {getattr(self, flag)}")
        has, asked = dict(self.properties), dict(other.properties)
        found += [
            f"its property {name!r} is {has.get(name)!r}, not {asked.get(name)!r}"
            for name in sorted({*has, *asked})
            if has.get(name) != asked.get(name)
        ]
        return found

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change when names, types or keys do (protocol S2)."""
        text = "\n".join(f"{c.name}\t{c.type}\t{c.nullable}" for c in self.columns)
        text += "\n" + "\t".join(self.keys) + "\n" + "\t".join(self.partition_by)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VersionedTable(TableDefinition):
    """A table as a node knew it at a position; it equals others of the same definition."""

    #: End of the node's queue when it was asked; all else holds there.
    position: int = 0
    #: How many transactions wrote to it and took effect.
    version: int = 0
    #: Position of the last of them; of a table without, where it came into being.
    last_write: int = 0


class Tables(Mapping[str, TableDefinition]):
    """Tables by name.  A holder of this mapping sees what is added, changed and dropped later.

    A look-up takes constant time, and may be done in any thread.

    Args:
        by_lower: By lower-case name, because Spark and many file systems ignore case; dropped
            tables among them are remembered and not shown.
    """

    __slots__ = ("_by_lower",)

    def __init__(self, by_lower: MutableMapping[str, TableDefinition]) -> None:
        self._by_lower = by_lower

    @classmethod
    def of(cls, tables: Mapping[str, TableDefinition]) -> Tables:
        """Return the mapping of these tables."""
        if isinstance(tables, Tables):
            return tables
        return cls({table.name.lower(): table for table in tables.values()})

    def alike(self, name: str) -> TableDefinition | None:
        """Return the table with a name, whose case is ignored."""
        found = self._by_lower.get(name.lower())
        return None if found is None or found.is_dropped else found

    def former(self, name: str) -> TableDefinition | None:
        """Return what is remembered of a dropped table, if there is none of that name now."""
        found = self._by_lower.get(name.lower())
        return found if found is not None and found.is_dropped else None

    def known(self, name: str) -> TableDefinition | None:
        """Return the table with a name, or what is remembered of the last one that was dropped."""
        return self._by_lower.get(name.lower())

    def names_since(self, known: int, most: int) -> list[str]:
        """Return lower-case names, those of dropped tables too, in the order of coming into being.

        A name stays, so whoever knows the first ones asks only for those that came later.

        Args:
            known: Leave out the first so many.
            most: Names at most.
        """
        if known == len(self._by_lower):
            return []
        return list(islice(self._by_lower, known, known + most))

    def below(self, own: MutableMapping[str, TableDefinition]) -> Tables:
        """Return these tables with `own` ones added, by lower-case name; this mapping stays."""
        return Tables(ChainMap(own, self._by_lower))

    def __getitem__(self, name: str) -> TableDefinition:
        found = self.alike(name)
        if found is None or found.name != name:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        # In one step: another thread may add tables meanwhile.
        return iter([t.name for t in list(self._by_lower.values()) if not t.is_dropped])

    def __len__(self) -> int:
        return sum(not table.is_dropped for table in list(self._by_lower.values()))
