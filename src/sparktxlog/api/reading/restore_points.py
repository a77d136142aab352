"""Makes, finds and deletes restore points: named positions that all sites agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from sparktxlog.errors import UnknownTableError
from sparktxlog.http.link import Http
from sparktxlog.model.restore_point import RESTORE_POINTS, RestorePoint, find_point, points_in

_PATH = "/v1/restore-points"
#: Seconds that a node may take: for each transaction of a point as long as for a commit.
_TIMEOUT_S = 100.0


def create_point(node: Http, name: str, note: str = "") -> RestorePoint:
    """Name a position after all that any site knew to be ordered before this call.

    Raises:
        NameTakenError: There is a point of that name (definite).
        InvalidNameError: No point can have it (definite).
        InvalidRequestError: The log has 200 points already (definite).
        TxLogError: As a commit.  If it is not definite, `sparktxlog restore-point list` shows what
            there is; a point without a position is to be deleted.
    """
    body = msgspec.json.encode({"name": name, "note": note})
    answer = node.request("POST", _PATH, body=body, timeout_s=_TIMEOUT_S)
    return msgspec.json.decode(answer, type=RestorePoint)


def delete_point(node: Http, name: str) -> None:
    """Delete a point, also an unfinished one; what only this point held back may then be removed.

    Raises:
        NotFoundError: There is none (definite).
        InvalidNameError: No point can have that name (definite).
        TxLogError: As a commit.
    """
    node.request("DELETE", f"{_PATH}/{quote(name, safe='')}", timeout_s=_TIMEOUT_S)


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
