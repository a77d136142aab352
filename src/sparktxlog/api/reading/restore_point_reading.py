"""Reads this site's tables at a restore point, as long as their files are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparktxlog.api.reading.replica_snapshot import Snapshot
from sparktxlog.api.reading.restore_points import named_point
from sparktxlog.delta.live_files import live_files
from sparktxlog.errors import CorruptLogError, DivergedError, ExpiredError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def snapshot_at(get: Callable[..., Any], snapshot: Callable[[int], Snapshot], at: str) -> Snapshot:
    """Return all tables of the site at a restore point.

    Args:
        get: Returns the JSON answer of `GET path` of a node.
        snapshot: Returns the tables at a position.

    Raises:
        NotFoundError: There is no such point (definite).
        NotAppliedError: No worker has applied it here yet (definite).
        ExpiredError: This site has no versions for it (definite).
        DivergedError: The site has another history there (definite).
    """
    point = named_point(get, at)
    try:
        found = snapshot(point.position)
    except NotFoundError as error:
        if "replica" in error.fields:  # it is the replica that is not there
            raise
        raise ExpiredError(
            f"this site has no versions of its tables for restore point {at!r}, position "
            f"{point.position:,}: they were copied from another site since",
            hint=f"Read it at another site, or restore it: {_restore(at)}",
            point=at,
            position=point.position,
        ) from error
    if found.chain_hash != point.chain_hash:
        raise DivergedError(
            f"position {point.position:,} of this site is not that of restore point {at!r}: it has "
            "another history",
            hint="`sparktxlog verify --compare` says where the sites began to differ.",
            point=at,
            position=point.position,
        )
    return found


def table_at(found: Snapshot, name: str, at: str) -> DataFrame:
    """Return a table of a restore point's snapshot.

    Raises:
        ExpiredError: Files of its version are gone (definite).
        TxLogError: As `Snapshot.table`.
    """
    place = found.place_of(name)
    # A bucket is reached by Spark alone, which names a file that is missing there.
    if place is not None and place[0].startswith("/"):
        directory, version = Path(place[0]), place[1]
        try:
            needed = live_files(directory, version).needed
            gone = [path for path in needed if not (directory / path).exists()]
        except CorruptLogError as error:
            gone = [error.message]
        if gone:
            raise ExpiredError(
                f"table {name!r} cannot be read at restore point {at!r}: VACUUM removed files "
                f"of its version {version}, such as {gone[0]}",
                hint=f"Restore it from a backup: {_restore(at)}",
                table=name,
                point=at,
            )
    return found.table(name)


def _restore(at: str) -> str:
    return f"sparktxlog restore DIR --lake NEW --at {at}, then sparktxlog apply --at {at}."
