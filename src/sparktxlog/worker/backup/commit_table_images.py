"""Commit tables in an image: which files make a table at a version, and how they come back.

A commit table is its commit files from version 0 on, and the files that they add.  Names and bytes
are equal at all sites, and written files never change.  So a table is backed up while it is
written, is restored to any site of its log, and may be restored over what is there already.
"""

from __future__ import annotations

import filecmp
import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from sparktxlog.delta.commit_contents import LiveFiles, read_commit_file
from sparktxlog.delta.log_files import commits_in, is_in_log, store_of
from sparktxlog.errors import InvalidRequestError, StagedCommitError, StorageError
from sparktxlog.files.durability import place_durably, storing
from sparktxlog.files.tasks import FileTask
from sparktxlog.files.workspace import COPIES, CopyWorkspace, remove_workspaces
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.tables.commit_table import UUID_NAME, commit_file_name
from sparktxlog.storage.commit_tables.table_places import GIVEN
from sparktxlog.storage.lock import DirectoryLock
from sparktxlog.worker.backup.image import Image
from sparktxlog.worker.backup.image_store import ImageStore
from sparktxlog.worker.backup.originals import DiskTable, StoredTable, TableFiles
from sparktxlog.worker.lakes.lake_places import is_in_bucket
from sparktxlog.worker.tables.places_of_tables import store_of_job


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCommitTable:
    """A commit table of a site that is to be backed up."""

    #: Of all commit tables of the site: a directory, or a URL.
    root: str | Path
    uuid: str
    #: Empty = no node was asked.
    name: str
    version: int

    def files(self) -> TableFiles:
        """Return its files, as they are from now on."""
        return files_of(self.root, self.uuid)


def files_of(root: str | Path, uuid: str) -> TableFiles:
    """Return the files of a commit table below a directory or a URL; errors as `store_at`."""
    if is_in_bucket(root):
        return StoredTable(store_of_job(str(root)), uuid)
    return DiskTable(Path(root) / uuid)


def commit_tables_below(
    root: str | Path, shown: Mapping[str, tuple[str, int]] | None = None
) -> list[KeptCommitTable]:
    """Return the commit tables of a site, each at its newest version.

    Args:
        root: Directory of the site's commit tables, or their URL, which the environment reaches.
        shown: UUID → name and placed version, as the node shows them; None = no node was asked:
            then all tables there, dropped ones too, up to their last version without a gap.

    Raises:
        ConfigError, MissingDependencyError: As `store_at`, for a URL.
        StorageError: As `Store`, for a URL.
    """
    if shown is not None:
        found = [(uuid, name, version) for uuid, (name, version) in shown.items()]
    else:
        tables = [files_of(root, one) for one in _uuids_below(root)]
        found = [(one.name, "", _last_of(commits_in(one.place))) for one in tables]
    return [
        KeptCommitTable(root=root, uuid=uuid, name=name, version=version)
        for uuid, name, version in found
        if version >= 0
    ]


def _uuids_below(root: str | Path) -> list[str]:
    if is_in_bucket(root):
        names = store_of_job(str(root)).names(GIVEN)
    else:
        names = [path.name for path in Path(root).glob("*")]
    return sorted(name for name in names if UUID_NAME.fullmatch(name))


def _last_of(versions: Sequence[int]) -> int:
    """Return the last version before a gap, -1 = there is none."""
    return next(
        (
            one
            for one, following in zip_longest(versions, versions[1:], fillvalue=-1)
            if following != one + 1
        ),
        -1,
    )


def commit_table_files(
    table: KeptCommitTable, source: TableFiles
) -> tuple[dict[str, int | None], set[str]]:
    """Return the files of a table: path below it → bytes, None = not recorded.

    Files that no reader of the newest version needs may be gone.

    Args:
        source: Its files.

    Returns:
        All that are there, and which of them may go at any time.

    Raises:
        StorageError: A file that is needed is missing, or a commit cannot be read.
    """
    files: dict[str, int | None] = {}
    live, store = LiveFiles(), store_of(source.place)
    paths = [commit_file_name(version) for version in range(table.version + 1)]
    contents = iter(source.read_all(paths))
    for version, path in enumerate(paths):
        try:
            with storing(store.url_of(path)):
                content = read_commit_file(next(contents))
        except StagedCommitError as error:
            raise _unfit(table, f"version {version} cannot be read: {error.message}") from error
        live.follow(content)
        files |= {file.path: file.size if file.is_exact else None for file in content.files}
        files[path] = None
    for path in [path for path in files if not source.has(path)]:
        if path in live.needed:
            raise _unfit(table, f"file {path!r} is missing")
        del files[path]
    needed = live.needed
    return files, {path for path in files if path not in needed and not is_in_log(path)}


def _unfit(table: KeptCommitTable, problem: str) -> StorageError:
    return StorageError(
        f"commit table {table.name or table.uuid!r} cannot be backed up: {problem}",
        hint="Mend it first: sparktxlog repair, with the table's name.",
        uuid=table.uuid,
    )


def restore_commit_tables(store: ImageStore, image: Image, root: str | Path) -> tuple[int, int]:
    """Write the commit tables of an image below a directory; the node there takes them up.

    All files are staged and compared first.  Then each is linked to its place, those before the
    commits that name them, so it may be repeated, and a node may run.

    Returns:
        Files that were written, and files that were there already.

    Args:
        root: `commit-table-dir` of the node, or its `commit-table-url`.

    Raises:
        InvalidNameError, InvalidRequestError: The image names a file outside of its tables, or
            another file has the place of one (definite: nothing was changed).
        LockedError: Another restore writes there (definite).
        CorruptLogError: A file of the image is missing or damaged; nothing was changed.
        StorageError: A file could not be written.
    """
    if is_in_bucket(root):
        from sparktxlog.worker.backup.bucket_restoring import restore_below

        return restore_below(store, image, str(root))
    root, tasks = Path(root), list[FileTask]()
    for uuid, table in sorted(image.commit_tables.items()):
        if not UUID_NAME.fullmatch(uuid):
            raise InvalidRequestError(
                f"{uuid[:80]!r} is no UUID of a commit table", value=uuid[:80]
            )
        commits = {commit_file_name(version) for version in range(table.version + 1)}
        files = sorted(table.files, key=lambda one: (one.path in commits, one.path))
        tasks += [FileTask.of(uuid, file) for file in files if check_relative_path(file.path)]
    # Two at once would write the same parts.
    lock = DirectoryLock(root / COPIES)
    try:
        workspace = CopyWorkspace(root, image.name)
        store.fetch(image, workspace, tasks, lambda done, total: None)
        written = _give_places(root, workspace, tasks)
        remove_workspaces(root)
    except InvalidRequestError:
        remove_workspaces(root)  # nobody goes on with it
        raise
    finally:
        lock.release()
    return written, len(tasks) - written


def _give_places(root: Path, workspace: CopyWorkspace, tasks: Sequence[FileTask]) -> int:
    """Link staged files to their places, in their order; return how many were not there."""
    places = {root / task.table / task.path: workspace.staged(*task.key) for task in tasks}
    missing = {place: staged for place, staged in places.items() if not _is_there(place, staged)}
    for place, staged in missing.items():
        with storing(place):
            place_durably({place: staged}, root, replaces=False)  # if somebody else is not first
    return len(missing)


def _is_there(place: Path, staged: Path) -> bool:
    """Return whether a file is there already, with the bytes of the one that is staged.

    A node may have brought it after an earlier restore staged its own.

    Raises:
        InvalidRequestError: Another one is (definite).
    """
    with storing(place):
        if not os.path.lexists(place):
            return False
        is_same = place.samefile(staged) or filecmp.cmp(place, staged, shallow=False)
        if is_same and not place.is_symlink():
            return True
    raise InvalidRequestError(
        f"{place} is another file than the image has",
        hint="Nothing is overwritten: restore elsewhere, or move the table's directory away.",
        path=str(place),
    )
