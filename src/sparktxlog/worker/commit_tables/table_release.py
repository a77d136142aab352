"""Gives a commit table back as a plain Delta table: same files, same versions, no catalog.

It has no more features than it uses, so that its readers know them.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import InvalidRequestError, RowTableError
from sparktxlog.http.catalog_link import CatalogLink, path_of_location
from sparktxlog.model.ids import local_path
from sparktxlog.storage.commit_tables.released_log import drop_unused_features
from sparktxlog.storage.commit_tables.twin import (
    extend_plain_twin,
    make_plain_twin,
)
from sparktxlog.storage.durability import storing, sync_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRelease:
    """A commit table that was given back."""

    #: `schema.table`.
    table: str
    path: str
    version: int
    #: Whether the log no longer has it.
    dropped: bool
    #: Features that its protocol names, for its readers to know; None = all that it had stayed.
    features: tuple[str, ...] | None = None

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def release(
    link: CatalogLink,
    name: str,
    path: str,
    *,
    drop: bool = False,
    keep_features: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> TableRelease:
    """Make a plain Delta table of a commit table, in a directory of its own.

    Args:
        link: A node of this site.
        name: `schema.table`.
        path: A directory that does not exist; it appears when it is whole.
        drop: Drop the table from the log then; what was committed until then is in the directory.
        keep_features: Keep all of its protocol, but the one that says that a catalog has it; else
            those that nothing in the table uses are removed.
        tell: Takes a line for people at each step.

    Raises:
        UnknownTableError, RowTableError: There is no commit table of that name (definite).
        InvalidRequestError: The directory exists (definite).
        CorruptLogError: This site lacks a version, or a file.
        DiskFullError, StorageError: The directory is not there.
        CommitStateUnknownError, TransportError: It is there, and nobody knows about the drop.
    """
    target = Path(local_path(path)).absolute()
    if os.path.lexists(target):
        raise InvalidRequestError(
            f"{target} exists already", hint="Name a new directory.", field="path", value=path
        )
    shown = link.load(name)
    table, version = Path(path_of_location(shown.metadata.location)), shown.latest_table_version
    if shown.metadata.table_type != "MANAGED":
        raise RowTableError(
            f"{name!r} is a row table: {table} is a plain Delta table already", value=name
        )
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.releasing")
    features = None
    try:
        make_plain_twin(table, version, beside)
        if not drop and not keep_features:
            features = drop_unused_features(beside)
        with storing(target):
            beside.rename(target)
            sync_directory(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    tell(f"{target} has the versions up to {version}")
    if drop:
        link.drop(name)
        # What others committed until the drop is placed by now, and comes along.
        version = newest_commit(table)
        extend_plain_twin(table, version, target)
        if not keep_features:
            features = drop_unused_features(target)
    return TableRelease(
        table=name, path=str(target), version=version, dropped=drop, features=features
    )
