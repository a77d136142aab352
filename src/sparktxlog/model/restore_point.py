"""Restore points: names of agreed positions, kept as properties of one small row table.

A change of that table is a transaction like any other, so all sites know the same points, a node
that joins later too.  A point's own transaction is alone in its run: its position is the end of a
run, and every worker ends a batch there, so each site has versions of its tables for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import msgspec

from sparktxlog.errors import InvalidNameError, InvalidRequestError, NotFoundError
from sparktxlog.model.ids import LARGEST

#: The table.
RESTORE_POINTS = "sparktxlog_restore_points"
_PREFIX = "point."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """A named position of the log."""

    name: str
    #: Wall clock of its maker, microseconds since 1970 UTC.
    made_at: int
    #: 0 = its maker ended before it was known: delete it, and make another one.
    position: int = 0
    #: Chain hash there, hexadecimal.
    chain_hash: str = ""
    note: str = ""

    def to_value(self) -> str:
        """Return it as the value of its property."""
        return json.dumps({k: v for k, v in asdict(self).items() if k != "name" and v})


def point_key(name: str) -> str:
    """Return the property of a point.

    Raises:
        InvalidNameError: No point can have that name (definite).
    """
    if not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"{name[:120]!r} cannot name a restore point",
            hint="It may have letters, digits, '.', '_' and '-', 100 at most, and begins with a "
            "letter or digit.",
            value=name[:120],
        )
    return _PREFIX + name


def points_in(properties: Mapping[str, str]) -> list[RestorePoint]:
    """Return the points among the properties of the table, by position; unfinished ones first.

    What says no point is left out: `check_points` refuses it.
    """
    found = (_point_of(key, value) for key, value in properties.items() if key.startswith(_PREFIX))
    points = [point for point in found if point is not None]
    return sorted(points, key=lambda point: (point.position, point.name))


def check_points(properties: Mapping[str, str | None]) -> None:
    """Refuse properties of the table that are named as points and say none; None = removed.

    Raises:
        InvalidNameError, InvalidRequestError: One is (definite).
    """
    for key, value in properties.items():
        if not key.startswith(_PREFIX) or value is None:
            continue
        point_key(name := key.removeprefix(_PREFIX))
        if _point_of(key, value) is None:
            raise InvalidRequestError(
                f"property {key[:120]!r} with {value[:80]!r} says no restore point {name[:100]!r}",
                hint="`sparktxlog restore-point create` makes one.",
                field="properties",
                value=value[:80],
            )


def _point_of(key: str, value: str) -> RestorePoint | None:
    try:
        said = json.loads(value)
        point = msgspec.convert(said | {"name": key.removeprefix(_PREFIX)}, RestorePoint)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None
    return point if 0 <= point.position <= LARGEST and 0 <= point.made_at <= LARGEST else None


def find_point(name: str, properties: Mapping[str, str]) -> RestorePoint:
    """Return the finished point of a name.

    Raises:
        NotFoundError: There is none, or it has no position (definite).
    """
    points = points_in(properties)
    for point in points:
        if point.name == name and point.position:
            return point
    known = ", ".join(point.name for point in points if point.position)
    raise NotFoundError(
        f"there is no restore point {name[:120]!r}",
        hint=f"Points: {known[:1000]}."
        if known
        else "`sparktxlog restore-point create` makes one.",
        point=name[:120],
    )


def keep_hours(points: Iterable[RestorePoint], now_us: int) -> int:
    """Return for how many hours tables must keep what was removed from them, 0 = no point asks."""
    oldest = min((point.made_at for point in points), default=now_us)
    # A worker may have come to the point an hour later, and clocks differ.
    return 0 if oldest == now_us else max(0, now_us - oldest) // 3_600_000_000 + 2
