"""Commit tables in directories: one below a root for each table, named by its UUID.

Nothing is synced when a commit is taken or placed; `site_tables` says why.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import structlog

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.delta.commit_contents import NeededFile
from sparktxlog.delta.log_files import STAGED_COMMITS, commits_in, log_of
from sparktxlog.errors import CorruptLogError, NotOfferedError
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.files.durability import (
    free_name,
    parents_up_to,
    storage_error,
    storing,
    sync_directory,
    sync_several,
)
from sparktxlog.files.foreign_files import ForeignFile, Linked, foreign_file, goes_on
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.site_tables import UUID, SiteTables

_log = structlog.get_logger("sparktxlog.tables")

#: Where commit files have a second name, below the root: Delta cleans up those before a checkpoint,
#: and a site that joins later needs them.
KEPT_COMMITS = ".commits"
#: Where transactions of Spark have their plain twins, below the root: a job that is killed leaves
#: one there, which only has further names of the table's files, and what the job wrote.
TRANSACTION_TWINS = ".transactions"
#: In a bucket: names the places that a node gave to new tables.
GIVEN = ".given"
#: Why an entry of the attic is there.
FORKED = "the node left a history that others do not have"


class TablePlaces(SiteTables):
    """The directories of this site's commit tables.

    Args:
        root: Directory of tables, which node and Spark executors share.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    @cached_property
    def arrivals(self) -> Arrivals:
        """The same directories, for files of peers: `<UUID>/<path below the table>`."""
        return Arrivals(self._root)

    # -- places ------------------------------------------------------------------------------------

    def take(self, owner: str) -> None:
        pass  # a directory is a setting of one machine, and `doctor` looks at its disk

    def make(self, uuid: str) -> None:
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
        with suppress(OSError):
            (self._root / uuid).rmdir()

    def has(self, uuid: str) -> bool:
        place = self._root / uuid
        return UUID.fullmatch(uuid) is not None and place.is_dir() and not place.is_symlink()

    def location(self, uuid: str) -> str:
        return f"file:{self._root}/{uuid}"

    def uuid_at(self, location: str) -> str | None:
        try:
            parts = urlsplit(location)
        except ValueError:  # brackets that hold no address
            return None
        path = Path(unquote(parts.path))
        if parts.scheme not in ("", "file") or parts.netloc or path.parent != self._root:
            return None
        return path.name if UUID.fullmatch(path.name) else None

    def where(self, uuid: str) -> str:
        return f"{self._root}/{uuid}"

    def root(self, uuid: str) -> Path:
        return self._root / uuid

    def file(self, uuid: str, relative: str) -> ForeignFile:
        return ForeignFile(str(self._root), f"{uuid}/{relative}")

    def set_all_aside(self, name: str) -> None:
        attic, root = Attic.of_commit_tables(self._root), self._root
        for directory in sorted(root.iterdir()) if root.is_dir() else ():
            with storing(directory):
                if UUID.fullmatch(directory.name):
                    table = directory.name
                    attic.put(directory, kind=Kind.FORK, table=table, mark=name, why=FORKED)
                elif directory.name == KEPT_COMMITS:
                    attic.put(directory, kind=Kind.FORK, mark=name, why=FORKED)

    # -- what was ordered --------------------------------------------------------------------------

    def holds(self, uuid: str, file: StagedFile) -> bool:
        if self.arrivals.holds(replace(file, path=f"{uuid}/{file.path}")):
            return True
        self.set_aside(uuid, file.path)
        return False

    def arrived(self, uuid: str, file: StagedFile) -> None:
        pass  # where it arrived is its place

    def doubt(self, uuid: str, file: StagedFile) -> None:
        self.arrivals.forget(self.arrivals.root / uuid / file.path)

    def place(self, uuid: str, sources: Mapping[str, str | bytes]) -> set[str]:
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
        place = f"{self._root}/{uuid}/{path}"
        if not os.path.lexists(place):
            return
        attic = Attic.of_commit_tables(self._root)
        with storing(place):
            why = "other files were in the places of the log's"
            entry = attic.begin(Kind.FILES, "", why, table=uuid)
            attic.finish(entry)
            other = foreign_file(self._root, free_name(entry.path / path))
            self.file(uuid, path).move_to(other)

    def found(self, uuid: str, versions: range, files: Iterable[NeededFile]) -> set[str]:
        paths = {self._root / uuid / file.path for file in files}
        paths |= {self._version(uuid, version) for version in versions}
        return set(map(str, paths.union(parents_up_to(paths, self._root))))

    def sync(self, paths: Iterable[str]) -> None:
        sync_several(sorted(paths, reverse=True))  # names after what they name

    # -- published versions ------------------------------------------------------------------------

    def published(self, uuid: str, version: int) -> bytes | None:
        file = self.file(uuid, commit_file_name(version))
        try:
            return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, file.path) from error

    def is_published(self, uuid: str, version: int) -> bool:
        path = self._version(uuid, version)
        goes_on(path)
        return path.exists()

    def versions(self, uuid: str) -> list[int]:
        return commits_in(self._root / uuid)

    def kept_commit(self, uuid: str, version: int) -> ForeignFile:
        name = self._version(uuid, version).name
        return ForeignFile(str(self._root), f"{KEPT_COMMITS}/{uuid}/{name}")

    def keep_commits(self, uuid: str, versions: Iterable[int] | None) -> None:
        kept = self._root / KEPT_COMMITS / uuid
        with storing(kept):
            foreign_file(self._root, kept / "x").make_parent()
            if versions is None:
                names = {path.stem for path in kept.iterdir()}
                versions = (v for v in self.versions(uuid) if f"{v:020}" not in names)
            for version in versions:
                commit = self.file(uuid, commit_file_name(version))
                with suppress(FileNotFoundError):  # Delta was faster
                    commit.link_new(self.kept_commit(uuid, version))

    def publish(self, uuid: str, version: int, source: str | bytes) -> set[str]:
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

    def force_first(self, uuid: str) -> None:
        self.sync([str(self._version(uuid, 0))])

    def log_directory(self, uuid: str) -> Path:
        return self._root / uuid

    def forget_kept(self, uuid: str, version: int) -> None:
        path = self.kept_commit(uuid, version).path
        with storing(path):
            Path(path).unlink(missing_ok=True)

    def _version(self, uuid: str, version: int) -> Path:
        return self._root / uuid / commit_file_name(version)
