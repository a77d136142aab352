"""Makes, finds and deletes restore points: named positions that all sites agree on."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparktxlog.errors import (
    CommitRejectedError,
    NameTakenError,
    NotFoundError,
    StaleSchemaError,
    UnknownTableError,
)
from sparktxlog.model.restore_point import (
    RESTORE_POINTS,
    RestorePoint,
    find_point,
    point_key,
    points_in,
)
from sparktxlog.model.transactions.receipt import Receipt

if TYPE_CHECKING:
    from sparktxlog.api.client import Client

_COMMENT = "Its properties are the restore points of the log; it has no rows."
#: Attempts while others change points at the same time.
_ATTEMPTS = 20


def create_point(client: Client, name: str, note: str = "") -> RestorePoint:
    """Name a position after all that any site knew to be ordered before this call.

    Raises:
        NameTakenError: There is a point of that name (definite).
        InvalidNameError: No point can have it (definite).
        InvalidRequestError: The log has 200 points already (definite).
        TxLogError: As a commit.  If it is not definite, `sparktxlog restore-point list` shows what
            there is; a point without a position is to be deleted.
    """
    point = RestorePoint(name=name, made_at=time.time_ns() // 1000, note=note)
    point_key(name)
    _make_table(client)

    def check_free(points: list[RestorePoint]) -> None:
        if any(one.name == name for one in points):
            raise NameTakenError(
                f"there is a restore point {name!r} already",
                hint=f"Choose another name, or delete it: sparktxlog restore-point delete {name}",
                point=name,
            )

    position = _put(client, point, point.to_value(), check_free).position
    assert position is not None, "it is ordered"
    (run,) = client.queue(after=position - 1, limit=1)
    point = replace(point, position=position, chain_hash=str(run["chain_hash"]))
    _put(client, point, point.to_value())
    return point


def delete_point(client: Client, name: str) -> None:
    """Delete a point, also an unfinished one; what only this point held back may then be removed.

    Raises:
        NotFoundError: There is none (definite).
        TxLogError: As a commit.
    """
    point = RestorePoint(name=name, made_at=0)

    def check_there(points: list[RestorePoint]) -> None:
        if all(one.name != name for one in points):
            raise NotFoundError(
                f"there is no restore point {name[:120]!r}",
                hint=f"Points: {', '.join(one.name for one in points)[:1000] or 'none'}.",
                point=name[:120],
            )

    _put(client, point, None, check_there)


def known_points(get: Callable[..., Any]) -> list[RestorePoint]:
    """Return all points, by position.

    Args:
        get: Returns the JSON answer of `GET path` of a node.
    """
    return points_in(_properties(get))


def named_point(get: Callable[..., Any], name: str) -> RestorePoint:
    """Return a point by its name.

    Args:
        get: As in `known_points`.

    Raises:
        NotFoundError: There is none (definite).
    """
    return find_point(name, _properties(get))


def _properties(get: Callable[..., Any]) -> dict[str, str]:
    try:
        return dict(get(f"/v1/tables/{RESTORE_POINTS}")["properties"])
    except UnknownTableError:
        return {}


def _make_table(client: Client) -> None:
    try:
        client.table(RESTORE_POINTS)
    except UnknownTableError:
        try:
            client.create_table(RESTORE_POINTS, {"name": "string"}, comment=_COMMENT)
        except CommitRejectedError:
            client.table(RESTORE_POINTS)  # somebody else did, and has a point already


def _put(
    client: Client,
    point: RestorePoint,
    value: str | None,
    check: Callable[[list[RestorePoint]], None] = lambda points: None,
) -> Receipt:
    """Change the property of a point, alone in its run, if nobody changed another one meanwhile."""
    for attempt in range(_ATTEMPTS):
        table = client.table(RESTORE_POINTS)
        check(points_in(dict(table.properties)))
        transaction = client.transaction(session=str(uuid.uuid4()))
        transaction.alter_table(RESTORE_POINTS, properties={point_key(point.name): value})
        transaction.expect_schema(RESTORE_POINTS, table.schema_version)
        try:
            return transaction.commit()
        except StaleSchemaError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")
