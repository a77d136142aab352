"""An existing Delta table becomes a table of the log: what either kind says, and commit tables.

The node gives a new commit table a place.  The files of the old one get a second name there, or are
copied, and version 0 lists them.  Nothing of the old table changes before the log has the new one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable, creation_of
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.errors import (
    CopyConflictError,
    InvalidRequestError,
    NameTakenError,
    TxLogError,
    UnknownSchemaError,
    UnknownTableError,
)
from sparktxlog.files.durability import move_durably
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.model.tables.commit_table import COMMIT_LOG
from sparktxlog.model.tables.table_kind import TableKind
from sparktxlog.storage.commit_tables.directory_tables import directory_of
from sparktxlog.worker.tables.adopted_files import FileWay, check_way, new_place, sizes_of

#: Seconds that a table may take until all sites of the quorum have its files.
ADOPTION_TIMEOUT_S = 3_600.0
_LOG = COMMIT_LOG.rstrip("/")
#: What is left of a table whose files did not move.
AS_IT_WAS = "the old table is as it was, and is no part of the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What was done with a table, or would be."""

    kind: TableKind
    #: Name in the log; `schema.table` of a commit table.
    table: str
    source: str
    source_version: int
    #: Of the files that are taken as they are; a row table's are copied once, if at all, to the
    #: disk of the payload store.
    way: FileWay
    #: Files that are taken as they are, those of deletion vectors too, and their bytes.
    files: int
    size_bytes: int
    #: What the new table does not keep.
    left_behind: list[str]
    #: What is left of the old table, for people; empty = nothing was done.
    left: str = ""
    #: Of a row table: its columns, rows and signature, `rows:lane0:lane1`.
    keys: list[str] = field(default_factory=list)
    partition_by: list[str] = field(default_factory=list)
    rows: int = 0
    signature: str = ""
    #: Files whose rows are written again for a row table, their bytes, and why.
    rewritten_files: int = 0
    rewritten_bytes: int = 0
    rewritten_because: dict[str, int] = field(default_factory=dict)
    #: Features of the old table; a commit table has all of them.
    features: list[str] = field(default_factory=list)
    #: Of the transaction that made a row table; empty and None = nothing was done.
    transaction_id: str = ""
    position: int | None = None
    #: An earlier call has done it.
    repeated: bool = False
    #: Features and properties that a commit table has, and the old table has not.
    new_features: list[str] = field(default_factory=list)
    new_properties: dict[str, str] = field(default_factory=dict)
    #: Of a commit table; empty = nothing was done.
    uuid: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"kind": self.kind.value}

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        became = "would begin" if not self.left else "began" if self.repeated else "begins"
        is_rows = self.kind is TableKind.ROW_TABLE
        keys = f"keys {', '.join(self.keys)}" if self.keys else "no keys"
        yield (
            f"{self.kind.value.replace('-', ' ')} {self.table} {became} with version "
            f"{self.source_version} of {self.source}"
            f"{f': {self.rows:,} rows, {keys}' if is_rows else ''}."
        )
        ways = {"link": "get a second name", "copy": "are copied", "move": "are moved"}
        yield f"{self.files:,} files of {self.size_bytes:,} bytes {ways[self.way]}."
        if self.rewritten_files:
            why = ", ".join(f"{one} ({count:,})" for one, count in self.rewritten_because.items())
            yield (
                f"The rows of {self.rewritten_files:,} files of {self.rewritten_bytes:,} bytes are "
                f"written again: {why}."
            )
        for what, names in {
            "Its features": self.features,
            "New features": self.new_features,
            "New properties": [f"{key} = {value}" for key, value in self.new_properties.items()],
            "Not kept": self.left_behind,
        }.items():
            if names:
                yield f"{what}: {', '.join(names)}."
        if self.position is not None:
            yield f"Transaction {self.transaction_id} at position {self.position:,}."
        if self.left:
            yield f"{self.left[0].upper()}{self.left[1:]}."


def adopt_commits(
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
    if found := plain.obstacles:
        raise in_the_way(TableKind.COMMIT_TABLE, plain.path, found)
    check_way(plain.path, link.get("/v1/info")["commit_table_url"], way)
    needed = _needed(plain)
    _check_free(link, name)
    planned = _planned(plain, name, way, needed)
    tell(f"{planned.files:,} files of {planned.size_bytes:,} bytes in version {plain.log.version}")
    if dry_run:
        return planned
    staged = link.stage(name)
    place = new_place(staged.location, link.url)
    try:
        place.take(plain.path, needed, way)
        first = plain.first_commit(staged.table_id, int(time.time() * 1000))
        place.write_first(first)
        check_unchanged(plain.path, plain.log.version, newest())
    except BaseException:  # nobody was asked to make it yet
        place.remove()
        raise
    try:
        tell("the files travel to the other sites")
        request = creation_of(read_commit_file(first), name.partition(".")[2], staged.location)
        link.create(name, request, timeout_s=timeout_s)
    except TxLogError as error:
        if error.definite:
            place.remove()
        raise
    left = (
        f"{AS_IT_WAS}; while spark_catalog knows it as {name}, DeltaTable.forName of the new one "
        "means the old one in .vacuum() and .detail()"
    )
    if way == "move":
        attic = Attic.of_commit_tables(directory_of(staged.location).parent)
        entry = {"table": name, "mark": staged.table_id}
        left = _taken_away(plain, newest(), needed, attic, entry)
    return replace(planned, uuid=staged.table_id, left=left)


def _needed(plain: PlainTable) -> dict[str, int]:
    """Return the files of the new table, with their bytes; all are there.

    Raises:
        InvalidRequestError: One is missing, or has another size (definite).
    """
    files = read_commit_file(plain.first_commit("", 1)).files
    found = sizes_of(plain.path, [file.path for file in files])
    wrong = []
    for file in files:
        size = found.get(file.path, -1)
        if size < file.size or (file.is_exact and size != file.size):
            wrong.append(file.path)
    if wrong:
        problem = f"{len(wrong):,} of {len(files):,} files are missing or have another size, "
        problems = [f"{problem}{wrong[0]!r} first"]
        raise in_the_way(TableKind.COMMIT_TABLE, plain.path, problems)
    return found


def in_the_way(kind: TableKind, source: str, obstacles: list[str]) -> InvalidRequestError:
    """Return the error of a Delta table that cannot become a table of a kind."""
    others = {
        TableKind.ROW_TABLE: "copy the rows into a new table, or adopt it --as commit-table, which "
        "keeps more of Delta's features.",
        TableKind.COMMIT_TABLE: "or copy the rows: CREATE TABLE … AS SELECT.",
    }
    return InvalidRequestError(
        f"{source} cannot become a {kind.value.replace('-', ' ')}: {'; '.join(obstacles)[:2000]}",
        hint=f"Mend that, {others[kind]}",
        field="path",
        value=source,
        obstacles=obstacles,
    )


def name_taken(name: str) -> NameTakenError:
    """Return the error of a name that a table of the log has."""
    return NameTakenError(f"table {name!r} exists", hint="Choose another name.", value=name)


def check_unchanged(path: str, version: int, newest: int) -> None:
    """Refuse a Delta table that somebody wrote to since it was read.

    Raises:
        CopyConflictError: Its newest version is another one (definite).
    """
    if newest != version:
        raise CopyConflictError(
            f"{path} was written meanwhile: it has version {newest}, after {version}",
            hint="Nothing was done.  Stop its writers, and try again; or let the log follow them, "
            "as a row table: sparktxlog table follow.",
            path=path,
            version=newest,
        )


def _check_free(link: CatalogLink, name: str) -> None:
    try:
        link.load(name)
    except (UnknownSchemaError, UnknownTableError):
        return  # a table makes its schema known
    raise name_taken(name)


def _planned(plain: PlainTable, name: str, way: FileWay, needed: dict[str, int]) -> Adoption:
    content = read_commit_file(plain.first_commit("its own", 1))
    assert content.metadata is not None, "a first commit has one"
    assert content.protocol is not None, "a first commit has one"
    old, had = plain.log.configuration, plain.log.features
    return Adoption(
        kind=TableKind.COMMIT_TABLE,
        table=name,
        source=plain.path,
        source_version=plain.log.version,
        way=way,
        files=len(needed),
        size_bytes=sum(needed.values()),
        new_features=sorted(content.protocol.features - had),
        new_properties={
            key: value
            for key, value in content.metadata.configuration.items()
            if old.get(key) != value
        },
        features=sorted(had),
        left_behind=plain.left_behind,
    )


def _taken_away(
    plain: PlainTable,
    newest: int,
    needed: Iterable[str],
    attic: Attic,
    entry: dict[str, str],
) -> str:
    """Remove what moved from the old table; return what is left of it.

    The log goes first: a reader finds no table, and never one that lacks files.
    """
    source = Path(plain.path)
    if newest != plain.log.version:
        return (
            f"the old table was written until version {newest}, the new one has version "
            f"{plain.log.version} of it: nothing was removed from {source}"
        )
    log, why = source / f".{_LOG}.moved", "its files moved to a commit table"
    try:
        move_durably(source / _LOG, log)
        try:
            kept = attic.keep(log, kind=Kind.LOG, why=why, source=source / _LOG, **entry)
        except OSError:
            move_durably(log, source / _LOG)  # the old table stays as it was
            raise
        for path in needed:
            (source / path).unlink(missing_ok=True)
    except OSError as error:
        return f"the old table could not be removed from {source}: {error}"
    shutil.rmtree(log, ignore_errors=True)  # second names and copies
    return (
        f"the old log is {kept.path}, {kept.id} in the attic; what only older versions had is left "
        f"in {source}"
    )
