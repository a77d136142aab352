"""Groups of sites: a row table of a group has its rows at the sites of the group only (P41).

A group is a property of one small row table, as restore points are: a change of that table is a
transaction like any other, so all sites know the same groups.  The sites of a group never change,
and a group is never removed, so whoever knows a table knows for ever where its rows are: the
definition of the table says it.  How many copies a transaction needs may change at any time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparktxlog.errors import (
    InvalidNameError,
    InvalidRequestError,
    NotHeldHereError,
    UnknownGroupError,
)
from sparktxlog.model.ids import full_table_name
from sparktxlog.model.restore_point import RESTORE_POINTS, check_points
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.tables.table_properties import (
    GROUP_OF_TABLE,
    SITES_OF_TABLE,
    property_pairs,
)

#: The table whose properties are the groups.
GROUPS = "sparktxlog_groups"
#: Most sites of a group, and most schemas.
MOST_SITES = 64
MOST_SCHEMAS = 64
_PREFIX = "group."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FIELDS = frozenset({"sites", "copies", "schemas"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sites that hold the rows of some tables."""

    name: str
    #: Ids of their nodes, each once, ascending.
    sites: tuple[str, ...]
    #: So many of them hold what a transaction writes before it is ordered.
    copies: int = 1
    #: New tables of these schemas belong to the group; lower case, ascending.
    schemas: tuple[str, ...] = ()

    def checked(self) -> Group:
        """Return it as it is kept.

        Raises:
            InvalidNameError: No group, site or schema can have such a name (definite).
            InvalidRequestError: It has no sites, or other copies than 1 to all of them (definite).
        """
        group_key(self.name)
        sites = tuple(sorted(set(self.sites)))
        schemas = tuple(sorted({schema.lower() for schema in self.schemas}))
        for what, names, form, most in (
            ("site", sites, _SITE, MOST_SITES),
            ("schema", schemas, _SCHEMA, MOST_SCHEMAS),
        ):
            for name in names:
                if not form.fullmatch(name):
                    raise InvalidNameError(
                        f"group {self.name!r}: {name[:80]!r} cannot name a {what}",
                        group=self.name,
                        field=f"{what}s",
                        value=name[:80],
                    )
            if len(names) > most:
                raise self._refused(f"{what}s", len(names), f"at most {most} are allowed")
        if not sites:
            raise self._refused("sites", 0, "a group needs one at least, as --sites B,C")
        if not 1 <= self.copies <= len(sites):
            raise self._refused(
                "copies",
                self.copies,
                f"its sites are {', '.join(sites)}, so it may be 1 to {len(sites)}",
            )
        return Group(name=self.name, sites=sites, copies=self.copies, schemas=schemas)

    def _refused(self, field: str, value: int, why: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"group {self.name!r} cannot have {value} {field}: {why}",
            hint="Name the sites that hold its tables, and how many of them a transaction waits "
            "for.",
            group=self.name,
            field=field,
            value=value,
        )

    def to_value(self) -> str:
        """Return it as the value of its property."""
        said: dict[str, Any] = {"sites": self.sites, "copies": self.copies}
        return json.dumps(said | ({"schemas": self.schemas} if self.schemas else {}))

    def table_properties(self) -> dict[str, str]:
        """Return the properties by which a table belongs to it."""
        return {GROUP_OF_TABLE: self.name, SITES_OF_TABLE: ",".join(self.sites)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesNeeded:
    """What the rows of a run need of one group before the run gets its timestamp (P41)."""

    group: str
    #: Its sites, and how many of them hold the files then.
    sites: tuple[str, ...]
    copies: int
    #: Tables of the group that the run writes rows to.
    tables: tuple[str, ...] = ()


def group_key(name: str) -> str:
    """Return the property of a group.

    Raises:
        InvalidNameError: No group can have that name (definite).
    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{name[:80]!r} cannot name a group",
            hint="It may have letters, digits, '_' and '-', 64 at most, and begins with a letter "
            "or digit.",
            field="group",
            value=name[:80],
        )
    return _PREFIX + name


def groups_in(properties: Mapping[str, str]) -> list[Group]:
    """Return the groups among the properties of their table, by name."""
    found = [
        _group_of(key.removeprefix(_PREFIX), value)
        for key, value in properties.items()
        if key.startswith(_PREFIX)
    ]
    return sorted(found, key=lambda group: group.name)


def groups_of(tables: Mapping[str, TableDefinition]) -> list[Group]:
    """Return the groups of a log, by name.

    Args:
        tables: Those of the log.
    """
    table = tables.get(GROUPS)
    return [] if table is None else groups_in(dict(table.properties))


def group_named(groups: Iterable[Group], name: str) -> Group:
    """Return the group of a name.

    Raises:
        UnknownGroupError: There is none (definite).
    """
    known = list(groups)
    for group in known:
        if group.name == name:
            return group
    raise UnknownGroupError(
        f"there is no group {name[:80]!r}",
        hint=f"Groups: {', '.join(group.name for group in known)[:1000]}."
        if known
        else "`sparktxlog group create` makes one.",
        group=name[:80],
    )


def check_groups(before: Mapping[str, str], after: Mapping[str, str | None]) -> list[Group]:
    """Check a change of the properties of the groups' table; return the groups that it makes.

    Args:
        before: All its properties.
        after: Those that are changed; None = removed.

    Raises:
        InvalidNameError, InvalidRequestError: A property is no group, a group would be removed or
            get other sites, or a schema would have two groups (definite).
    """
    made = []
    for key, value in after.items():
        name = key.removeprefix(_PREFIX)
        if not key.startswith(_PREFIX) or group_key(name) != key:
            raise _wrong(key, f"{key[:80]!r} names no group", "Its properties are 'group.NAME'.")
        if value is None:
            raise _wrong(
                name,
                f"group {name!r} cannot be removed: its tables say for ever where their rows are",
                "Leave it; a group without tables holds nothing up.",
            )
        group = _group_of(name, value).checked()
        if value != group.to_value():
            raise _wrong(name, f"group {name!r} is not written as it is kept", _USE_THE_COMMAND)
        if key in before:
            old = _group_of(name, before[key])
            if old.sites != group.sites:
                raise _wrong(
                    name,
                    f"group {name!r} has sites {', '.join(old.sites)}, and keeps them: sites that "
                    "come later would lack the rows from before",
                    "Make another group with the other sites, a table in it, and copy the rows.",
                )
        else:
            made.append(group)
    later = groups_in({**before, **{k: v for k, v in after.items() if v is not None}})
    for index, one in enumerate(later):
        for other in later[index + 1 :]:
            if twice := set(one.schemas) & set(other.schemas):
                raise _wrong(
                    other.name,
                    f"schema {min(twice)!r} cannot belong to groups {one.name!r} and "
                    f"{other.name!r}",
                    "Name each schema with one group.",
                )
    return made


def check_places(lines: Iterable[Mapping[str, Any]], places: Collection[str]) -> None:
    """Refuse places of nodes that leave a group with tables without any site.

    Args:
        lines: Of the groups, as the node answers.
        places: Nodes that may be members, and have a place.

    Raises:
        InvalidRequestError: It names the group, and the tables (definite).
    """
    for line in lines:
        if line["tables"] and not set(line["sites"]) & set(places):
            tables = ", ".join(line["tables"][:5])
            raise InvalidRequestError(
                f"group {line['name']!r} would be without sites: {tables} would be lost",
                hint="Drop these tables first; copy their rows to tables of another group before, "
                "if you need them.",
                group=line["name"],
                tables=line["tables"][:100],
            )


def check_change(table: TableDefinition, properties: Mapping[str, str | None]) -> None:
    """Refuse a change of a table that moves it to another group, or of groups or restore points.

    Raises:
        InvalidNameError, InvalidRequestError: As `check_groups` and `check_points`, or it moves
            (definite).
    """
    if table.name == GROUPS:
        check_groups(dict(table.properties), properties)
    if table.name == RESTORE_POINTS:
        check_points(properties)
    for name in (GROUP_OF_TABLE, SITES_OF_TABLE):
        if name in properties:
            raise InvalidRequestError(
                f"table {table.name!r} stays in {_words(table)}: rows that were written before "
                "would be missing at the sites of another one",
                hint="Create another table in that group, copy the rows, and drop this one.",
                table=table.name,
                field="properties",
                value=name,
            )


def check_new_table(table: TableDefinition, former: TableDefinition | None) -> None:
    """Refuse a new table whose name was that of a table with rows at other sites.

    So a name says for ever where rows are, whichever of its tables they belong to.

    Raises:
        InvalidNameError, InvalidRequestError: Or it is one of the log's own, in another form
            (definite).
    """
    for own in (GROUPS, RESTORE_POINTS):
        if table.name.lower() == own != table.name:
            raise InvalidRequestError(
                f"table {table.name!r} cannot be created: the log's own table is called {own!r}",
                hint="Choose another name.",
                table=table.name,
                field="table",
                value=table.name,
            )
    if table.name == GROUPS:
        check_groups({}, dict(table.properties))
    if table.name == RESTORE_POINTS:
        check_points(dict(table.properties))
    if former is not None and sites_of(former) != sites_of(table):
        raise InvalidRequestError(
            f"table {table.name!r} cannot be in {_words(table)}: a dropped table of that name was "
            f"in {_words(former)}",
            hint="Choose another name.",
            table=table.name,
            field="group",
            value=group_of(table),
        )


def _words(table: TableDefinition) -> str:
    group = group_of(table)
    return f"group {group!r}" if group else "no group"


_USE_THE_COMMAND = "Use `sparktxlog group create` or `group alter`."


def _wrong(group: str, text: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(text, hint=hint, group=group[:80], field="group")


def _group_of(name: str, value: str) -> Group:
    try:
        said = json.loads(value)
        sites, schemas = said["sites"], said.get("schemas", [])
        whole = said.keys() <= _FIELDS and all(
            isinstance(one, str) for names in (sites, schemas) for one in names
        )
        if not whole or type(said["copies"]) is not int or str in (type(sites), type(schemas)):
            raise ValueError(value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _wrong(name, f"{value[:80]!r} says no group", _USE_THE_COMMAND) from error
    return Group(name=name, sites=tuple(sites), copies=said["copies"], schemas=tuple(schemas))


# -- tables -------------------------------------------------------------------------------------


def group_of(table: TableDefinition) -> str:
    """Return the group of a table, empty = it has none."""
    return dict(table.properties).get(GROUP_OF_TABLE, "")


def sites_of(table: TableDefinition) -> tuple[str, ...]:
    """Return the sites that hold a table's rows, empty = all sites do."""
    said = dict(table.properties).get(SITES_OF_TABLE, "")
    return tuple(said.split(",")) if said else ()


def is_held_at(table: TableDefinition | None, site: str) -> bool:
    """Return whether a site holds a table's rows; of one that is not known it does."""
    sites = () if table is None else sites_of(table)
    return not sites or site in sites


def not_held(table: str, sites: Iterable[str]) -> NotHeldHereError:
    """Return the error of a site that is asked for rows that it does not hold."""
    named = list(sites)
    return NotHeldHereError(
        f"this site holds no rows of table {table!r}: its group has sites {', '.join(named)}",
        hint=f"Read it at one of them: {', '.join(named)}.",
        table=table,
        sites=named,
    )


def group_of_new_table(
    name: str, given: str | None, tables: Mapping[str, TableDefinition]
) -> Group | None:
    """Return the group of a table that is to be created, None = it has none.

    Args:
        name: Of the table.
        given: The group that its creator names; None = that of its schema.
        tables: Those of the log.

    Raises:
        UnknownGroupError: There is no such group (definite).
    """
    known = groups_of(tables)
    if given is not None:
        return group_named(known, given)
    schema = full_table_name(name).partition(".")[0].lower()
    return next((group for group in known if schema in group.schemas), None)


def new_properties(
    name: str, given: dict[str, str | None], tables: Mapping[str, TableDefinition]
) -> tuple[tuple[str, str], ...]:
    """Return the properties of a new table, with those that say where its rows are.

    Args:
        name: Of the table.
        given: What its creator gives.
        tables: Those of the log.

    Raises:
        UnknownGroupError: It names a group that there is not (definite).
        InvalidRequestError: A property that the table cannot have (definite).
    """
    asked, said = given.pop(GROUP_OF_TABLE, None), given.pop(SITES_OF_TABLE, None)
    own: dict[str, str] = {}
    if name not in (GROUPS, RESTORE_POINTS):
        group = group_of_new_table(name, asked, tables)
        own = {} if group is None else group.table_properties()
    if said not in (None, own.get(SITES_OF_TABLE)):
        raise InvalidRequestError(
            f"table {name!r} cannot have property {SITES_OF_TABLE!r}: the group has sites",
            hint=f"Name the group alone: {GROUP_OF_TABLE}.",
            table=name,
            field="properties",
            value=SITES_OF_TABLE,
        )
    return tuple(sorted((*property_pairs(name, given), *own.items())))


def copies_needed(
    written: Iterable[str], tables: Mapping[str, TableDefinition]
) -> tuple[CopiesNeeded, ...]:
    """Return what rows for some tables need, by group; empty = they are for tables without one.

    Args:
        written: Names of the tables.
        tables: Those of the log, and what the transaction creates.
    """
    by_group: dict[str, list[str]] = {}
    sites: dict[str, tuple[str, ...]] = {}
    for name in sorted(set(written)):
        table = tables.get(name)
        if table is not None and (group := group_of(table)):
            by_group.setdefault(group, []).append(name)
            sites[group] = sites_of(table)
    if not by_group:
        return ()
    copies = {group.name: group.copies for group in groups_of(tables)}
    return tuple(
        CopiesNeeded(
            group=group,
            sites=sites[group],
            copies=copies.get(group, len(sites[group])),
            tables=tuple(names),
        )
        for group, names in sorted(by_group.items())
    )


def missing_text(needed: Sequence[CopiesNeeded], holding: Iterable[str]) -> str:
    """Say which group has too few copies, and which of its sites lack one; empty = none.

    Args:
        holding: Sites that hold the files.
    """
    there = set(holding)
    for one in needed:
        have = [site for site in one.sites if site in there]
        if len(have) < one.copies:
            lacking = ", ".join(site for site in one.sites if site not in there)
            return (
                f"group {one.group!r} needs {one.copies} of its {len(one.sites)} sites to hold it, "
                f"{len(have)} do; missing: {lacking}"
            )
    return ""
