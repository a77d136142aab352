"""Directories of commit tables: staged commits, the files that they add, and published versions.

One directory below a root for each table, named by its UUID; Spark writes into it, and the node
reads what Spark staged, and places what was ordered: the files of a version, then its commit file.

Nothing here is synced when a commit is taken or placed.  What was taken is durable in the journal
or the payload store, before the log promises anything.  So the node places again what a power loss
takes from here: `sync` is called before the journal says that it need not.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import structlog

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.commit_contents import NeededFile
from sparktxlog.delta.log_files import STAGED_COMMITS, commits_in, log_of
from sparktxlog.errors import BusyError, CorruptLogError, NotOfferedError, StagedCommitError
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.storage.durability import (
    free_name,
    parents_up_to,
    read_whole,
    storage_error,
    storing,
    sync_directory,
    sync_parents,
    sync_several,
)
from sparktxlog.storage.foreign_files import ForeignFile, Linked, foreign_file, goes_on

_log = structlog.get_logger("sparktxlog.tables")

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Where commit files have a second name, below the root: Delta cleans up those before a checkpoint,
#: and a site that joins later needs them.
KEPT_COMMITS = ".commits"
#: Where transactions of Spark have their plain twins, below the root: a job that is killed leaves
#: one there, which only has further names of the table's files, and what the job wrote.
TRANSACTION_TWINS = ".transactions"
#: Longest commit file, bytes: some hundred thousand files.
MAX_COMMIT_BYTES = 256 << 20
#: Most bytes of all that are read and decoded at once before they are ordered.
_MOST_BYTES = MAX_COMMIT_BYTES + MAX_COMMIT_BYTES // 2


def set_tables_aside(root: Path, name: str) -> None:
    """Move all tables of a node that leaves its history to their attic, durably.

    Args:
        name: Of the act.

    Raises:
        OSError: Some may be moved; try again.
    """
    attic, why = Attic.of_commit_tables(root), "the node left a history that others do not have"
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        if _UUID.fullmatch(directory.name):
            attic.put(directory, kind=Kind.FORK, table=directory.name, mark=name, why=why)
        elif directory.name == KEPT_COMMITS:
            attic.put(directory, kind=Kind.FORK, mark=name, why=why)


class TablePlaces:
    """The directories of this site's commit tables; its methods block.

    Args:
        root: Directory of tables, which node and Spark executors share.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        #: How many bytes of staged commit files may still be in memory.
        self._left, self._counting = _MOST_BYTES, threading.Lock()

    @cached_property
    def arrivals(self) -> Arrivals:
        """The same directories, for files of peers: `<UUID>/<path below the table>`."""
        return Arrivals(self._root)

    # -- places ------------------------------------------------------------------------------------

    def make(self, uuid: str) -> None:
        """Make the empty directory of a table that is to be created.

        Raises:
            NotOfferedError: Its URL would not be its path (definite).
        """
        if quote(str(self._root)) != str(self._root):
            raise NotOfferedError(
                f"commit-table-dir {str(self._root)!r} has characters that a URL escapes, and "
                "Delta's clients differ in what they make of them",
                hint="Set commit-table-dir to a path of letters, digits and '_.-~/'.",
                field="commit-table-dir",
                value=str(self._root),
            )
        with storing(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            (self._root / uuid).mkdir()
            sync_directory(self._root)

    def drop_unused(self, uuid: str) -> None:
        """Remove the directory of a table that was never created, if nothing was written there."""
        with suppress(OSError):
            (self._root / uuid).rmdir()

    def has(self, uuid: str) -> bool:
        """Return whether the table has a directory here."""
        place = self._root / uuid
        return _UUID.fullmatch(uuid) is not None and place.is_dir() and not place.is_symlink()

    def location(self, uuid: str) -> str:
        """Return the URL of a table's directory, as Hadoop writes it."""
        return f"file:{self._root}/{uuid}"

    def uuid_at(self, location: str) -> str | None:
        """Return the table whose directory a URL names, if it has one; None = none of this site."""
        try:
            parts = urlsplit(location)
        except ValueError:  # brackets that hold no address
            return None
        path = Path(unquote(parts.path))
        if parts.scheme not in ("", "file") or parts.netloc or path.parent != self._root:
            return None
        return path.name if _UUID.fullmatch(path.name) else None

    # -- what Spark wrote --------------------------------------------------------------------------

    def first(self, uuid: str) -> AbstractContextManager[bytes]:
        """Give the commit file of version 0; its bytes count until the block is left.

        Raises:
            StagedCommitError: There is none (definite).
            BusyError: Too many commit files are being read (definite).
        """
        return self._read(self._version(uuid, 0), "location")

    @contextmanager
    def staged(self, uuid: str, name: str, size: int) -> Iterator[bytes]:
        """Give a staged commit file; as `first`.

        Raises:
            StagedCommitError: There is none, or it has another size (definite).
            BusyError: Too many commit files are being read (definite).
        """
        with self._read(self._root / uuid / STAGED_COMMITS / name, "file-name") as content:
            if len(content) != size:
                raise StagedCommitError(
                    f"file-size is {size:,}, staged commit {name!r} has {len(content):,} bytes",
                    field="file-size",
                    value=size,
                )
            yield content

    @contextmanager
    def _read(self, path: Path, field: str) -> Iterator[bytes]:
        file = foreign_file(self._root, path)
        with _reading_staged(path, field):
            size = file.size()
        if size > MAX_COMMIT_BYTES:
            raise StagedCommitError(
                f"{path} has more than {MAX_COMMIT_BYTES:,} bytes", field=field, value=path.name
            )
        with self._taken(size):
            with _reading_staged(path, field):
                content = file.read(size)
            yield content

    @contextmanager
    def _taken(self, size: int) -> Iterator[None]:
        """Count bytes of a commit file that is read and decoded, while the block runs."""
        with self._counting:
            if size > self._left:
                raise BusyError(
                    f"the commit files that are being read have more than {_MOST_BYTES:,} bytes "
                    "together",
                    hint="Try again in a moment.",
                )
            self._left -= size
        try:
            yield
        finally:
            with self._counting:
                self._left += size

    def check(self, uuid: str, files: Iterable[NeededFile]) -> None:
        """Check that the files of a commit are here, by their sizes.

        Raises:
            StagedCommitError: One is missing or has another size (definite).
        """
        for file in files:
            try:
                size = self.file(uuid, file.path).size()
                found = f"has {size:,} bytes"
            except FileNotFoundError:
                size, found = -1, "is not at this site"
            except OSError as error:
                size, found = -1, f"cannot be taken: {error.strerror}"
            if size < max(0, file.size) or (file.is_exact and size != file.size):
                raise StagedCommitError(
                    f"the commit adds {file.path!r} of {file.size:,} bytes, which {found}",
                    field="add.path",
                    value=file.path[:120],
                )

    # -- what was ordered --------------------------------------------------------------------------

    def path(self, uuid: str, relative: str) -> Path:
        """Return the place of a file of a table; `relative` was checked."""
        return self._root / uuid / relative

    def file(self, uuid: str, relative: str) -> ForeignFile:
        """Return a file of a table, to be opened; `relative` was checked."""
        return ForeignFile(str(self._root), f"{uuid}/{relative}")

    def read(self, path: str) -> bytes:
        """Return the bytes of a file of the payload store, or of one that waits to be published.

        Raises:
            StorageError: It cannot be read.
        """
        with storing(path):
            return read_whole(path)

    def place(self, uuid: str, sources: Mapping[str, str | bytes]) -> set[str]:
        """Give files their places in a table's directory; what is there already stays.

        Another file in the place of one goes to the attic: no version has it, or it was damaged.
        So does a writer's own large one that lost bytes with the power.

        Args:
            sources: Path below the table → the file, which is whole and durable, or its bytes.

        Returns:
            What has to be synced before the files need not be placed again.

        Raises:
            CorruptLogError: Another file has that place.
            DiskFullError, StorageError: Some may be placed; try again.
        """
        directory = f"{self._root}/{uuid}"
        with storing(directory):
            # A writer stages there; it makes no directory in a table that it did not create.
            if not os.path.isdir(f"{directory}/{STAGED_COMMITS}"):
                self.file(uuid, f"{STAGED_COMMITS}/x").make_parent()
        unsynced = {str(log_of(Path(directory))), directory, str(self._root)}
        for relative, source in sources.items():
            path = f"{directory}/{relative}"
            with storing(path):
                if "/" in relative:
                    unsynced.update(map(str, parents_up_to([path], self._root)))
                place = self.file(uuid, relative).put(source)
            if place is Linked.OTHER:
                _log.warning("a file of a table was not the one that the log has", path=path)
                self.set_aside(uuid, relative)
                with storing(path):
                    place = self.file(uuid, relative).put(source)
            if place is Linked.OTHER:
                raise CorruptLogError(
                    f"{path} is not the file that the log has",
                    hint="Somebody writes into the table's directory. Move the file away; the node "
                    "then places the right one.",
                    path=path,
                )
            if place is not Linked.SAME:
                unsynced.add(path)
        return unsynced

    def set_aside(self, uuid: str, path: str) -> None:
        """Move a file of a table to the attic, if there is one."""
        place = self.path(uuid, path)
        if not os.path.lexists(place):
            return
        attic = Attic.of_commit_tables(self._root)
        with storing(place):
            why = "other files were in the places of the log's"
            entry = attic.begin(Kind.FILES, "", why, table=uuid)
            attic.finish(entry)
            other = foreign_file(self._root, free_name(entry.path / path))
            if self.file(uuid, path).move_to(other):
                sync_parents([other.path], self._root)

    def found(self, uuid: str, versions: range, files: Iterable[NeededFile]) -> set[str]:
        """Return what has to be synced of versions that somebody else put into the directory."""
        paths = {self._root / uuid / file.path for file in files}
        paths |= {self._version(uuid, version) for version in versions}
        return set(map(str, paths.union(parents_up_to(paths, self._root))))

    def sync(self, paths: Iterable[str]) -> None:
        """Bring placed files and the names in directories to the disk, if they are there still.

        Raises:
            StorageError: The disk fails.
        """
        sync_several(sorted(paths, reverse=True))  # names after what they name

    # -- published versions ------------------------------------------------------------------------

    def published(self, uuid: str, version: int) -> bytes | None:
        """Return the commit file of a published version, None = it is not published.

        Raises:
            StorageError: It is no plain file, or the disk fails.
        """
        file = self.file(uuid, commit_file_name(version))
        try:
            return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, file.path) from error

    def is_published(self, uuid: str, version: int) -> bool:
        """Return whether a version's commit file is in its place."""
        path = self._version(uuid, version)
        goes_on(path)
        return path.exists()

    def versions(self, uuid: str) -> list[int]:
        """Return the published versions, ascending."""
        return commits_in(self._root / uuid)

    def kept_commit(self, uuid: str, version: int) -> ForeignFile:
        """Return the second name of a commit file; its user compares its digest."""
        name = self._version(uuid, version).name
        return ForeignFile(str(self._root), f"{KEPT_COMMITS}/{uuid}/{name}")

    def keep_commits(self, uuid: str, versions: Iterable[int] | None) -> None:
        """Give published commit files a second name, unless they have one.

        A power loss may take it away again, while Delta is far from cleaning up the first one.

        Args:
            versions: None = all that lack one.

        Raises:
            DiskFullError, StorageError: Some may lack it; try again.
        """
        kept = self._root / KEPT_COMMITS / uuid
        with storing(kept):
            foreign_file(self._root, kept / "x").make_parent()
            if versions is None:
                names = {path.stem for path in kept.iterdir()}
                versions = (v for v in self.versions(uuid) if f"{v:020}" not in names)
            for version in versions:
                commit = self.file(uuid, commit_file_name(version))
                with suppress(FileNotFoundError, FileExistsError):  # Delta was faster; it has one
                    commit.link_as(self.kept_commit(uuid, version), replaces=False)

    def publish(self, uuid: str, version: int, source: str | bytes) -> set[str]:
        """Publish a version, unless it is; return what has to be synced, as `place`.

        Args:
            source: Its commit file, which is whole and durable, or the bytes of that.

        Raises:
            CorruptLogError: The version is published with other bytes.
        """
        path = f"{self._root}/{uuid}/{commit_file_name(version)}"
        with storing(path):
            place = self.file(uuid, commit_file_name(version)).put(source)
        if place is Linked.OTHER:
            raise CorruptLogError(
                f"{path} is not the commit that the log has as version {version}",
                hint="Somebody wrote into the table's directory. Move the file away; the node "
                "then publishes the right one.",
                path=path,
            )
        return set() if place is Linked.SAME else {path}

    def _version(self, uuid: str, version: int) -> Path:
        return self._root / uuid / commit_file_name(version)


@contextmanager
def _reading_staged(path: Path, field: str) -> Iterator[None]:
    """Say why a file that a writer should have staged cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise StagedCommitError(
            f"there is no file {path} at this site",
            hint="Stage the commit at the location that this node gave, on storage that node "
            "and Spark share.",
            field=field,
            value=path.name,
        ) from None
    except OSError as error:
        raise StagedCommitError(
            f"{path} cannot be read: {error.strerror}", field=field, value=path.name
        ) from error
