"""The place of a feed: a directory, or a prefix of a bucket.

    feed.json                 which log it is of; created once, by one condition
    log/<first position>.json a page, created after all that it names, by one condition
    contents/<digest>-<size>  bytes of files, by SHA-256: each content once
    seen.json                 how far a process saw the log last, for people
    pruned.json               with which page and image it begins since its beginning was removed
    images/                   images of sites, as `sparktxlog backup` makes them
    lock                      held while a process feeds

The pages are the manifest: the feed is whole up to the end of the last one, and it grows by one
`create` of the next one.  So nobody reads half a step, and of two that would write the same one
only one does.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from sparktxlog.errors import (
    CorruptLogError,
    ForeignLogError,
    InvalidRequestError,
    LockedError,
    NotFoundError,
    ObjectMissingError,
)
from sparktxlog.files.ahead import read_ahead
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import local_path
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.lock import LOCK_NAME, DirectoryLock
from sparktxlog.worker.backup.image import Image, sealed, unsealed
from sparktxlog.worker.backup.image_places import images_at
from sparktxlog.worker.backup.image_store import ImageStore
from sparktxlog.worker.feed.feed_page import FeedPage, damaged_page, page_bytes, page_of
from sparktxlog.worker.lakes.lake_lease import place_locked
from sparktxlog.worker.lakes.lake_places import bucket_at, lock_store_at

if TYPE_CHECKING:
    from sparktxlog.files.stores.bucket import BucketStore

T = TypeVar("T")

_IDENTITY, _SEEN, _PRUNED = "feed.json", "seen.json", "pruned.json"
_LOG, _CONTENTS, _IMAGES = "log", "contents", "images"
_PAGE_NAME = re.compile(r"([0-9]{20})\.json")
#: What `content_name` returns.
CONTENT_NAME = re.compile(r"[0-9a-f]{64}-[0-9]+")
#: What may be there before a feed begins.
_BEFORE = (f"{_IMAGES}/", LOCK_NAME)
#: Pages that are read, and removed, at the same time.
_AHEAD, _REMOVED = 8, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedIdentity:
    """Which log a feed is of."""

    log_id: str
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a process that feeds saw last."""

    #: Microseconds since 1970 UTC.
    at: int
    node_id: str
    #: What the feed had then, and what the node had published.
    position: int
    published: int
    #: The feed had all that was ordered then, and the node heard enough others to know that.
    is_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """With what a feed begins whose beginning was removed."""

    #: The first position of its first page, and the image from which it leads on.
    first: int
    image: str
    position: int


class FeedStore:
    """A feed; reading needs no lock.

    Errors of all methods, in addition to those that they name, as `Store`.

    Args:
        place: A path, or the URL of a prefix in a bucket, which the environment reaches.

    Raises:
        ConfigError: No store here has such URLs, or the environment does not fit (definite).
        InvalidRequestError: It is no path of this machine (definite).
        MissingDependencyError: The extra for the bucket's provider is not installed (definite).
    """

    def __init__(self, place: str | Path) -> None:
        self._place = place
        self._in_bucket = not isinstance(place, Path) and bucket_url(place, "feed") is not None
        if self._in_bucket:
            self.store: Store = bucket_at(str(place), "feed")
        else:
            self.store = DiskStore(Path(local_path(str(place), "feed")).absolute())
        #: It never changes.
        self._identity: FeedIdentity | None = None

    @property
    def url(self) -> str:
        """Where it is, for messages: a path or a URL."""
        return self.store.url

    @cached_property
    def images(self) -> ImageStore:
        """The images from which it leads on."""
        return images_at(self.store.url_of(_IMAGES))

    def bases(self) -> list[Image]:
        """Return the images from which it may lead on: of its log, of replicas with all tables."""
        log_id = self.identity().log_id
        return [one for one in self.images.images() if one.log_id == log_id and not one.only]

    # -- reading ---------------------------------------------------------------------------------

    def identity(self) -> FeedIdentity:
        """Return which log it is of.

        Raises:
            NotFoundError: There is no feed (definite).
            CorruptLogError: That cannot be read.
        """
        if self._identity is None:
            self._identity = self._known(_IDENTITY, FeedIdentity)
        if self._identity is None:
            raise NotFoundError(
                f"there is no feed in {self.url}",
                hint="`sparktxlog feed --to PLACE` makes one.",
                path=self.url,
            )
        return self._identity

    def seen(self) -> Seen | None:
        """Return what was seen last; None = nothing; errors as `identity`."""
        return self._known(_SEEN, Seen)

    def pruned(self) -> Pruned | None:
        """Return with what it begins, None = its beginning was never removed; as `identity`."""
        return self._known(_PRUNED, Pruned)

    def _known(self, key: str, kind: type[T]) -> T | None:
        try:
            return unsealed(self.store.read(key), kind)
        except ObjectMissingError:
            return None
        except ValueError as error:
            url = self.store.url_of(key)
            raise CorruptLogError(f"{url} is damaged: {error}", path=url) from error

    def firsts(self) -> list[int]:
        """Return the first positions of all pages, ascending."""
        found = (_PAGE_NAME.fullmatch(name) for name in self.store.names(_LOG))
        return sorted(int(match[1]) for match in found if match is not None)

    def page(self, first: int) -> FeedPage:
        """Return the page that begins at a position.

        Raises:
            CorruptLogError: It is missing, damaged, or of another log.
        """
        key = self.page_key(first)
        try:
            content = self.store.read(key)
        except ObjectMissingError:
            raise damaged_page(self.store.url_of(key), first, "it is missing") from None
        page = page_of(content, self.store.url_of(key), first)
        if page.log_id != self.identity().log_id:
            raise damaged_page(self.store.url_of(key), first, f"it is of the log {page.log_id!r}")
        return page

    def last_page(self) -> FeedPage | None:
        """Return the page with which the feed ends, None = it has none; errors as `page`."""
        firsts = self.firsts()
        return self.page(firsts[-1]) if firsts else None

    def pages(self, after: int) -> Iterator[FeedPage]:
        """Yield the pages with what follows a position, in their order, up to the next hole.

        None, if the feed does not have what follows that position.

        Raises:
            CorruptLogError: One is missing, damaged, or does not follow the one before it.
        """
        firsts = self.firsts()
        wanted = firsts[max(bisect_right(firsts, after + 1) - 1, 0) :]
        before: FeedPage | None = None
        for page in read_ahead(self.page, wanted, at_once=_AHEAD, name="pages"):
            if page.begins_at and before is not None:
                return  # another part
            if before is not None:
                _check_follows(page, before, self.store.url_of(self.page_key(page.first)))
            elif page.first > after + 1:
                return
            before = page
            if page.last > after:
                yield page

    def page_key(self, first: int) -> str:
        """Return the key of the page that begins at a position."""
        return f"{_LOG}/{first:020d}.json"

    def content_key(self, file: StagedFile) -> str:
        """Return the key of a file's bytes."""
        return f"{_CONTENTS}/{content_name(file)}"

    @property
    def contents_prefix(self) -> str:
        """The directory with the bytes of files, by `content_name`."""
        return _CONTENTS

    # -- writing ---------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[FeedWriter]:
        """Lock the place, which is made if missing.

        Raises:
            LockedError: Another process feeds here (definite).
            LyingStoreError: The bucket is new here, and does not keep its promises (definite).
            StorageError: It cannot be made or written.
        """
        if not self._in_bucket:
            lock = DirectoryLock(Path(self.url))
            try:
                yield FeedWriter(self, lambda: None)
            finally:
                lock.release()
            return
        store = cast("BucketStore", self.store)
        lock_store = lock_store_at(self.url, "feed")
        with place_locked(store, lock_store, owned="feed", owner="process") as lease:
            yield FeedWriter(self, lease.check)


class FeedWriter:
    """Writes to a feed, which nobody else does meanwhile.

    Errors of all methods, in addition to those that they name:
        LockedError: Another process feeds there by now (definite).
        StorageError: As `Store`; what is stored is used by the next attempt.

    Args:
        may_write: As in `PartOfStore`.
    """

    def __init__(self, feed: FeedStore, may_write: Callable[[], None]) -> None:
        self.feed = feed
        self._may_write = may_write
        #: Files by `content_name`.
        self.contents = PartOfStore(feed.store, _CONTENTS, may_write)

    def begin(self, identity: FeedIdentity) -> None:
        """Make the feed that of a log, durably, or find that it is.

        Raises:
            ForeignLogError: It is that of another log (definite).
            InvalidRequestError: The place has something else (definite).
        """
        try:
            there = self.feed.identity()
        except NotFoundError:
            for found in self.feed.store.list():
                if not found.key.startswith(_BEFORE):
                    raise InvalidRequestError(
                        f"{self.feed.url} is not empty: it has {found.key}",
                        hint="Name a new directory, or a prefix of its own, for the feed.",
                        path=self.feed.url,
                    ) from None
            self._may_write()
            made = self.feed.store.create(_IDENTITY, sealed(identity))
            there = self.feed.identity() if made is Created.OTHER else identity
        if there.log_id != identity.log_id:
            raise ForeignLogError(
                f"the feed in {self.feed.url} is of the log {there.log_id!r} of cluster "
                f"{there.cluster!r}, the node has {identity.log_id!r}",
                hint="Name another place: logs are never mixed.",
                path=self.feed.url,
                log_id=there.log_id,
            )

    def add(self, page: FeedPage) -> None:
        """Add a page whose files are all there, durably.

        Raises:
            LockedError: Another process wrote another one (definite).
        """
        self._may_write()
        key = self.feed.page_key(page.first)
        if self.feed.store.create(key, page_bytes(page)) is Created.OTHER:
            raise LockedError(
                f"somebody else wrote {self.feed.store.url_of(key)}",
                hint="One process feeds a place; stop the other one.",
                path=self.feed.url,
            )

    def note(self, seen: Seen) -> None:
        """Say what was seen, for people."""
        self._may_write()
        self.feed.store.replace(_SEEN, sealed(seen))

    def note_pruned(self, pruned: Pruned) -> None:
        """Say with what it begins, durably, before what was before that goes."""
        self._may_write()
        self.feed.store.replace(_PRUNED, sealed(pruned))

    def remove_pages(self, firsts: Sequence[int]) -> None:
        """Remove pages, the oldest first."""
        for at in range(0, len(firsts), _REMOVED):
            self._may_write()
            self.feed.store.remove(map(self.feed.page_key, firsts[at : at + _REMOVED]))


def content_name(file: StagedFile) -> str:
    """Return the name of a file's bytes below `contents/`."""
    return f"{file.digest}-{file.size_bytes}"


def _check_follows(page: FeedPage, before: FeedPage, place: str) -> None:
    if page.first != before.last + 1:
        raise damaged_page(
            place,
            before.last + 1,
            f"positions {before.last + 1:,} to {page.first - 1:,} are missing",
        )
    if page.from_hash != before.to_hash:
        raise damaged_page(place, page.first, "its chain hash is not that of the page before it")
