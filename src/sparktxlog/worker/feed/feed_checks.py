"""Compares all of a feed with its digests, and says how late it is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sparktxlog.errors import CorruptLogError
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.feed.feed_page import FeedPage
from sparktxlog.worker.feed.feed_points import whole_until
from sparktxlog.worker.feed.feed_pruning import check_beginning
from sparktxlog.worker.feed.feed_store import FeedStore, content_name
from sparktxlog.worker.feed.shipped_files import AT_ONCE, check_file


@dataclass(slots=True, kw_only=True)
class FeedPart:
    """Positions without a hole."""

    #: The image before it; `LOG_BEGINNING` = it begins with the log.
    begins_at: str
    first: int
    last: int
    pages: int = 0


@dataclass(slots=True, kw_only=True)
class FeedChecked:
    """What was found in a feed."""

    parts: list[FeedPart] = field(default_factory=list)
    #: Of the files that pages name, each content once.
    files: int = 0
    size_bytes: int = 0
    #: Each with `position`, `stored` (its place) and `problem`.
    damaged: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLag:
    """How far a feed is."""

    position: int
    #: Until when all that was ordered is in it; and how long ago that is, seconds.
    whole_until: int
    lag_s: float
    #: What the node had published when it was seen last, and when that was; 0 = never.
    published: int = 0
    seen_at: int = 0


def check_feed(feed: FeedStore) -> FeedChecked:
    """Read all pages and all files; each must be what it was when stored, and pages must follow.

    Raises:
        NotFoundError: There is no feed (definite).
        StorageError: It cannot be read: a bucket does not answer, or refuses it.
    """
    log_id = feed.identity().log_id
    found, known = FeedChecked(), set[str]()
    firsts = feed.firsts()
    before: FeedPage | None = None
    for first in firsts:
        try:
            page = feed.page(first)
        except CorruptLogError as error:
            found.damaged.append(_damage(error))
            before = None
            continue
        problem = _does_not_follow(feed, page, before, first == firsts[0])
        if problem:
            place = feed.store.url_of(feed.page_key(first))
            found.damaged.append({"position": first, "stored": place, "problem": problem})
        if before is None or page.begins_at or problem:
            found.parts.append(FeedPart(begins_at=page.begins_at, first=first, last=page.last))
        found.parts[-1].last = page.last
        found.parts[-1].pages += 1
        _check_files(feed, page, known, found)
        before = page
    seen, end = feed.seen(), 0 if before is None else before.last
    if seen is not None and before is not None and seen.position > end:
        found.damaged.append(
            {
                "position": end + 1,
                "stored": feed.store.url_of(feed.page_key(end + 1)),
                "problem": f"it is missing: the feed of {log_id} had reached {seen.position:,}",
            }
        )
    return found


def _does_not_follow(
    feed: FeedStore, page: FeedPage, before: FeedPage | None, is_first: bool
) -> str:
    if page.begins_at:
        return ""
    if is_first:
        return check_beginning(feed, page)
    if before is None:
        return ""  # the page before it is damaged, and named
    if page.first != before.last + 1:
        return f"positions {before.last + 1:,} to {page.first - 1:,} are missing before it"
    if page.from_hash != before.to_hash:
        return "its chain hash is not that of the page before it"
    return ""


def _check_files(feed: FeedStore, page: FeedPage, known: set[str], found: FeedChecked) -> None:
    """Compare the files of a page that no page before it names."""
    wanted = list(_new_files(page, known))

    def check(one: tuple[StagedFile, int]) -> CorruptLogError | None:
        try:
            check_file(feed, *one)
        except CorruptLogError as error:
            return error
        return None

    with ThreadPoolExecutor(AT_ONCE, "feed") as threads:
        for (file, _), error in zip(wanted, threads.map(check, wanted), strict=True):
            found.files += 1
            found.size_bytes += file.size_bytes
            if error is not None:
                found.damaged.append(_damage(error))


def _new_files(page: FeedPage, known: set[str]) -> Iterator[tuple[StagedFile, int]]:
    for file, position in page.files:
        if (name := content_name(file)) not in known:
            known.add(name)
            yield file, position


def _damage(error: CorruptLogError) -> dict[str, object]:
    fields = error.fields
    return {
        "position": fields.get("position", 0),
        "stored": fields.get("path", ""),
        "problem": error.message,
    }


def lag_of(feed: FeedStore, now_us: int) -> FeedLag | None:
    """Return how far a feed is, None = it has no page yet; errors as `FeedStore.page`.

    Args:
        now_us: Wall clock, microseconds since 1970 UTC.
    """
    last, seen = feed.last_page(), feed.seen()
    if last is None:
        return None
    until = whole_until(last, seen)
    return FeedLag(
        position=last.last,
        whole_until=until,
        lag_s=round(max(0, now_us - until) / 1e6, 3),
        published=0 if seen is None else seen.published,
        seen_at=0 if seen is None else seen.at,
    )
