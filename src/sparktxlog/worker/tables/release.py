"""Gives a table back as a plain Delta table; only how its files get there differs by its kind.

A row table leaves the log, and each site's worker keeps its directory.  A commit table gets a
directory of its own: same files, same versions, no catalog, and no more features than it uses, so
that its readers know them.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import ApplyError, InvalidRequestError
from sparktxlog.files.durability import move_durably, storing
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.http.link import Http
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import local_path
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.storage.commit_tables.directory_tables import directory_of
from sparktxlog.storage.commit_tables.released_log import drop_unused_features
from sparktxlog.storage.commit_tables.twin import (
    extend_plain_twin,
    make_plain_twin,
)
from sparktxlog.worker.lakes.bucket_lake import attic_key
from sparktxlog.worker.lakes.site_roots import check_apart, roots_of
from sparktxlog.worker.tables.bucket_release import BucketRelease
from sparktxlog.worker.tables.bucket_row_release import BucketRowRelease

#: Waits until this site's worker has applied a position, or a receipt.
Applied = Callable[[int | Receipt], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A table that was given back."""

    #: Name that it has, or had, in the log.
    table: str
    #: Where this site has it: the given directory, or that of a row table in the lake's attic.
    path: str
    #: Whether the log no longer has it.
    dropped: bool
    #: Where the log dropped a row table; each site's worker puts its own files into the attic.
    position: int | None = None
    #: Whether the files are there already; else they are once the worker has applied `position`.
    is_there: bool = True
    #: The newest version of a commit table that is in the directory.
    version: int | None = None
    #: Features of a commit table that its protocol names, for its readers to know; None = all that
    #: it had stayed.
    features: tuple[str, ...] | None = None

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    def describe(self) -> str:
        """Return lines for people."""
        text = f"{self.path} is a plain Delta table"
        text += "" if self.version is None else f" at version {self.version}"
        text += ", and the log has it no more." if self.dropped else "."
        if not self.is_there:
            text += f"  It is there once this site's worker has applied position {self.position:,}."
        if self.features is not None:
            text += f"\nFeatures of its protocol: {', '.join(self.features) or 'none'}."
        return text


def release(
    table: TableDescription,
    node: Http,
    path: str | None,
    *,
    drop_rows: Callable[[str], Receipt],
    applied: Applied,
    drop: bool = False,
    keep_features: bool = False,
) -> Release:
    """Give a table back.

    Args:
        table: As the node of this site describes it.
        node: That node.
        path: A directory that does not exist; it appears when it is whole.  Or an empty prefix of
            the bucket in which the table lies.  None: a row table's files stay where the worker
            puts them.
        drop_rows: Drops a row table; returns the receipt.
        applied: Waits until this site's worker has applied a position, or a receipt.
        drop: Drop a commit table from the log then; what was committed until then is in the
            directory.
        keep_features: Keep all of a commit table's protocol, but the one that says that a catalog
            has it; else those that nothing in the table uses are removed.

    Raises:
        UnknownTableError: It was dropped meanwhile (definite).
        InvalidRequestError: The directory exists, or it is among the files of the site, or a commit
            table has none (definite).
        NotAppliedError: The worker is behind.  Before the drop: nothing happened.  After it: the
            message gives the worker's state, and the table is in the worker's directory (definite).
        CorruptLogError: This site lacks a version of a commit table, or a file.
        DiskFullError, StorageError: The directory is not there; a row table is in the worker's.
        CommitStateUnknownError, TransportError: Nobody knows about the drop.
    """
    info = node.get("/v1/info")
    if path is not None:
        check_target(table, info, path)
    if path is not None and bucket_url(path, "path") is not None:
        if table.kind is TableKind.ROW_TABLE:
            return _of_rows(table, info, path, drop_rows, applied)
        with closing(CatalogLink.to_same_node(node)) as link:
            return release_in_bucket(link, table.name, path, drop=drop, keep_features=keep_features)
    target = None if path is None else Path(local_path(path)).absolute()
    if target is not None and os.path.lexists(target):
        raise InvalidRequestError(
            f"{target} exists already", hint="Name a new directory.", field="path", value=path
        )
    if table.kind is TableKind.ROW_TABLE:
        return _of_rows(table, info, target, drop_rows, applied)
    if target is None:
        raise InvalidRequestError(
            f"no directory is given for commit table {table.name!r}", field="path"
        )
    with closing(CatalogLink.to_same_node(node)) as link:
        return release_commits(link, table.name, target, drop=drop, keep_features=keep_features)


def check_target(table: TableDescription, info: Mapping[str, Any], path: str) -> None:
    """Refuse a place for a plain table that is among the files of the site.

    Args:
        info: Answer of `/v1/info` of the site's node.

    Raises:
        InvalidRequestError: It is (definite).
    """
    if table.kind is TableKind.COMMIT_TABLE:
        # It may be a whole bucket, where some prefixes are of no table: `BucketRelease` looks.
        info = {**info, "commit_table_url": None}
    check_apart(path, roots_of(info), what="the plain table", field="path")


def _of_rows(
    table: TableDescription,
    info: Mapping[str, Any],
    target: Path | str | None,
    drop_rows: Callable[[str], Receipt],
    applied: Applied,
) -> Release:
    if url := info.get("lake_url"):
        return _of_rows_in_bucket(table, url, target, drop_rows, applied)
    if isinstance(target, str):
        raise InvalidRequestError(
            f"row table {table.name!r} lies in a directory, and {target} does not",
            hint="Name a directory, and copy that.",
            field="path",
            value=target,
        )
    if target is not None:
        applied(table.last_write or table.position)
    receipt = drop_rows(table.name)
    assert receipt.position is not None, "a drop is ordered"
    attic = Attic.of_lake(Path(info["lake_root"]))
    dropped = (Kind.DROPPED, table.name, str(receipt.position))
    if target is not None:
        applied(receipt)
        found = attic.newest(*dropped)
        if found is None:
            raise ApplyError(
                f"this process does not see {attic.place(*dropped)}, where this site's worker puts "
                "the table",
                hint="The table is dropped.  Copy that directory on the worker's machine.",
                path=str(attic.place(*dropped)),
            )
        attic.restore(found, target)
    return Release(
        table=table.name,
        path=str(target or attic.place(*dropped)),
        dropped=True,
        position=receipt.position,
        is_there=target is not None,
    )


def _of_rows_in_bucket(
    table: TableDescription,
    lake: str,
    target: Path | str | None,
    drop_rows: Callable[[str], Receipt],
    applied: Applied,
) -> Release:
    # First: what was named may be refused before anything happens.
    goes_to = None if target is None else BucketRowRelease.of(lake, target)
    if goes_to is not None:
        applied(table.last_write or table.position)
    receipt = drop_rows(table.name)
    assert receipt.position is not None, "a drop is ordered"
    place = f"{lake}/{attic_key(table.name, str(receipt.position))}"
    if goes_to is not None:
        applied(receipt)
        goes_to.bring(table.name, receipt.position)
        place = goes_to.place
    return Release(
        table=table.name,
        path=place,
        dropped=True,
        position=receipt.position,
        is_there=goes_to is not None,
    )


def release_commits(
    link: CatalogLink, name: str, target: Path, *, drop: bool = False, keep_features: bool = False
) -> Release:
    """Give a commit table back into a directory that does not exist; errors as `release`."""
    shown = link.load(name)
    if bucket_url(shown.metadata.location, "location") is not None:
        BucketRelease.of(shown.metadata.location, str(target))
    table, version = directory_of(shown.metadata.location), shown.latest_table_version
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}.releasing")
    features = None
    try:
        make_plain_twin(table, version, fresh)
        if not drop and not keep_features:
            features = drop_unused_features(fresh)
        with storing(target):
            move_durably(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if drop:
        link.drop(name)
        # What others committed until the drop is placed by now, and comes along.
        version = newest_commit(table)
        extend_plain_twin(table, version, target)
        if not keep_features:
            features = drop_unused_features(target)
    return Release(table=name, path=str(target), dropped=drop, version=version, features=features)


def release_in_bucket(
    link: CatalogLink, name: str, url: str, *, drop: bool = False, keep_features: bool = False
) -> Release:
    """Give a commit table back below a prefix of its bucket; errors as `release`."""
    shown = link.load(name)
    location, version = shown.metadata.location, shown.latest_table_version
    if bucket_url(location, "location") is None:
        raise InvalidRequestError(
            f"{name} lies in a directory, and {url} does not",
            hint="Name a directory.",
            field="path",
            value=url,
        )
    found = BucketRelease.of(location, url)
    features = found.bring(version, keep_features=keep_features)
    if drop:
        link.drop(name)
        # What others committed until the drop is placed by now, and comes along.
        if (newest := found.newest()) > version:
            version, features = newest, found.bring(newest, keep_features=keep_features)
    return Release(table=name, path=found.url, dropped=drop, version=version, features=features)
