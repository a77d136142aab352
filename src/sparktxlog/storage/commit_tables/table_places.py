"""Directories of commit tables: staged commits, the files that they add, and published versions.

One directory below a root for each table, named by its UUID; Spark writes into it, and the node
reads what Spark staged and publishes versions.  What the node keeps for itself is in another
directory, so that a table's own one holds nothing but the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from sparktxlog.codec.delta_catalog.commit_contents import NeededFile
from sparktxlog.errors import CorruptLogError, NotOfferedError, StagedCommitError
from sparktxlog.storage.durability import (
    storing,
    sync_directory,
    sync_file,
    sync_parents,
    write_durably,
)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LOG, _STAGED = "_delta_log", "_staged_commits"
#: Longest commit file, bytes: some hundred thousand files.
MAX_COMMIT_BYTES = 256 << 20


class TablePlaces:
    """The directories of this site's commit tables; its methods block.

    Args:
        root: Directory of tables, which node and Spark executors share.
        kept: Directory of copies of staged commits that are about to be ordered.
    """

    def __init__(self, root: Path, kept: Path) -> None:
        self._root = root
        self._kept = kept

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

    # -- commits that are about to be ordered ------------------------------------------------------

    def keep(self, uuid: str, version: int, transaction_id: bytes, content: bytes) -> None:
        """Keep a copy of a staged commit: whatever happens to the file, this is what is ordered."""
        path = self._copy(uuid, version, transaction_id)
        with storing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, content)
            sync_parents([path], self._kept.parent)

    def kept(self, uuid: str, version: int, transaction_id: bytes) -> bytes | None:
        """Return the copy of a staged commit, None = it is not kept any more."""
        try:
            return self._copy(uuid, version, transaction_id).read_bytes()
        except FileNotFoundError:
            return None

    def forget(self, uuid: str, version: int, transaction_id: bytes) -> None:
        """Remove the copy of a staged commit."""
        self._copy(uuid, version, transaction_id).unlink(missing_ok=True)

    def forget_up_to(self, uuid: str, version: int) -> None:
        """Remove all copies of staged commits that can only lose once a version is published."""
        for path in (self._kept / uuid).glob("*.json"):
            if int(path.name.partition(".")[0]) <= version:
                path.unlink(missing_ok=True)

    def _copy(self, uuid: str, version: int, transaction_id: bytes) -> Path:
        return self._kept / uuid / f"{version}.{transaction_id.hex()}.json"

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
