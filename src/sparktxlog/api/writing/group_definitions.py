"""Makes and changes groups of sites: which of them hold the rows of some tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sparktxlog.errors import (
    CommitRejectedError,
    InvalidRequestError,
    NameTakenError,
    StaleSchemaError,
    UnknownTableError,
)
from sparktxlog.model.tables.groups import GROUPS, Group, group_key, group_named, groups_in

if TYPE_CHECKING:
    from sparktxlog.api.client import Client

_COMMENT = "Its properties are the groups of sites; it has no rows."
#: Attempts while others change groups at the same time.
_ATTEMPTS = 20


def create_group(
    client: Client,
    name: str,
    sites: Sequence[str],
    copies: int = 1,
    schemas: Sequence[str] = (),
) -> Group:
    """Make a group; the same one again is there already.

    Args:
        client: A connection to any node.
        name: Letters, digits, `_` and `-`.
        sites: Ids of the nodes whose sites hold the tables; they stay for ever.
        copies: So many of them hold what a transaction writes before it is ordered.
        schemas: New tables of these schemas belong to the group.

    Raises:
        NameTakenError: There is another group of that name (definite).
        InvalidNameError, InvalidRequestError: Which field has which value is said (definite).
        TxLogError: As a commit.
    """
    group = Group(name=name, sites=tuple(sites), copies=copies, schemas=tuple(schemas)).checked()
    try:
        client.table(GROUPS)
    except UnknownTableError:
        try:
            client.create_table(GROUPS, {"name": "string"}, comment=_COMMENT)
        except CommitRejectedError:
            client.table(GROUPS)  # somebody else did

    def made(known: list[Group]) -> Group:
        for one in known:
            if one.name == name and one != group:
                raise NameTakenError(
                    f"there is a group {name!r} of sites {', '.join(one.sites)} with "
                    f"{one.copies} copies",
                    hint="Choose another name; `sparktxlog group alter` changes the copies.",
                    group=name,
                )
        return group

    return _put(client, made)


def alter_group(
    client: Client,
    name: str,
    *,
    copies: int | None = None,
    schemas: Sequence[str] | None = None,
) -> Group:
    """Change how many copies transactions of a group need from now on, or its schemas.

    Raises:
        UnknownGroupError: There is none (definite).
        InvalidRequestError: Nothing is changed, or it has fewer sites than copies (definite).
        TxLogError: As a commit.
    """
    if copies is None and schemas is None:
        raise InvalidRequestError(
            f"the change of group {name!r} changes nothing",
            hint="Name copies or schemas.  Its sites stay: make another group for others.",
            group=name,
        )

    def changed(known: list[Group]) -> Group:
        group = group_named(known, name)
        return replace(
            group,
            copies=group.copies if copies is None else copies,
            schemas=group.schemas if schemas is None else tuple(schemas),
        ).checked()

    return _put(client, changed)


def _put(client: Client, make: Callable[[list[Group]], Group]) -> Group:
    """Change the property of a group, if nobody changed another one meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            table = client.table(GROUPS)
        except UnknownTableError:
            return make([])  # of no group that there is
        known = groups_in(dict(table.properties))
        group = make(known)
        if group in known:
            return group
        transaction = client.transaction()
        transaction.alter_table(GROUPS, properties={group_key(group.name): group.to_value()})
        transaction.expect_schema(GROUPS, table.schema_version)
        try:
            transaction.commit()
        except StaleSchemaError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return group
    raise AssertionError("the last attempt returns or raises")
