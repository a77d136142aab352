"""Versions of a commit table on their way from another site into the table's directory.

    <root>/.fetched/<UUID>/_delta_log/…     commit files, until everything that they name is there
    <root>/<UUID>/…                         data files, at once: no version names them yet

A file that is here already, in its place or in the attic of commit tables, is used if its digest
agrees.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sparktxlog.attic.attic import Attic
from sparktxlog.errors import ManifestMismatchError, PayloadStoreError
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.table_places import TablePlaces
from sparktxlog.storage.durability import (
    storage_error,
    storing,
    sync_file,
    sync_parents,
)
from sparktxlog.storage.foreign_files import digest_of, foreign_file

_FETCHED = ".fetched"


class TableStaging:
    """Puts together versions of commit tables; its methods block.

    Args:
        root: Directory of all tables.
    """

    def __init__(self, root: Path, places: TablePlaces) -> None:
        self._root = root
        self._places = places

    def commit_file(self, uuid: str, file: StagedFile) -> Path:
        """Return where a commit file waits for the files that it names."""
        return self._root / _FETCHED / uuid / file.path

    def finds_commit(self, uuid: str, file: StagedFile) -> bool:
        """Return whether a commit file waits, after one that is here was taken if it agrees."""
        waiting = self.commit_file(uuid, file)
        for found in (waiting, *self._known(uuid, file)):
            if self._agrees(found, file):
                if found != waiting:
                    self._take(found, waiting)
                return True
        return False

    def finds_file(self, uuid: str, file: StagedFile) -> bool:
        """Return whether a file has its place, after one that is here was taken if it agrees.

        What else is in that place goes to the attic.
        """
        place = self._places.path(uuid, file.path)
        if self._holds(uuid, file):
            return True
        self._places.set_aside(uuid, file.path)
        for found in self._known(uuid, file):
            if found != place and self._agrees(found, file):
                self._take(found, place)
                return True
        return False

    def _holds(self, uuid: str, file: StagedFile) -> bool:
        """Return whether a file has its place; repeated calls read it only once."""
        try:
            self._places.arrivals.verify(replace(file, path=f"{uuid}/{file.path}"))
        except (ManifestMismatchError, PayloadStoreError):
            return False
        return True

    def publish(self, uuid: str, commits: Iterable[tuple[int, StagedFile]]) -> None:
        """Publish versions whose files have their places, ascending.

        Raises:
            CorruptLogError: Somebody published another one meanwhile.
            StorageError: Some may be published; try again.
        """
        unsynced = self._places.place(uuid, {})
        for version, file in commits:
            if not self._agrees(self._places.path(uuid, file.path), file):
                self._places.set_aside(uuid, file.path)
                with storing(self._root):
                    Path(self._places.kept_commit(uuid, version).path).unlink(missing_ok=True)
            waiting = str(self.commit_file(uuid, file))
            unsynced |= self._places.publish(uuid, version, waiting)
        self._places.sync(unsynced)
        self.drop(uuid)

    def drop(self, uuid: str) -> None:
        """Remove the commit files that wait."""
        shutil.rmtree(self._root / _FETCHED / uuid, ignore_errors=True)

    def _known(self, uuid: str, file: StagedFile) -> list[Path]:
        """Return where a file may be here."""
        aside = Attic.of_commit_tables(self._root).contents(uuid)
        return [directory / file.path for directory in (self._root / uuid, *aside)]

    def _take(self, found: Path, place: Path) -> None:
        with storing(place):
            foreign_file(self._root, found).link_as(foreign_file(self._root, place))
            sync_file(place)
            sync_parents([place], self._root)

    def _agrees(self, path: Path, file: StagedFile) -> bool:
        """Return whether a file has a size and a digest; reads it only if the size agrees.

        What is no plain file has none.
        """
        found = foreign_file(self._root, path)
        try:
            if found.size() != file.size_bytes:
                return False
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return False
            raise storage_error(error, path) from error
        with storing(path), found.open() as content:
            return digest_of(content, path) == file.digest
