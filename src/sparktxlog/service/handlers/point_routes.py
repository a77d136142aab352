"""`/v1/restore-points`: makes and deletes named positions of the log that all sites agree on.

Points are properties of one small row table (`model.restore_point`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sparktxlog.errors import NameTakenError, NotFoundError
from sparktxlog.model.restore_point import RESTORE_POINTS, RestorePoint, point_key, points_in
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.node import Node
from sparktxlog.service.granted import check_writes
from sparktxlog.service.handlers.property_table import PropertyTable
from sparktxlog.service.routing.declared_route import Role, Route
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.request_bodies import NewRestorePoint

_COMMENT = "Its properties are the restore points of the log; it has no rows."

_PATH = "/v1/restore-points"
POINTS = (
    Route(
        method="POST",
        path=_PATH,
        name="create_restore_point",
        summary="Name a position after all that any site knew to be ordered",
        description="Each site's worker ends a batch there, so that its tables can be read at the "
        "point.  An answer that is lost may leave a point, or one without a position: delete it.",
        role=Role.CLIENT,
        body=NewRestorePoint,
        answer=RestorePoint,
        at_member=True,
    ),
    Route(
        method="DELETE",
        path=f"{_PATH}/{{name}}",
        name="delete_restore_point",
        summary="Delete a restore point, also one without a position",
        role=Role.CLIENT,
        at_member=True,
    ),
)


class RestorePointRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._table = PropertyTable(node, RESTORE_POINTS, _COMMENT)

    async def create_restore_point(self, body: NewRestorePoint) -> RestorePoint:
        name = body.name
        point_key(name)
        check_writes(lambda: (RESTORE_POINTS,), (f"restore point {name}",))
        point = RestorePoint(name=name, made_at=wall_us(), note=body.note)

        def check_free(points: list[RestorePoint]) -> None:
            if any(one.name == name for one in points):
                raise NameTakenError(
                    f"there is a restore point {name!r} already",
                    hint="Choose another name, or delete it: "
                    f"sparktxlog restore-point delete {name}",
                    point=name,
                )

        await self._table.make()
        position = (await self._put(point, point.to_value(), check_free)).position
        assert position is not None, "it is ordered"
        (run,) = self._node.queue(position - 1, 1)
        point = replace(point, position=position, chain_hash=run["chain_hash"])
        await self._put(point, point.to_value())
        return point

    async def delete_restore_point(self, name: str) -> None:
        point_key(name)
        check_writes(lambda: (RESTORE_POINTS,), (f"no restore point {name}",))

        def check_there(points: list[RestorePoint]) -> None:
            if all(one.name != name for one in points):
                known = ", ".join(one.name for one in points)[:1000]
                raise NotFoundError(
                    f"there is no restore point {name[:120]!r}",
                    hint=f"Points: {known or 'none'}.",
                    point=name[:120],
                )

        await self._put(RestorePoint(name=name, made_at=0), None, check_there)

    async def _put(
        self,
        point: RestorePoint,
        value: str | None,
        check: Callable[[list[RestorePoint]], None] = lambda points: None,
    ) -> Receipt:
        """Change the property of a point, if a check of those that are there raises nothing."""

        def change(properties: Mapping[str, str]) -> dict[str, str | None]:
            check(points_in(dict(properties)))
            return {point_key(point.name): value}

        receipt = await self._table.change(change)
        assert receipt is not None, "a property changes"
        return receipt
