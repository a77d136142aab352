"""Where a feed leads: from an image, or the beginning of the log, to the end of a run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from sparktxlog.codec.run_chain import RunEnd
from sparktxlog.errors import CorruptLogError, InvalidRequestError, NotFoundError
from sparktxlog.files.ahead import read_ahead
from sparktxlog.model.shown import time_text
from sparktxlog.worker.backup.image import Image
from sparktxlog.worker.feed.feed_page import LOG_BEGINNING, FeedPage, ReportedSignatures
from sparktxlog.worker.feed.feed_store import FeedStore, Seen

#: Pages in which signatures are looked for, before and after a target's.
_PAGES_BEFORE, _PAGES_AFTER = 60, 15
#: So much clocks may differ, microseconds: runs have that of the node that was asked.
CLOCKS_US = 600_000_000
#: Pages that are read at the same time.
_AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRoute:
    """How a position is reached."""

    #: None = from the beginning of the log.
    image: Image | None
    target: RunEnd

    @property
    def begins_after(self) -> int:
        """The position at which the feed is taken up."""
        return 0 if self.image is None else self.image.position


def target_of(feed: FeedStore, at: str | None) -> RunEnd:
    """Return the run end that a position, or a time, means.

    Args:
        at: A position; or a time such as `2026-05-01T12:00:00Z`, UTC unless it says otherwise, for
            the end of what was ordered until then; None = the end of the feed.

    Raises:
        InvalidRequestError: It is neither, or no run ends there (definite).
        NotFoundError: The feed is empty, or does not have it (definite).
        CorruptLogError: A page is damaged.
    """
    firsts = feed.firsts()
    if not firsts:
        return _of_images(feed, at)
    if at is None:
        return feed.page(firsts[-1]).end
    if not at.isascii() or not at.isdigit():
        return _at_time(feed, firsts, at)
    return _at_position(feed, firsts, int(at))


def _of_images(feed: FeedStore, at: str | None) -> RunEnd:
    """Return where an image stands: there is no page yet."""
    found = [_end_of(image) for image in feed.bases()]
    if at is not None:
        found = [end for end in found if str(end.position) == at]
    if not found:
        wanted = "" if at is None else f" {at}"
        raise NotFoundError(
            f"the feed in {feed.url} has no position{wanted}: it has no page yet",
            hint="`sparktxlog feed list` shows what is there.",
            path=feed.url,
        )
    return max(found, key=lambda end: end.position)


def _end_of(image: Image) -> RunEnd:
    return RunEnd(position=image.position, chain_hash=image.chain_hash, epoch=image.epoch)


def _at_position(feed: FeedStore, firsts: list[int], position: int) -> RunEnd:
    for image in feed.bases():
        if image.position == position:
            return _end_of(image)
    index = bisect_right(firsts, position) - 1
    if index < 0:
        raise NotFoundError(
            f"the feed in {feed.url} begins after position {firsts[0] - 1:,}, and has no image at "
            f"{position:,}",
            hint="Name a later position, or the directory of another feed.",
            position=position,
            begins_after=firsts[0] - 1,
        )
    page = feed.page(firsts[index])
    if position > page.last:
        end = page.last
        is_last = index == len(firsts) - 1
        what = "ends at" if is_last else f"has a hole up to {firsts[index + 1] - 1:,} after"
        raise NotFoundError(
            f"the feed in {feed.url} {what} position {end:,}, and does not have {position:,}",
            hint=f"The nearest position before it: --at {end}.",
            position=position,
            end=end,
        )
    if (found := page.end_at(position)) is not None:
        return found
    ends = [page.first - 1, *(end.position for end in page.ends)]
    after = bisect_left(ends, position)
    before, following = ends[after - 1], ends[after]
    raise InvalidRequestError(
        f"position {position} stands inside the run {before + 1} to {following}, whose "
        "transactions have one place in the log for all sites",
        hint=f"Stop before it, at {before}, or after it, at {following}.",
        position=position,
    )


def _at_time(feed: FeedStore, firsts: list[int], at: str) -> RunEnd:
    """Return the end of the last run before the first one that was ordered after a time."""
    try:
        given = datetime.fromisoformat(at)
    except ValueError as error:
        raise InvalidRequestError(
            f"{at[:80]!r} is neither a position nor a time",
            hint="Examples: --at 1200, --at 2026-05-01T12:00:00Z.",
            field="at",
            value=at[:80],
        ) from error
    if given.tzinfo is None:
        given = given.replace(tzinfo=UTC)
    limit = int(given.timestamp() * 1e6)
    last = feed.page(firsts[-1])
    if limit > (until := whole_until(last, feed.seen())):
        raise NotFoundError(
            f"the feed in {feed.url} has what was ordered until {time_text(until)} UTC, and nobody "
            f"knows what came until {at}",
            hint="Name an earlier time; or leave --at out for the end of the feed.",
            field="at",
            value=at,
        )
    # The first page with a run that was ordered later; the one before ends before it.
    index = first_after(feed, firsts, limit)
    if index == len(firsts):
        return last.end
    page = feed.page(firsts[index])
    if (found := _last_until(page, limit)) is not None:
        return found
    if not page.begins_at and index:
        return feed.page(firsts[index - 1]).end
    if page.begins_at not in ("", LOG_BEGINNING):
        image = feed.images.image(page.begins_at)
        if image.created_at <= limit:
            return _end_of(image)
    raise NotFoundError(
        f"the feed in {feed.url} does not have the end of what was ordered until {at}: what it "
        f"has from position {page.first:,} on was ordered later",
        hint="Name a later time.",
        field="at",
        value=at,
    )


def first_after(feed: FeedStore, firsts: Sequence[int], limit_us: int) -> int:
    """Return the index of the first page with a run that was ordered after a time.

    Clocks are set back, and a feed goes on at another node, whose clock may be behind: so pages
    before that one are looked at, too, as far back as clocks may differ.

    Args:
        firsts: First positions of all pages, ascending.
        limit_us: Microseconds since 1970 UTC.
    """
    index = bisect_right(firsts, limit_us, key=lambda first: feed.page(first).end.ordered_at)
    found, before = index, range(index - 1, -1, -1)
    pages = read_ahead(lambda at: feed.page(firsts[at]), before, at_once=_AHEAD, name="pages")
    for at, page in zip(before, pages, strict=False):
        if any(end.ordered_at > limit_us for end in page.ends):
            found = at
        if page.end.ordered_at <= limit_us - CLOCKS_US:
            break
    return found


def whole_until(last: FeedPage, seen: Seen | None) -> int:
    """Return until when all that was ordered is in the feed, microseconds since 1970 UTC.

    Args:
        last: Its last page.
    """
    if seen is None or not seen.is_end or seen.position != last.last:
        return last.end.ordered_at
    return max(last.end.ordered_at, seen.at)


def _last_until(page: FeedPage, limit: int) -> RunEnd | None:
    found: RunEnd | None = None
    for end in page.ends:
        if end.ordered_at > limit:
            break
        found = end
    return found


def proof_of(feed: FeedStore, target: RunEnd) -> tuple[RunEnd, ReportedSignatures] | None:
    """Return the last position up to a target of which a page near it has a site's signatures.

    A site reports a batch after it was published, so pages after the target are looked at, too.

    Raises:
        CorruptLogError: A page up to the target is missing or damaged.
    """
    firsts = feed.firsts()
    here = bisect_right(firsts, target.position)
    pages = [feed.page(first) for first in firsts[max(here - _PAGES_BEFORE, 0) : here]]
    found = [one for page in pages for one in page.signatures]
    with suppress(CorruptLogError):  # what is damaged after the target is not needed
        for first in firsts[here : here + _PAGES_AFTER]:
            found += feed.page(first).signatures
    for one in sorted(found, key=lambda one: one.position, reverse=True):
        ends = (page.end_at(one.position) for page in pages if page.first <= one.position)
        end = next((end for end in ends if end is not None), None)
        if one.position > target.position or end is None:
            continue
        if end.chain_hash == one.chain_hash:
            return end, one
    return None


def check_leads(feed: FeedStore, after: int, target: RunEnd) -> None:
    """Read all pages after a position up to a target, and none of their files.

    Raises:
        CorruptLogError: One is missing, damaged, or does not follow the one before it.
        NotFoundError: They end before the target (definite).
    """
    reached = after
    for page in feed.pages(after):
        reached = page.last
        if reached >= target.position:
            return
    if reached < target.position:
        raise NotFoundError(
            f"the feed in {feed.url} has a hole after position {reached:,}: what it has after that "
            f"does not lead on to {target.position:,}",
            hint=f"Stop before it, --at {reached}, or begin at a later image: `sparktxlog feed "
            "verify` shows the parts of the feed.",
            position=target.position,
            end=reached,
        )


def route_to(feed: FeedStore, target: RunEnd, name: str | None = None) -> FeedRoute:
    """Return from where a position is reached: from the newest image at or before it.

    Args:
        name: Of the image, None = the newest one that fits.

    Raises:
        NotFoundError: Nothing leads there (definite).
        InvalidRequestError: The named image is after it, of another log, or lacks tables
            (definite).
        CorruptLogError: A manifest is damaged.
    """
    log_id = feed.identity().log_id
    if name is not None:
        image = feed.images.image(name)
        if image.only:
            raise InvalidRequestError(
                f"image {name!r} is of a replica that holds {', '.join(image.only)} only: rows of "
                "other tables from before it would be missing",
                hint="Name another image, or none.",
                field="image",
                value=name,
            )
        if image.log_id != log_id or image.position > target.position:
            raise InvalidRequestError(
                f"image {name!r} stands at position {image.position:,} of the log "
                f"{image.log_id!r}, and does not lead to {target.position:,} of {log_id!r}",
                hint="Name another image, or none.",
                position=image.position,
            )
        return FeedRoute(image=image, target=target)
    found = [image for image in feed.bases() if image.position <= target.position]
    if found:
        image = max(found, key=lambda one: (one.position, one.created_at))
        return FeedRoute(image=image, target=target)
    firsts = feed.firsts()
    if not firsts or firsts[0] != 1:
        raise NotFoundError(
            f"no image in {feed.images.url} is at or before position {target.position:,}, and the "
            "feed does not begin with the log",
            hint="Name a later position; `sparktxlog backup list` shows the images.",
            position=target.position,
        )
    return FeedRoute(image=None, target=target)
