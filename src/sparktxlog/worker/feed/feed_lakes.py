"""Lakes into which a feed may be restored: empty ones, and those that an earlier restore made.

A restored lake is that of no site, until a worker takes it.  Needs no Spark.
"""

from __future__ import annotations

from pathlib import Path

from sparktxlog.errors import ForeignLogError, InvalidRequestError
from sparktxlog.worker.backup.restoring import check_room
from sparktxlog.worker.feed.feed_points import FeedRoute
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.lakes.lake_places import bucket_at, is_in_bucket
from sparktxlog.worker.replica.bucket_replica import MARKER
from sparktxlog.worker.replica.state import (
    RESTORING,
    STATE_DIRECTORY,
    ReplicaState,
    read_state,
)


def check_target(
    feed: FeedStore, route: FeedRoute, lake: str | Path, *, force_clean: bool
) -> int | None:
    """Return the position from which a lake would go on that was restored before, None = none was.

    Args:
        force_clean: What an interrupted restore of an image left would be removed.

    Raises:
        InvalidRequestError: It is not empty, and cannot go on (definite).
        TxLogError: As `restored_before`.
    """
    if (found := restored_before(feed, route, lake)) is not None:
        return found.position
    check_room(lake, force_clean=force_clean)
    return None


def restored_before(feed: FeedStore, route: FeedRoute, lake: str | Path) -> ReplicaState | None:
    """Return the state of a lake from which a replay goes on, None = there is none.

    Raises:
        InvalidRequestError: The lake is that of a site, lacks tables, or stands after the position
            (definite).
        ForeignLogError: It is of another log (definite).
        CorruptLogError: Its state cannot be read.
    """
    found = read_state(lake)
    if found is None or _is_broken_off(lake):
        return None
    if found.node_id:
        raise InvalidRequestError(
            f"the lake {lake} is that of site {found.node_id!r}",
            hint="Restore into a new lake; nothing of a site is ever overwritten.",
            path=str(lake),
        )
    log_id = feed.identity().log_id
    if found.log_id not in ("", log_id):
        raise ForeignLogError(
            f"the lake {lake} is of the log {found.log_id!r}, the feed of {log_id!r}",
            hint="Restore into a new lake.",
            path=str(lake),
        )
    if found.only:
        raise InvalidRequestError(
            f"the lake {lake} holds {', '.join(found.only)} only: rows of other tables from before "
            f"position {found.position:,} would be missing",
            hint="Restore into a new lake.",
            path=str(lake),
        )
    applied = found.pending.last if found.pending is not None else found.position
    if applied > route.target.position:
        begun = "has begun a batch up to" if found.pending is not None else "stands at"
        raise InvalidRequestError(
            f"the lake {lake} {begun} position {applied:,}, which is after "
            f"{route.target.position:,}",
            hint="Restore into a new lake.",
            position=route.target.position,
            applied=applied,
        )
    return found


def _is_broken_off(lake: str | Path) -> bool:
    """Return whether an image was not written to its end here."""
    if is_in_bucket(lake):
        return bucket_at(str(lake)).find(MARKER) is not None
    return (Path(lake) / STATE_DIRECTORY / RESTORING).exists()
