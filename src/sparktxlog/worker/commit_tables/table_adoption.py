"""Makes a commit table of an existing Delta table.

The node gives the new table a place.  The files of the old one get a second name there, or are
copied, and version 0 lists them.  Nothing of the old table changes before the log has the new one.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable, creation_of
from sparktxlog.delta.commit_contents import NeededFile, read_commit_file
from sparktxlog.errors import (
    CopyConflictError,
    InvalidRequestError,
    NameTakenError,
    PayloadStoreError,
    TxLogError,
    UnknownSchemaError,
    UnknownTableError,
)
from sparktxlog.http.catalog_link import CatalogLink, path_of_location
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.storage.durability import storage_error

#: How a file gets its place in the new table.
FileWay = Literal["link", "copy", "move"]
#: Seconds that a table may take until all sites of the quorum have its files.
ADOPTION_TIMEOUT_S = 3_600.0
#: Files that are copied at once.
_PARALLEL = 8
_LOG = COMMIT_LOG.rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What was done with a table, or would be."""

    #: `schema.table`.
    table: str
    source: str
    source_version: int
    way: FileWay
    #: Data files and files of deletion vectors, and their bytes.
    files: int
    size_bytes: int
    #: Features and properties that the new table has, and the old one has not.
    new_features: list[str]
    new_properties: dict[str, str]
    #: What the new table does not keep.
    left_behind: list[str]
    #: Of the new table; empty = nothing was done.
    uuid: str = ""
    #: What is left of the old table, for people.
    left: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def adopt(
    plain: PlainTable,
    newest: Callable[[], int],
    link: CatalogLink,
    name: str,
    *,
    way: FileWay = "link",
    dry_run: bool = False,
    timeout_s: float = ADOPTION_TIMEOUT_S,
    tell: Callable[[str], None] = lambda _: None,
) -> Adoption:
    """Make a commit table of a Delta table.

    Args:
        plain: The table, as it was read.
        newest: Returns the table's newest version now.
        link: A node of this site.
        name: `schema.table`.
        way: How files get their places in the new table.
        dry_run: Only check, and say what would be done.
        timeout_s: Seconds until the sites of the quorum have the files.
        tell: Takes a line for people at each step.

    Raises:
        InvalidRequestError: The table cannot become one; the message names all that is in the way
            (definite).
        NameTakenError: There is a table of that name (definite).
        CopyConflictError: Somebody wrote to the table meanwhile (definite).
        CommitStateUnknownError, TransportError: It was not made in time, or perhaps was.
    """
    source = Path(plain.path)
    _check_possible(plain, way)
    needed = _needed(plain, source)
    _check_free(link, name)
    planned = _planned(plain, name, way, needed)
    tell(f"{planned.files:,} files of {planned.size_bytes:,} bytes in version {plain.version}")
    if dry_run:
        return planned
    place = link.stage(name)
    directory = Path(path_of_location(place.location))
    if not directory.is_dir():
        raise PayloadStoreError(
            f"this process does not see {directory}, where the node at {link.url} makes the table",
            hint="Run this where node and Spark executors share the node's commit-table-dir.",
            path=str(directory),
        )
    try:
        _place(source, directory, needed, way)
        first = plain.first_commit(place.table_id, int(time.time() * 1000))
        (directory / COMMIT_LOG).mkdir()
        (directory / commit_file_name(0)).write_bytes(first)
        _check_unchanged(plain, newest())
        tell("the files travel to the other sites")
        request = creation_of(read_commit_file(first), name.partition(".")[2], place.location)
        link.create(name, request, timeout_s=timeout_s)
    except OSError as error:
        _remove(directory)
        raise storage_error(error, directory) from error
    except TxLogError as error:
        if error.definite:
            _remove(directory)
        raise
    left = (
        "the old table is as it was, and is no part of the log; while spark_catalog knows it as "
        f"{name}, DeltaTable.forName of the new one means the old one in .vacuum() and .detail()"
    )
    if way == "move":
        left = _taken_away(plain, newest(), needed)
    return replace(planned, uuid=place.table_id, left=left)


def _check_possible(plain: PlainTable, way: str) -> None:
    if way not in get_args(FileWay):
        raise InvalidRequestError(
            f"files={way!r} is none of {', '.join(get_args(FileWay))}", field="files", value=way
        )
    if found := plain.obstacles:
        raise _in_the_way(Path(plain.path), found)


def _needed(plain: PlainTable, source: Path) -> tuple[NeededFile, ...]:
    """Return the files of the new table; all are there.

    Raises:
        InvalidRequestError: One is missing, or has another size (definite).
    """
    files = read_commit_file(plain.first_commit("", 1)).files
    wrong = []
    for file in files:
        try:
            size = (source / file.path).stat().st_size
        except OSError:
            size = -1
        if size < file.size or (file.is_exact and size != file.size):
            wrong.append(file.path)
    if wrong:
        problem = f"{len(wrong):,} of {len(files):,} files are missing or have another size, "
        raise _in_the_way(source, [f"{problem}{wrong[0]!r} first"])
    return files


def _in_the_way(source: Path, obstacles: list[str]) -> InvalidRequestError:
    return InvalidRequestError(
        f"{source} cannot become a commit table: {'; '.join(obstacles)[:2000]}",
        hint="Mend that, or copy the rows: CREATE TABLE … AS SELECT.",
        field="path",
        value=str(source),
        obstacles=obstacles,
    )


def _check_free(link: CatalogLink, name: str) -> None:
    try:
        link.load(name)
    except (UnknownSchemaError, UnknownTableError):
        return  # a table makes its schema known
    raise NameTakenError(f"table {name!r} exists", hint="Choose another name.", value=name)


def _planned(plain: PlainTable, name: str, way: FileWay, needed: Iterable[NeededFile]) -> Adoption:
    sizes = [(Path(plain.path) / file.path).stat().st_size for file in needed]
    content = read_commit_file(plain.first_commit("its own", 1))
    assert content.metadata is not None, "a first commit has one"
    assert content.protocol is not None, "a first commit has one"
    old = plain.metadata.get("configuration") or {}
    had = {*(plain.protocol.get("readerFeatures") or ())}
    had |= {*(plain.protocol.get("writerFeatures") or ())}
    return Adoption(
        table=name,
        source=plain.path,
        source_version=plain.version,
        way=way,
        files=len(sizes),
        size_bytes=sum(sizes),
        new_features=sorted(content.protocol.features - had),
        new_properties={
            key: value
            for key, value in content.metadata.configuration.items()
            if old.get(key) != value
        },
        left_behind=plain.left_behind,
    )


def _place(source: Path, target: Path, needed: Iterable[NeededFile], way: FileWay) -> None:
    """Give the files their places; the node brings them to the disk.

    Raises:
        InvalidRequestError: They cannot be linked (definite).
        OSError: The disk failed.
    """

    def place(file: NeededFile) -> None:
        old, new = source / file.path, target / file.path
        new.parent.mkdir(parents=True, exist_ok=True)
        if way != "copy":
            try:
                os.link(old, new)
                return
            except OSError as error:
                if way == "link":
                    raise InvalidRequestError(
                        f"{old} cannot be linked to {new}: {error.strerror}",
                        hint="Use files='copy': links are of one file system.",
                        field="files",
                        value=way,
                    ) from error
        shutil.copyfile(old, new)

    with ThreadPoolExecutor(_PARALLEL, "adopting") as threads:
        list(threads.map(place, needed))


def _check_unchanged(plain: PlainTable, newest: int) -> None:
    if newest != plain.version:
        raise CopyConflictError(
            f"{plain.path} was written meanwhile: it has version {newest}, after {plain.version}",
            hint="Nothing was done.  Stop its writers, and try again.",
            path=plain.path,
            version=newest,
        )


def _taken_away(plain: PlainTable, newest: int, needed: Iterable[NeededFile]) -> str:
    """Remove what moved from the old table; return what is left of it.

    The log goes first: a reader finds no table, and never one that lacks files.
    """
    source = Path(plain.path)
    if newest != plain.version:
        return (
            f"the old table was written until version {newest}, the new one has version "
            f"{plain.version} of it: nothing was removed from {source}"
        )
    attic = Attic(source / ".attic")  # the log may be on a disk of its own
    try:
        kept = attic.put(source / _LOG, kind=Kind.LOG, why="its files moved to a commit table")
        for file in needed:
            (source / file.path).unlink(missing_ok=True)
    except OSError as error:
        return f"the files of the old table could not be removed from {source}: {error.strerror}"
    return f"the old log is {kept.path}; what only older versions had is left, too"


def _remove(directory: Path) -> None:
    """Remove a table that was not made in the end; all in it are second names and copies."""
    shutil.rmtree(directory, ignore_errors=True)
