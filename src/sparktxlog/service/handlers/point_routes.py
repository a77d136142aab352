"""`/v1/restore-points`: makes and deletes named positions of the log that all sites agree on.

Points are properties of one small row table (`model.restore_point`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from sparktxlog.codec.containers.assembly import NewIds
from sparktxlog.codec.submits.condition_requests import committed
from sparktxlog.codec.submits.requests import (
    ColumnRequest,
    OperationRequest,
    TransactionRequest,
    prepare,
)
from sparktxlog.errors import (
    CommitRejectedError,
    NameTakenError,
    NotFoundError,
    StaleSchemaError,
)
from sparktxlog.model.restore_point import RESTORE_POINTS, RestorePoint, point_key, points_in
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.node import Node
from sparktxlog.service.granted import check_writes
from sparktxlog.service.routing.declared_route import Role, Route
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.request_bodies import NewRestorePoint

_COMMENT = "Its properties are the restore points of the log; it has no rows."
#: Attempts while others change points at the same time.
_ATTEMPTS = 20
#: Seconds that each transaction of a point may take.
_TIMEOUT_S = 30.0

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
        self._ids = NewIds()
        self._limits = node.base.run_limits

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

        await self._make_table()
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

    async def _make_table(self) -> None:
        if self._points_table() is None:
            column = ColumnRequest(name="name", type="string")
            made = OperationRequest(
                kind=OperationKind.CREATE_TABLE,
                table=RESTORE_POINTS,
                columns=[column],
                comment=_COMMENT,
            )
            try:
                await self._commit(made)
            except CommitRejectedError:
                if self._points_table() is None:  # else somebody else made it, and has a point
                    raise

    async def _put(
        self,
        point: RestorePoint,
        value: str | None,
        check: Callable[[list[RestorePoint]], None] = lambda points: None,
    ) -> Receipt:
        """Change the property of a point, alone in its run, if nobody changed one meanwhile."""
        for attempt in range(_ATTEMPTS):
            table = self._points_table()
            check([] if table is None else points_in(dict(table.properties)))
            change = OperationRequest(
                kind=OperationKind.ALTER_TABLE,
                table=RESTORE_POINTS,
                properties={point_key(point.name): value},
                schema_version=None if table is None else table.schema_version,
            )
            try:
                return await self._commit(change)
            except StaleSchemaError:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _points_table(self) -> TableDefinition | None:
        return Tables.of(self._node.tables()).alike(RESTORE_POINTS)

    async def _commit(self, operation: OperationRequest) -> Receipt:
        # Of a session of its own it is alone in its run.
        request = TransactionRequest(operations=[operation], session=str(uuid.uuid4()))
        prepared = prepare(request, self._ids.next(), self._node.tables(), self._limits)
        receipt = await self._node.submit(prepared, level=Level.ORDERED, timeout=_TIMEOUT_S)
        return committed(receipt)
