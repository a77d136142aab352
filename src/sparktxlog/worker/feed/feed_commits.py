"""Commit tables at a position: those of an image, and the versions that the feed has after it.

Versions of an image may be later than its position, and then are left out where the position wants
that.  A restored table is a plain one: no log knows it yet.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparktxlog.errors import CorruptLogError, InvalidRequestError, NotFoundError
from sparktxlog.files.durability import move_durably, storing
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created
from sparktxlog.files.stores.whole_files import files_below, put_file, put_files
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.model.tables.table_versions import OrderedVersion
from sparktxlog.storage.commit_tables.released_log import IN_COMMIT_TIMES, drop_unused_features
from sparktxlog.storage.commit_tables.twin import make_plain_twin
from sparktxlog.worker.backup.commit_table_images import restore_commit_tables
from sparktxlog.worker.backup.image import Image, ImageCommitTable
from sparktxlog.worker.feed.feed_page import FeedPage
from sparktxlog.worker.feed.feed_points import CLOCKS_US, FeedRoute
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.feed.shipped_files import fetch_files
from sparktxlog.worker.lakes.lake_places import bucket_at, is_in_bucket

#: What the place of the tables is called in errors.
_FIELD = "commit-tables"


@dataclass(slots=True, kw_only=True)
class CommitTableAt:
    """A commit table at the position."""

    uuid: str
    #: `schema.table`, empty = not known.
    name: str = ""
    #: -1 = none.
    version: int = -1
    is_dropped: bool = False
    #: Those that the feed has, ascending.
    versions: list[OrderedVersion] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Name of its directory."""
        return self.name or self.uuid


def commit_tables_at(feed: FeedStore, route: FeedRoute) -> list[CommitTableAt]:
    """Return the commit tables at a position, dropped ones not, by UUID.

    Raises:
        NotFoundError: The feed has a hole before it, or lacks a version (definite).
        CorruptLogError: A page is missing or damaged.
    """
    image, target, end = route.image, route.target.position, route.begins_after
    of_image: dict[str, ImageCommitTable] = {} if image is None else image.commit_tables
    found = {
        uuid: CommitTableAt(uuid=uuid, name=one.name, version=one.version)
        for uuid, one in of_image.items()
    }
    #: UUID → the first version that is ordered after the position.
    later = dict[str, int]()
    for page in _readable(feed, route):
        end = page.last
        # An image may have versions too soon until so long after it was made.
        is_late = image is not None and page.made_at > image.created_at + CLOCKS_US
        if page.first > target and (is_late or not of_image):
            break
        for version in page.versions:
            if version.position > target:
                later.setdefault(version.uuid, version.version)
            elif version.position > route.begins_after:
                table = found.setdefault(version.uuid, CommitTableAt(uuid=version.uuid))
                table.versions.append(version)
        for named in page.tables:
            if route.begins_after < named.position <= target:
                table = found.setdefault(named.uuid, CommitTableAt(uuid=named.uuid))
                table.name, table.is_dropped = named.name, named.is_dropped
            elif named.position > target and named.uuid in found:
                found[named.uuid].name = found[named.uuid].name or named.name
    if end < target:
        raise NotFoundError(
            f"the feed in {feed.url} has a hole after position {end:,}, and does not lead to "
            f"{target:,}",
            hint="Restore to that position, or from a later image.",
            position=end,
        )
    for table in found.values():
        if table.versions:
            table.version = table.versions[-1].version
        elif table.uuid in later:
            table.version = min(table.version, later[table.uuid] - 1)
        _check_whole(feed, table, of_image.get(table.uuid))
    kept = (one for one in found.values() if not one.is_dropped and one.version >= 0)
    return sorted(kept, key=lambda one: one.uuid)


def _readable(feed: FeedStore, route: FeedRoute) -> Iterator[FeedPage]:
    """Yield the pages after an image; what is damaged after the target ends them."""
    pages, end = feed.pages(route.begins_after), route.begins_after
    while True:
        try:
            page = next(pages, None)
        except CorruptLogError:
            if end < route.target.position:
                raise
            return
        if page is None:
            return
        yield page
        end = page.last


def _check_whole(feed: FeedStore, table: CommitTableAt, image: ImageCommitTable | None) -> None:
    """Refuse a table of which a version is neither in the image nor in the feed."""
    known = -1 if image is None else image.version
    for version in table.versions:
        if version.version > known + 1:
            raise NotFoundError(
                f"the feed in {feed.url} has version {version.version} of commit table "
                f"{table.name or table.uuid}, and nothing has {known + 1}",
                hint="Back up a new image into the feed.",
                uuid=table.uuid,
                version=known + 1,
            )
        known = max(known, version.version)


def restore_commits(feed: FeedStore, route: FeedRoute, target: str | Path) -> list[CommitTableAt]:
    """Write the commit tables of a position into a new place, as plain Delta tables.

    Each gets its name, `schema.table`, or its UUID if the name is not known.  A directory appears
    when it is whole.  In a bucket each table gets its files first, and then its log, in the order
    of versions; its commits keep their own times, since objects cannot be given any.  A new cluster
    takes the tables by `sparktxlog table adopt`.

    Args:
        target: A directory, or the URL of a prefix in a bucket.

    Returns:
        The tables.

    Raises:
        InvalidRequestError: Something is there (definite).
        ConfigError, MissingDependencyError: As `store_at` (definite).
        CorruptLogError: A page, or a file that one names, is missing or damaged (definite).
        DiskFullError, StorageError: It cannot be written (a directory is not there then; what a
            bucket has then is to be removed).
        TxLogError: As `commit_tables_at`.
    """
    check_absent(target)
    tables = commit_tables_at(feed, route)
    if is_in_bucket(target):
        store = bucket_at(str(target), _FIELD)
        with tempfile.TemporaryDirectory(prefix="sparktxlog-restore-") as here:
            plain = _make_plain(feed, route, tables, Path(here), kept=IN_COMMIT_TIMES)
            for table in tables:
                _send(plain / table.place, PartOfStore(store, table.place))
        return tables
    target = Path(target)
    fresh = target.with_name(f".{target.name}.restoring")
    with storing(fresh):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
    plain = _make_plain(feed, route, tables, fresh)
    with storing(target):
        move_durably(plain, target)
        shutil.rmtree(fresh, ignore_errors=True)
    return tables


def _make_plain(
    feed: FeedStore, route: FeedRoute, tables: list[CommitTableAt], fresh: Path, *, kept: str = ""
) -> Path:
    """Make the plain tables below an empty directory; return the directory of all of them.

    Args:
        kept: As in `drop_unused_features`.
    """
    root, plain = fresh / "tables", fresh / "plain"
    with storing(fresh):
        root.mkdir()
        plain.mkdir()
    if route.image is not None:
        restore_commit_tables(feed.images, _part_of(route.image, tables), root)
    known = {} if route.image is None else route.image.commit_tables
    for table in tables:
        after = known[table.uuid].version if table.uuid in known else -1
        for version in table.versions:
            if after < version.version <= table.version:
                _place(feed, version, DiskStore(root))
        make_plain_twin(root / table.uuid, table.version, plain / table.place)
        drop_unused_features(plain / table.place, kept)
    return plain


def _send(table: Path, into: PartOfStore) -> None:
    """Put a plain table into a bucket: what its commits name, then these, ascending."""
    files = files_below(table)
    commits = {path: files.pop(path) for path in sorted(files) if path.startswith(COMMIT_LOG)}
    put_files(into, files)
    for path, file in commits.items():
        put_file(into, path, file)


def check_absent(target: str | Path) -> None:
    """Refuse a directory that is there, or a prefix of a bucket that is not empty.

    Raises:
        InvalidRequestError: It is (definite).
        ConfigError, MissingDependencyError, StorageError: As `Store` (definite).
    """
    if is_in_bucket(target):
        there = next(bucket_at(str(target), _FIELD).list(), None) is not None
    else:
        there = os.path.lexists(target)
    if there:
        raise InvalidRequestError(
            f"{target} is there already",
            hint="Name a directory, or a prefix, that does not exist; nothing is ever overwritten.",
            path=str(target),
        )


def _part_of(image: Image, tables: list[CommitTableAt]) -> Image:
    """Return an image with its commit tables up to their versions at the position."""
    kept = dict[str, ImageCommitTable]()
    for table in tables:
        if (one := image.commit_tables.get(table.uuid)) is None:
            continue
        version = min(one.version, table.version)
        later = {commit_file_name(n) for n in range(version + 1, one.version + 1)}
        files = tuple(file for file in one.files if file.path not in later)
        kept[table.uuid] = replace(one, version=version, files=files)
    return replace(image, commit_tables=kept)


def _place(feed: FeedStore, version: OrderedVersion, store: DiskStore) -> None:
    """Put the files of a version in their places, its commit last."""
    commit, root = commit_file_name(version.version), Path(store.url)
    with tempfile.TemporaryDirectory(prefix=".version-", dir=root.parent) as here:
        files = sorted(version.files, key=lambda file: (file.path == commit, file.path))
        wanted = [(file, Path(here) / file.path, version.position) for file in files]
        fetch_files(feed, wanted)
        for file, copy, _ in wanted:
            if store.create(f"{version.uuid}/{file.path}", copy) is Created.OTHER:
                raise CorruptLogError(
                    f"file {file.path} of commit table {version.uuid} has two contents in the feed",
                    uuid=version.uuid,
                    path=file.path,
                )
