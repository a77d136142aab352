"""Directories of commit tables: staged commits, the files that they add, and published versions.

One directory below a root for each table, named by its UUID; Spark writes into it, and the node
reads what Spark staged, and places what was ordered: the files of a version, then its commit file.
"""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from sparktxlog.codec.delta_catalog.commit_contents import NeededFile
from sparktxlog.errors import CorruptLogError, NotOfferedError, StagedCommitError
from sparktxlog.storage.durability import (
    free_name,
    link_or_copy,
    storing,
    sync_directory,
    sync_file,
    sync_parents,
)
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Where tables of an abandoned history are, below the root.
SET_ASIDE = ".set-aside"
_LOG, _STAGED = "_delta_log", "_staged_commits"
#: Longest commit file, bytes: some hundred thousand files.
MAX_COMMIT_BYTES = 256 << 20


def set_tables_aside(root: Path, name: str) -> None:
    """Move all tables of a node that leaves its history to `<root>/.set-aside/<name>`, durably.

    Raises:
        OSError: Some may be moved; try again.
    """
    if not root.is_dir():
        return
    aside = root / SET_ASIDE / name
    for directory in sorted(root.iterdir()):
        if _UUID.fullmatch(directory.name):
            aside.mkdir(parents=True, exist_ok=True)
            directory.rename(free_name(aside / directory.name))
    if aside.is_dir():
        sync_parents([aside / "x"], root)


class TablePlaces:
    """The directories of this site's commit tables; its methods block.

    Args:
        root: Directory of tables, which node and Spark executors share.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def store(self) -> LocalPayloadStore:
        """The same directories, to receive files from peers: `<UUID>/<path below the table>`."""
        return LocalPayloadStore(self._root)

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

    def has(self, uuid: str) -> bool:
        """Return whether the table has a directory here."""
        return _UUID.fullmatch(uuid) is not None and (self._root / uuid).is_dir()

    def location(self, uuid: str) -> str:
        """Return the URL of a table's directory, as Hadoop writes it."""
        return f"file:{self._root / uuid}"

    def uuid_at(self, location: str) -> str | None:
        """Return the table whose directory a URL names, None = none of this site."""
        parts = urlsplit(location)
        path = Path(unquote(parts.path))
        if parts.scheme not in ("", "file") or parts.netloc or path.parent != self._root:
            return None
        return path.name if self.has(path.name) else None

    # -- what Spark wrote --------------------------------------------------------------------------

    def first(self, uuid: str) -> bytes:
        """Return the commit file of version 0, brought to the disk.

        Raises:
            StagedCommitError: There is none (definite).
        """
        return self._read(self._version(uuid, 0), "location")

    def staged(self, uuid: str, name: str, size: int) -> bytes:
        """Return a staged commit file, brought to the disk.

        Raises:
            StagedCommitError: There is none, or it has another size (definite).
        """
        content = self._read(self._root / uuid / _LOG / _STAGED / name, "file-name")
        if len(content) != size:
            raise StagedCommitError(
                f"file-size is {size:,}, staged commit {name!r} has {len(content):,} bytes",
                field="file-size",
                value=size,
            )
        return content

    def _read(self, path: Path, field: str) -> bytes:
        try:
            if path.stat().st_size > MAX_COMMIT_BYTES:
                raise StagedCommitError(
                    f"{path} has more than {MAX_COMMIT_BYTES:,} bytes", field=field, value=path.name
                )
            content = path.read_bytes()
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
        with storing(path):
            sync_file(path)
        return content

    def secure(self, uuid: str, files: Iterable[NeededFile]) -> None:
        """Check that the files of a commit are here, and bring them to the disk.

        Raises:
            StagedCommitError: One is missing or has another size (definite).
        """
        directory = self._root / uuid
        paths = []
        for file in files:
            path = directory / file.path
            try:
                size = path.stat().st_size
            except OSError:
                size = -1
            if size < file.size or (file.is_exact and size != file.size):
                found = "is not at this site" if size < 0 else f"has {size:,} bytes"
                raise StagedCommitError(
                    f"the commit adds {file.path!r} of {file.size:,} bytes, which {found}",
                    field="add.path",
                    value=file.path[:120],
                )
            paths.append(path)
        with storing(directory):
            for path in paths:
                sync_file(path)
            # The names of the commit files, too; a table that has version 0 only may have no
            # staged one.
            commits = [directory / _LOG / "x", directory / _LOG / _STAGED / "x"]
            paths += [path for path in commits if path.parent.is_dir()]
            sync_parents(paths, self._root)

    # -- what was ordered --------------------------------------------------------------------------

    def path(self, uuid: str, relative: str) -> Path:
        """Return the place of a file of a table; `relative` was checked."""
        return self._root / uuid / relative

    def read(self, path: str) -> bytes:
        """Return the bytes of a file of the payload store.

        Raises:
            StorageError: It cannot be read.
        """
        with storing(path):
            return Path(path).read_bytes()

    def place(self, uuid: str, sources: Mapping[str, str]) -> None:
        """Give files their places in a table's directory, durably; what is there already stays.

        Args:
            sources: Path below the table → the file, which is whole and durable.

        Raises:
            CorruptLogError: Another file has that place.
            DiskFullError, StorageError: Some may be placed; try again.
        """
        directory = self._root / uuid
        with storing(directory):
            # A writer stages there; it makes no directory in a table that it did not create.
            (directory / _LOG / _STAGED).mkdir(parents=True, exist_ok=True)
        for relative, source in sources.items():
            path = directory / relative
            with storing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                is_same = link_new(Path(source), path)
            if not is_same:
                raise CorruptLogError(
                    f"{path} is not the file that the log has",
                    hint="Somebody wrote into the table's directory. Move the file away; the node "
                    "then places the right one.",
                    path=str(path),
                )
        with storing(directory):
            sync_parents([directory / relative for relative in sources], self._root)
            sync_directory(directory)
            sync_directory(self._root)

    # -- published versions ------------------------------------------------------------------------

    def published(self, uuid: str, version: int) -> bytes | None:
        """Return the commit file of a published version, None = it is not published."""
        try:
            return self._version(uuid, version).read_bytes()
        except FileNotFoundError:
            return None

    def publish(self, uuid: str, version: int, content: bytes) -> None:
        """Publish a version, unless it is; it then survives a power loss.

        Raises:
            CorruptLogError: The version is published with other bytes.
        """
        path = self._version(uuid, version)
        with storing(path):
            found = self.published(uuid, version)
            if found is None:
                beside = path.with_name(f".{path.name}.{os.getpid()}.new")
                beside.write_bytes(content)
                sync_file(beside)
                try:
                    os.link(beside, path)  # fails if somebody else was first
                except FileExistsError:
                    found = self.published(uuid, version)
                finally:
                    beside.unlink()
        if found is not None and found != content:
            raise CorruptLogError(
                f"{path} is not the commit that the log has as version {version}",
                hint="Somebody wrote into the table's directory. Move the file away; the node "
                "then publishes the right one.",
                path=str(path),
            )
        with storing(path):
            sync_file(path)
            sync_directory(path.parent)

    def _version(self, uuid: str, version: int) -> Path:
        return self._root / uuid / _LOG / f"{version:020}.json"


def link_new(source: Path, target: Path) -> bool:
    """Give a file a second name that is free; return whether the name then is of that file.

    Where there are no hard links, it is copied.
    """
    if target.exists():
        return _is_same(source, target)
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        link_or_copy(source, beside)
        os.link(beside, target)  # fails if somebody else was first
    except FileExistsError:
        return _is_same(source, target)
    finally:
        beside.unlink(missing_ok=True)
    return True


def _is_same(one: Path, other: Path) -> bool:
    return one.samefile(other) or filecmp.cmp(one, other, shallow=False)
