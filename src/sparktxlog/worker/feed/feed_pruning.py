"""Removes the beginning of a feed that nobody wants any more: pages, then what only they named.

What stays begins with an image that is whole and from which the feed leads on, so each position
after it can be restored as before.  Where there is no such image, nothing is removed.

    pruned.json → pages, the oldest first → contents that no page names

So a removal that is killed leaves a shorter feed, or contents that nobody names, and the next one
removes those.  Nobody else writes meanwhile: a page under way has contents and no name yet.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time_ns

from sparktxlog.errors import CorruptLogError, InvalidRequestError, LockedError, TxLogError
from sparktxlog.worker.backup.image import Image
from sparktxlog.worker.backup.restoring import damaged_files
from sparktxlog.worker.feed.feed_page import FeedPage
from sparktxlog.worker.feed.feed_points import first_after
from sparktxlog.worker.feed.feed_store import (
    CONTENT_NAME,
    FeedStore,
    FeedWriter,
    Pruned,
    content_name,
)

_logger = logging.getLogger(__name__)

_DAY_US = 86_400_000_000
#: A process that feeds looks so often what may go, seconds.
_EACH_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What of a feed is to stay; with both, what either one wants.

    Raises:
        InvalidRequestError: Neither is given, or one is no positive number (definite).
    """

    #: Each time of the last so many days can be restored.
    days: float | None = None
    #: Pages, and what they name, take at most so many bytes, images not counted.
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        given = {"keep-days": self.days, "keep-bytes": self.size_bytes}
        if not any(value is not None for value in given.values()):
            raise InvalidRequestError(
                "it is not said what of the feed shall stay",
                hint="Name --keep-days, --keep-bytes or both.",
            )
        for name, value in given.items():
            if value is not None and not 0 < value < math.inf:
                raise InvalidRequestError(
                    f"{name} {value:g} is no number above 0",
                    hint="Leave the option out to keep everything.",
                    field=name,
                    value=value,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPruned:
    """What was, or would be, removed of a feed."""

    #: With which image it begins afterwards, and where that stands; empty = nothing is removed.
    image: str = ""
    position: int = 0
    #: Why nothing, or less than was asked for, is removed; empty = all of it.
    reason: str = ""
    pages: int = 0
    files: int = 0
    #: Of the files.
    size_bytes: int = 0


def prune(
    feed: FeedStore,
    writer: FeedWriter | None,
    retention: Retention,
    now_us: int,
) -> FeedPruned:
    """Remove what of a feed need not stay, durably; it can be done again after a kill.

    Args:
        writer: Of this feed; None = only say what would be removed.
        now_us: Wall clock, microseconds since 1970 UTC.

    Raises:
        NotFoundError: There is no feed (definite).
        CorruptLogError: A page that has to stay is damaged (definite: nothing was removed).
        LockedError, StorageError: As `FeedWriter`.
    """
    firsts = feed.firsts()
    if not firsts:
        return FeedPruned(reason="the feed has no page yet")
    found = _base(feed, firsts, retention, now_us)
    if isinstance(found, str):
        return FeedPruned(reason=found)
    base, reason = found
    # The last page stays in any case: the feed goes on after it.
    begin = max(bisect_right(firsts, base.position + 1) - 1, 0)
    gone, kept = firsts[:begin], firsts[begin:]
    named = {content_name(file) for first in kept for file, _ in feed.page(first).files}
    there = filter(CONTENT_NAME.fullmatch, feed.store.names(feed.contents_prefix))
    orphans = [name for name in there if name not in named]  # all else is somebody else's
    if writer is not None and (gone or orphans):
        if gone:
            writer.note_pruned(Pruned(first=kept[0], image=base.name, position=base.position))
            writer.remove_pages(gone)
        writer.contents.remove(orphans)
    return FeedPruned(
        image=base.name,
        position=base.position,
        reason=reason,
        pages=len(gone),
        files=len(orphans),
        size_bytes=sum(int(name.rpartition("-")[2]) for name in orphans),
    )


def _base(
    feed: FeedStore, firsts: Sequence[int], retention: Retention, now_us: int
) -> tuple[Image, str] | str:
    """Return the image with which the feed shall begin, and why less goes; or why nothing goes."""
    images = sorted(
        (one for one in feed.bases() if one.position >= firsts[0] - 1),
        key=lambda one: (one.position, one.created_at),
    )
    limits, reason = list[int](), ""
    if retention.days is not None:
        limits.append(_position_at(feed, firsts, now_us - int(retention.days * _DAY_US)))
    if retention.size_bytes is not None:
        limits.append(_position_for(feed, firsts, images, retention.size_bytes))
    limit = min(limits)
    damaged = ""
    for image in reversed([one for one in images if one.position <= limit]):
        if not _leads_on(feed, firsts, image):
            continue
        if wrong := damaged_files(feed.images, image):
            damaged = f"image {image.name} is damaged: {wrong[0]['stored']}"
            continue
        reason = damaged
        if image.position < limit and not damaged:
            reason = f"no image between positions {image.position:,} and {limit:,}"
        return image, reason
    if damaged:
        return damaged
    return (
        f"no image of all tables from which the feed leads on is at or before position {limit:,}: "
        "back one up into the feed's images"
    )


def _position_at(feed: FeedStore, firsts: Sequence[int], limit_us: int) -> int:
    """Return the end of the last page that was ordered until a time; before the first one, if none.

    Ends of pages only: a page holds a second or so of the log.
    """
    index = first_after(feed, firsts, limit_us)
    return firsts[0] - 1 if index == 0 else feed.page(firsts[index - 1]).last


def _position_for(
    feed: FeedStore, firsts: Sequence[int], images: Sequence[Image], most: int
) -> int:
    """Return where the feed may begin so that it takes so many bytes; else the newest image's."""
    newest = images[-1].position if images else firsts[0] - 1
    known, size_bytes, begin = set[str](), 0, newest
    for first in reversed(firsts):
        page = feed.page(first)
        for file, _ in page.files:
            if (name := content_name(file)) not in known:
                known.add(name)
                size_bytes += file.size_bytes
        found = feed.store.find(feed.page_key(first))
        size_bytes += 0 if found is None else found.size_bytes
        if size_bytes > most:
            break
        begin = min(begin, page.first - 1)
    # The oldest image that fits: more than is asked for need not go.
    return next((one.position for one in images if one.position >= begin), newest)


def _leads_on(feed: FeedStore, firsts: Sequence[int], image: Image) -> bool:
    """Return whether the feed has what follows an image, in the same history, or ends with it."""
    index = max(bisect_right(firsts, image.position + 1) - 1, 0)
    page: FeedPage = feed.page(firsts[index])
    if page.first == image.position + 1:
        return page.from_hash == image.chain_hash
    end = page.end_at(image.position)
    if end is None or end.chain_hash != image.chain_hash:
        return False
    if page.last > image.position:
        return True
    # It ends a page, after which another part begins, or nothing.
    return index == len(firsts) - 1


class FeedUpkeep:
    """Removes the beginning of a feed now and then, while a process feeds it."""

    def __init__(self, feed: FeedStore, retention: Retention) -> None:
        self._feed, self._retention = feed, retention
        self._next_at = 0.0

    def __call__(self, writer: FeedWriter) -> None:
        """Remove what need not stay, if that is due; a failure is logged, and feeding goes on."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + _EACH_S
        try:
            done = prune(self._feed, writer, self._retention, time_ns() // 1000)
        except LockedError:
            raise  # somebody else writes here
        except TxLogError as error:
            _logger.warning("the beginning of the feed stays: %s", error)
            return
        if done.pages or done.files:
            _logger.info(
                "the feed begins with image %s, position %s: %s pages and %s bytes were removed",
                done.image,
                f"{done.position:,}",
                f"{done.pages:,}",
                f"{done.size_bytes:,}",
            )
        elif done.reason:
            _logger.warning("the beginning of the feed stays: %s", done.reason)


def check_beginning(feed: FeedStore, page: FeedPage) -> str:
    """Return why the first page of a feed that was pruned cannot be, empty = nothing.

    Raises:
        CorruptLogError: That it was pruned cannot be read.
    """
    pruned = feed.pruned()
    if pruned is None or page.first > pruned.first:
        return "it begins a part, and says not where: what was before it is missing"
    try:
        image = next(one for one in feed.bases() if one.name == pruned.image)
    except (StopIteration, CorruptLogError):
        return f"it was pruned to begin with image {pruned.image}, which is missing"
    if not _leads_on(feed, feed.firsts(), image):
        return f"it does not lead on from image {pruned.image}"
    return ""
