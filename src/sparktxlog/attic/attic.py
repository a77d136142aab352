"""One attic: a directory of entries, each with a manifest.

    <root>/<id>/manifest.json    what it is, when and why it was put there, where it comes from
    <root>/<id>/content/…        what was set aside
    <root>/.draft-…, .gone-…     what a kill left of an entry that was being made or removed

The manifest is durable before the content moves there, by one rename.  So after a kill the content
is either where it was or in an entry that is listed; a repeated `put` uses a manifest without
content again.  An id never means another entry later: a second one gets a number after its name.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import time_ns
from typing import Any, Protocol

import msgspec

from sparktxlog.errors import InvalidRequestError
from sparktxlog.files.durability import (
    move_durably,
    place_tree,
    remove_at_once,
    storing,
    sync_directory,
    write_durably,
)

MANIFEST, CONTENT = "manifest.json", "content"
#: Where the attics of row tables and of commit tables are, below the root of the tables.
OF_LAKE, OF_COMMIT_TABLES = "_sparktxlog/attic", ".attic"
_DRAFT, _GONE = ".draft-", ".gone-"


class Kind(str, Enum):
    """What an entry holds; see the package."""

    DROPPED = "dropped"
    ROWS = "rows"
    TABLE = "table"
    BACKUP = "backup"
    QUEUE = "queue"
    FORK = "fork"
    FILES = "files"
    LOG = "log"
    #: Its manifest cannot be read.
    UNKNOWN = "unknown"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was set aside, as its manifest says."""

    id: str
    kind: Kind
    why: str
    #: Its table, empty = none.
    table: str = ""
    #: Distinguishes entries of a kind and table: an id of the act, or a position.
    mark: str = ""
    #: Path that it had.
    source: str = ""
    #: When it was put here, microseconds since 1970 UTC; 0 = unknown, or it is being filled.
    at: int = 0
    #: What else is known of an entry of its kind.
    facts: dict[str, Any] = {}
    #: Its directory now, or that in a bucket as a URL; not part of the manifest.
    directory: str = ""

    @property
    def path(self) -> Path:
        """Where its content is: a directory."""
        return Path(self.directory, CONTENT)

    @property
    def place(self) -> str:
        """Where its content is, for messages: a path, or the URL of a bucket."""
        return f"{self.directory}/{CONTENT}"


@dataclass(slots=True)
class Emptied:
    """What was removed of an attic; in a dry run what would be removed."""

    removed: list[Entry] = field(default_factory=list)
    #: Entries that stay.
    kept: int = 0
    files: int = 0
    #: Of the removed names; a file with another hard link still takes its space.
    size_bytes: int = 0


class Attic:
    """An attic; its methods block.

    Only one process at a time may put something of one kind, table and mark into it.

    Args:
        root: Its directory, made by the first entry; on the disk of what is moved there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of_lake(cls, lake: Path) -> Attic:
        """Return the attic of a replica's tables."""
        return cls(lake / OF_LAKE)

    @classmethod
    def of_node(cls, data_dir: Path) -> Attic:
        """Return the attic of what a node itself has."""
        return cls(data_dir / "attic")

    @classmethod
    def of_commit_tables(cls, root: Path) -> Attic:
        """Return the attic of the commit tables below a directory."""
        return cls(root / OF_COMMIT_TABLES)

    def place(self, kind: Kind, table: str, mark: str) -> Path:
        """Return where the newest content of a kind, table and mark is, or else would be."""
        found = self.newest(kind, table, mark)
        return found.path if found else self.root / entry_id(kind, table, mark) / CONTENT

    # -- putting -----------------------------------------------------------------------------------

    def put(
        self,
        path: Path,
        *,
        kind: Kind,
        why: str,
        table: str = "",
        mark: str = "",
        source: Path | str | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Entry:
        """Move a directory here, durably.

        Args:
            mark: As in `Entry`.
            source: Where it comes from, if it is a draft; None = `path`.

        Raises:
            OSError: It is where it was, or here and perhaps not durable; repeat it.
        """
        os.lstat(path)  # no manifest of nothing
        found = self._enter(
            Entry(
                id=entry_id(kind, table, mark),
                kind=kind,
                why=why,
                table=table,
                mark=mark,
                source=str(source or path),
                at=time_ns() // 1000,
                facts=facts or {},
            )
        )
        move_durably(path, found.path)
        return found

    def keep(self, path: Path, *, mark: str, **said: Any) -> Entry:
        """Keep the files of a directory under second names, or as copies; arguments as in `put`.

        Raises:
            OSError: Nothing is kept; repeat it.
        """
        with self.draft(mark) as draft:
            place_tree(path, draft)
            return self.put(draft, mark=mark, **{"source": path, **said})

    @contextmanager
    def draft(self, mark: str) -> Iterator[Path]:
        """Give the path of a directory to be made, and then put here; what is left of it goes."""
        path = self.root / f"{_DRAFT}{mark}"
        shutil.rmtree(path, ignore_errors=True)  # of a process that was killed
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def begin(self, kind: Kind, mark: str, why: str, *, table: str = "") -> Entry:
        """Return an entry that its caller fills, the same one until `finish`; it is durable.

        It stays at any age before `finish`.

        Raises:
            OSError: Repeat it.
        """
        found = self.newest(kind, table, mark)
        if found is None:
            made = Entry(id=entry_id(kind, table, mark), kind=kind, why=why, table=table, mark=mark)
            found = self._enter(made)
            found.path.mkdir()
            sync_directory(found.directory)
        return found

    def finish(self, entry: Entry) -> None:
        """Note that an entry was filled now; it may be repeated.

        Raises:
            OSError: It is there, and stays at any age; repeat it.
        """
        done = msgspec.structs.replace(entry, at=time_ns() // 1000, directory="")
        write_durably(Path(entry.directory) / MANIFEST, msgspec.json.encode(done))

    def _enter(self, entry: Entry) -> Entry:
        """Make the directory and manifest of an entry, durably."""
        number, wanted = 1, entry.id
        while os.path.lexists(self.root / entry.id / CONTENT):
            number += 1
            entry = msgspec.structs.replace(entry, id=f"{wanted}-{number}")
        directory = self.root / entry.id
        directory.mkdir(parents=True, exist_ok=True)
        write_durably(directory / MANIFEST, msgspec.json.encode(entry))
        for parent in (self.root, self.root.parent, self.root.parent.parent):
            sync_directory(parent)
        return msgspec.structs.replace(entry, directory=str(directory))

    # -- looking -----------------------------------------------------------------------------------

    def entries(self, kind: Kind | None = None, table: str | None = None) -> list[Entry]:
        """Return the entries, oldest first, of one kind or table if that is given.

        Raises:
            StorageError: The attic cannot be read.
        """
        found = [
            entry
            for entry in self._all()
            if kind in (None, entry.kind) and table in (None, entry.table)
        ]
        return sorted(found, key=lambda entry: (entry.at, entry.id))

    def newest(self, kind: Kind, table: str, mark: str) -> Entry | None:
        """Return the newest entry of a kind, table and mark, if there is one."""
        found = [entry for entry in self.entries(kind, table) if entry.mark == mark]
        return found[-1] if found else None

    def measured(self, entry: Entry) -> tuple[int, int]:
        """Return how many files an entry has, and their bytes.

        Raises:
            StorageError: It cannot be read, or was removed meanwhile.
        """
        with storing(entry.path):
            sizes = [one.lstat().st_size for one in entry.path.rglob("*") if not one.is_dir()]
        return len(sizes), sum(sizes)

    def contents(self, table: str) -> list[Path]:
        """Return the contents of all entries of a table, without a look at their manifests."""
        return [found / CONTENT for found in sorted(self.root.glob(f"[!.]*-{table}*"))]

    def _all(self) -> Iterator[Entry]:
        with storing(self.root), suppress(FileNotFoundError):
            for directory in sorted(self.root.iterdir()):
                if directory.name[0] != "." and (directory / CONTENT).exists():
                    yield _read(directory)

    # -- taking out --------------------------------------------------------------------------------

    def restore(self, entry: Entry, to: Path) -> None:
        """Give a new directory the files of an entry, under second names or as copies.

        The directory appears when it is whole.  The entry stays.

        Raises:
            InvalidRequestError: There is something at that path (definite).
            DiskFullError, StorageError: Nothing is there; repeat it.
        """
        refuse_taken(to)
        restoring = to.with_name(f".{to.name}.{uuid.uuid4().hex}.restoring")
        try:
            with storing(to):
                # A journal may be opened there, and written to.
                place_tree(entry.path, restoring, links=entry.kind is not Kind.FORK)
                move_durably(restoring, to)
        finally:
            shutil.rmtree(restoring, ignore_errors=True)

    def remove(self, entry: Entry) -> None:
        """Remove an entry for ever.

        Raises:
            StorageError: It is there, or parts of it are, which nobody finds and `empty` removes.
        """
        gone = self.root / f"{_GONE}{entry.id}-{uuid.uuid4().hex}"
        with storing(entry.directory):
            remove_at_once(Path(entry.directory), gone)

    def empty(
        self,
        older_than: int,
        *,
        stays: Callable[[Entry], bool] = lambda entry: False,
        dry_run: bool = False,
    ) -> Emptied:
        """Remove the entries that were put here before a time, and what kills left.

        Args:
            older_than: Microseconds since 1970 UTC.
            stays: Returns whether an entry stays at any age.

        Raises:
            StorageError: Some are removed; repeat it.
        """
        done = emptied(self, self.entries(), older_than, stays, dry_run)
        with storing(self.root):
            for left in () if dry_run else self.root.glob(".*"):
                if left.name.startswith(_GONE) or left.lstat().st_mtime_ns // 1000 < older_than:
                    shutil.rmtree(left)
        return done


class Removes(Protocol):
    """An attic, as far as it is emptied; methods as in `Attic`."""

    def measured(self, entry: Entry) -> tuple[int, int]:
        """As `Attic.measured`."""

    def remove(self, entry: Entry) -> None:
        """As `Attic.remove`."""


def emptied(
    attic: Removes,
    entries: Iterable[Entry],
    older_than: int,
    stays: Callable[[Entry], bool],
    dry_run: bool,
) -> Emptied:
    """Remove those of the entries of an attic that are old; the rest as in `Attic.empty`."""
    done = Emptied()
    for entry in entries:
        if not 0 < entry.at < older_than or stays(entry):
            done.kept += 1
            continue
        files, size_bytes = attic.measured(entry)
        try:
            if not dry_run:
                attic.remove(entry)
        except InvalidRequestError:  # somebody puts something into it now
            done.kept += 1
            continue
        done.removed.append(entry)
        done.files += files
        done.size_bytes += size_bytes
    return done


def attics_of(site: Mapping[str, Any]) -> tuple[Attic, ...]:
    """Return the attics of a site, the lake's first; directories are named as in `/v1/info`.

    There is one for each disk: what is set aside is renamed.
    """
    kept = site.get("backup_dir")
    return (
        Attic.of_lake(Path(site["lake_root"])),
        Attic.of_node(Path(site["log_root"]).parent),
        Attic.of_commit_tables(Path(site["commit_table_root"])),
        *([Attic(Path(kept))] if kept else ()),
    )


def refuse_taken(path: Path) -> None:
    """Refuse a path that has something.

    Raises:
        InvalidRequestError: It has (definite).
    """
    if os.path.lexists(path):
        raise InvalidRequestError(
            f"{path} exists already", hint="Name a new directory.", field="path", value=str(path)
        )


def entry_id(kind: Kind, table: str, mark: str) -> str:
    """Return the id of the first entry of a kind, table and mark."""
    return "-".join(part for part in (kind.value, table, mark) if part)


def _read(directory: Path) -> Entry:
    try:
        found = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Entry)
        return msgspec.structs.replace(found, id=directory.name, directory=str(directory))
    except (OSError, msgspec.MsgspecError) as error:
        why = f"its manifest cannot be read: {error}"
        return Entry(id=directory.name, kind=Kind.UNKNOWN, why=why, directory=str(directory))
