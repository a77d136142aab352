"""Commit tables in an image: which files make a table at a version, and how they come back.

A commit table is its commit files from version 0 on, and the files that they add.  Names and bytes
are equal at all sites, and written files never change.  So a table is backed up while it is
written, is restored to any site of its log, and may be restored over what is there already.
"""

from __future__ import annotations

import hashlib
import os
import uuid as uuids
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.delta.commit_contents import LiveFiles, read_commit_file
from sparktxlog.delta.log_files import newest_version
from sparktxlog.errors import InvalidRequestError, StagedCommitError, StorageError
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.storage.durability import storing, sync_directory, sync_parents
from sparktxlog.worker.backup.image_store import Image, ImageFile, ImageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCommitTable:
    """A commit table of a site that is to be backed up."""

    directory: Path
    uuid: str
    #: Empty = no node was asked.
    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTables:
    """What a restore of commit tables did."""

    tables: int = 0
    #: Files that were written, and files that were there already.
    written: int = 0
    found: int = 0


def commit_tables_below(
    root: Path, shown: Mapping[str, tuple[str, int]] | None = None
) -> list[KeptCommitTable]:
    """Return the commit tables of a site, each at its newest version.

    Args:
        root: Directory of the site's commit tables.
        shown: UUID → name and placed version, as the node shows them; None = no node was asked:
            then all tables in the directory, dropped ones too, up to their last version without a
            gap.
    """
    if shown is not None:
        found = ((uuid, name, version) for uuid, (name, version) in shown.items())
    else:
        names = sorted(path.name for path in root.glob("*")) if root.is_dir() else []
        found = ((one, "", newest_version(root / one, -1)) for one in names if _is_uuid(one))
    return [
        KeptCommitTable(directory=root / uuid, uuid=uuid, name=name, version=version)
        for uuid, name, version in found
        if version >= 0
    ]


def _is_uuid(name: str) -> bool:
    try:
        return str(uuids.UUID(name)) == name
    except ValueError:
        return False


def commit_table_files(table: KeptCommitTable) -> dict[str, int | None]:
    """Return the files of a table: path below its directory → bytes, None = not recorded.

    Files that no reader of the newest version needs may be gone.

    Raises:
        StorageError: A file that is needed is missing, or a commit cannot be read.
    """
    files: dict[str, int | None] = {}
    live = LiveFiles()
    for version in range(table.version + 1):
        path = commit_file_name(version)
        try:
            with storing(table.directory / path):
                content = read_commit_file((table.directory / path).read_bytes())
        except StagedCommitError as error:
            raise _unfit(table, f"version {version} cannot be read: {error.message}") from error
        live.follow(content)
        files |= {file.path: file.size if file.is_exact else None for file in content.files}
        files[path] = None
    for path in [path for path in files if not (table.directory / path).exists()]:
        if path in live.needed:
            raise _unfit(table, f"file {path!r} is missing")
        del files[path]
    return files


def _unfit(table: KeptCommitTable, problem: str) -> StorageError:
    return StorageError(
        f"commit table {table.name or table.uuid!r} cannot be backed up: {problem}",
        hint="Mend it first: sparktxlog repair, with the table's name.",
        uuid=table.uuid,
    )


def restore_commit_tables(
    store: ImageStore, image: Image, root: Path, tell: Callable[[str], None] = lambda _: None
) -> RestoredTables:
    """Write the commit tables of an image below a directory; the node there takes them up.

    Files come before the commits that name them, each whole or not at all, so it may be repeated,
    and a node may run.

    Args:
        root: `commit-table-dir` of the node.
        tell: Called with the name of each table.

    Raises:
        InvalidRequestError: Another file has the place of one (definite: it is not overwritten).
        CorruptLogError: A file of the image is missing or damaged.
        StorageError: A file could not be written.
    """
    written = found = 0
    for uuid, table in sorted(image.commit_tables.items()):
        tell(table.name or uuid)
        if not _is_uuid(uuid):
            raise InvalidRequestError(
                f"{uuid[:80]!r} is no UUID of a commit table", value=uuid[:80]
            )
        commits = {commit_file_name(version) for version in range(table.version + 1)}
        for file in sorted(table.files, key=lambda one: (one.path in commits, one.path)):
            path = root / uuid / check_relative_path(file.path)
            if _is_there(path, file):
                found += 1
                continue
            _write(store, file, path, root)
            written += 1
    return RestoredTables(tables=len(image.commit_tables), written=written, found=found)


def _is_there(path: Path, file: ImageFile) -> bool:
    """Return whether a file is there already.

    Raises:
        InvalidRequestError: Another one is (definite).
    """
    with storing(path):
        if not path.exists():
            return False
        with path.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() == file.digest:
                return True
    raise InvalidRequestError(
        f"{path} is another file than the image has",
        hint="Nothing is overwritten: restore elsewhere, or move the table's directory away.",
        path=str(path),
    )


def _write(store: ImageStore, file: ImageFile, path: Path, root: Path) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with fresh.open("wb") as written:
                written.writelines(store.blocks(file, f"file {file.path}"))
                written.flush()
                os.fsync(written.fileno())
            os.utime(fresh, ns=(file.modified_at * 1000, file.modified_at * 1000))
            os.link(fresh, path)  # fails if somebody else was first
        finally:
            fresh.unlink(missing_ok=True)
        sync_parents([path], root)
        sync_directory(root)
