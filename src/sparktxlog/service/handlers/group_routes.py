"""`/v1/groups`: makes and changes groups of sites, which hold the rows of some tables (P41).

Groups are properties of one small row table (`model.tables.groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sparktxlog.errors import InvalidRequestError, NameTakenError
from sparktxlog.model.tables.groups import GROUPS, Group, group_key, group_named, groups_in
from sparktxlog.runtime.node import Node
from sparktxlog.service.granted import check_writes
from sparktxlog.service.handlers.property_table import PropertyTable
from sparktxlog.service.routing.declared_route import Role, Route
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.request_bodies import GroupChange, NewGroup

_COMMENT = "Its properties are the groups of sites; it has no rows."
_PATH = "/v1/groups/{name}"
GROUP_ACTS = (
    Route(
        method="PUT",
        path=_PATH,
        name="create_group",
        summary="Make a group of sites that hold the rows of some tables",
        description="The same group again is there already.  Its sites stay for ever.",
        role=Role.CLIENT,
        body=NewGroup,
        answer=Group,
        at_member=True,
    ),
    Route(
        method="PATCH",
        path=_PATH,
        name="alter_group",
        summary="Change how many copies transactions of a group need from now on, or its schemas",
        role=Role.CLIENT,
        body=GroupChange,
        answer=Group,
        at_member=True,
    ),
)


class GroupRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self._table = PropertyTable(node, GROUPS, _COMMENT)

    async def create_group(self, name: str, body: NewGroup) -> Group:
        check_writes(lambda: (GROUPS,), (f"group {name}",))
        group = Group(
            name=name, sites=tuple(body.sites), copies=body.copies, schemas=tuple(body.schemas)
        ).checked()

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

        await self._table.make()
        return await self._put(made)

    async def alter_group(self, name: str, body: GroupChange) -> Group:
        group_key(name)
        check_writes(lambda: (GROUPS,), (f"group {name}",))
        copies, schemas = body.copies, body.schemas
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

        return await self._put(changed)

    async def _put(self, make: Callable[[list[Group]], Group]) -> Group:
        """Commit the group that is made of those that are there, unless it is one of them."""
        found: list[Group] = []

        def change(properties: Mapping[str, str]) -> dict[str, str | None]:
            known = groups_in(properties)
            found[:] = [make(known)]
            return {} if found[0] in known else {group_key(found[0].name): found[0].to_value()}

        await self._table.change(change)
        return found[0]
