"""The files that pages name: from a site into a feed, and out of it again.

A staged or published file lies in the payload store while the log has its transaction; one of a
commit table lies there too, unless its run carried it, and in the table's directory once it is
placed.  Of a table's own log a commit that Delta cleaned up has a second name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from sparktxlog.errors import ApplyError, CorruptLogError, NotPlacedError, ObjectMissingError
from sparktxlog.files.durability import storing
from sparktxlog.files.stores.store import Created
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_versions import OrderedVersion
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.table_places import KEPT_COMMITS
from sparktxlog.worker.feed.feed_page import FeedPage
from sparktxlog.worker.feed.feed_store import FeedStore, FeedWriter, content_name
from sparktxlog.worker.feed.node_files import NodeFiles
from sparktxlog.worker.lakes.lake_places import payloads_at
from sparktxlog.worker.lakes.payload_files import PayloadFiles
from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo

#: Files that are sent, or fetched, at the same time.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file, and the names that it may have at the site, in the order in which to look."""

    file: StagedFile
    places: tuple[tuple[PayloadFiles | NodeFiles, str], ...]


class SiteFiles:
    """The files of one site: where its node says that they are, and else from the node itself.

    That such a directory is here does not mean that it is the site's: machines often have the same
    paths.  So the node is asked for what is not there, too.

    Raises:
        ConfigError, MissingDependencyError: As `store_at`.
    """

    def __init__(self, info: NodeInfo, source: HttpLogSource) -> None:
        payloads = payloads_at(info.payloads)
        tables = info.commit_table_url or info.commit_table_root
        #: Empty = they are not seen here.
        self._payloads = (payloads,) if _is_seen(payloads) else ()
        self._tables = (payloads_at(tables),) if tables and self._payloads else self._payloads
        self._of_node, self._versions = (
            NodeFiles(source, where) for where in ("payloads", "versions")
        )

    def of(self, page: FeedPage) -> Iterator[WantedFile]:
        """Yield the files of a page.

        Raises:
            NotPlacedError: The site never had those of a version (definite).
        """
        for segment in page.segments:
            for effect in segment.effects:
                for file in effect.files:
                    places = (*self._payloads, self._of_node)
                    yield WantedFile(file, tuple((one, file.path) for one in places))
        for version in page.versions:
            if not version.files:
                raise NotPlacedError(
                    f"the node's site never had the files of version {version.version} of commit "
                    f"table {version.uuid}, at position {version.position:,}",
                    hint="Name another node with --url, or back up a new image into the feed and "
                    "start again.",
                    uuid=version.uuid,
                    position=version.position,
                )
            for file in version.files:
                yield WantedFile(file, self._places(version, file.path))

    def _places(
        self, version: OrderedVersion, path: str
    ) -> tuple[tuple[PayloadFiles | NodeFiles, str], ...]:
        staged, below = f"{version.transaction_id}/{version.uuid}/{path}", f"{version.uuid}/{path}"
        of_table = [below]
        if path == commit_file_name(version.version):
            of_table.append(f"{KEPT_COMMITS}/{version.uuid}/{path.rpartition('/')[2]}")
        return (
            *((one, staged) for one in self._payloads),
            *((one, name) for one in self._tables for name in of_table),
            (self._versions, f"{version.uuid}/{version.version}/{path}"),
            (self._of_node, staged),
        )


def _is_seen(payloads: PayloadFiles) -> bool:
    try:
        return payloads.is_there()
    except PermissionError:  # it is another user's
        return False


def ship_files(writer: FeedWriter, wanted: Iterable[WantedFile]) -> int:
    """Store files under their digests, durably, several at a time; return their bytes.

    Raises:
        ApplyError: The site has one nowhere, or with other bytes (definite for that file).
        TxLogError: As `FeedWriter`.
    """
    distinct = {content_name(one.file): one for one in wanted}
    with ThreadPoolExecutor(AT_ONCE, "feed") as threads:
        for _ in threads.map(lambda one: _ship(writer, one), distinct.values()):
            pass
    return sum(one.file.size_bytes for one in distinct.values())


def _ship(writer: FeedWriter, wanted: WantedFile) -> None:
    name, failures = content_name(wanted.file), list[ApplyError]()
    for payloads, path in wanted.places:
        named = replace(wanted.file, path=path)
        try:
            if payloads.put(named, writer.contents, name) is Created.OTHER:
                # One that was cut, or is damaged.
                writer.contents.remove([name])
                payloads.put(named, writer.contents, name)
            return
        except ApplyError as error:
            failures.append(error)
        except FileNotFoundError as error:
            failures.append(ApplyError(f"{error.filename} is missing", path=path))
    raise failures[0]


def fetch_file(feed: FeedStore, file: StagedFile, target: Path, position: int) -> None:
    """Copy a file out of a feed, comparing it; neither bytes nor name are durable.

    Args:
        position: Of the transaction that named it, for errors.

    Raises:
        CorruptLogError: It is missing or damaged.
        DiskFullError, StorageError: It cannot be written, or read.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with storing(target), open(target, "wb") as copy:
        for piece in _pieces(feed, file, position):
            digest.update(piece)
            size += len(piece)
            copy.write(piece)
    if (digest.hexdigest(), size) != (file.digest, file.size_bytes):
        target.unlink()
        raise _damaged(feed, file, position, "has other bytes than when stored")


def check_file(feed: FeedStore, file: StagedFile, position: int) -> None:
    """Compare a file of a feed with its digest; errors as `fetch_file`."""
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(feed, file, position):
        digest.update(piece)
        size += len(piece)
    if (digest.hexdigest(), size) != (file.digest, file.size_bytes):
        raise _damaged(feed, file, position, "has other bytes than when stored")


def fetch_files(feed: FeedStore, wanted: Sequence[tuple[StagedFile, Path, int]]) -> None:
    """Copy files out of a feed, several at a time; (file, target, position), as `fetch_file`."""
    with ThreadPoolExecutor(AT_ONCE, "feed") as threads:
        for _ in threads.map(lambda one: fetch_file(feed, *one), wanted):
            pass


def _pieces(feed: FeedStore, file: StagedFile, position: int) -> Iterator[bytes]:
    try:
        content = feed.store.open(feed.content_key(file))
    except ObjectMissingError:
        raise _damaged(feed, file, position, "is missing") from None
    with closing(content.pieces):
        yield from content.pieces


def _damaged(feed: FeedStore, file: StagedFile, position: int, what: str) -> CorruptLogError:
    url = feed.store.url_of(feed.content_key(file))
    return CorruptLogError(
        f"{url}, which position {position:,} of the feed needs, {what}",
        hint="What is before that position can be restored with --at.  If a site still has the "
        "position, back up a new image into the feed.",
        path=url,
        position=position,
    )
