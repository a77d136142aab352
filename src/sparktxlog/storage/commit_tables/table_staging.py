"""Versions of a commit table on their way from another site into the table's directory.

    <root>/.fetched/<UUID>/<log>/…          commit files, until everything that they name is there
    <root>/<UUID>/…                         data files, which get their places at once: no version
                                            names them yet

A file that is here already, in its place or in the attic of commit tables, is used if its digest
agrees.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sparktxlog.attic.attic import Attic
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.site_tables import SiteTables

_FETCHED = ".fetched"


class TableStaging:
    """Puts together versions of commit tables; its methods block.

    Args:
        root: Where files of peers arrive.
    """

    def __init__(self, root: Path, places: SiteTables) -> None:
        self._root = root
        self._places = places

    def commit_file(self, uuid: str, file: StagedFile) -> Path:
        """Return where a commit file waits for the files that it names."""
        return self._root / _FETCHED / uuid / file.path

    def missing_commit(self, uuid: str, file: StagedFile) -> StagedFile | None:
        """Return as what a commit file has to arrive, below the root; None = it waits."""
        return self._missing(uuid, file, replace(file, path=f"{_FETCHED}/{uuid}/{file.path}"))

    def missing_file(self, uuid: str, file: StagedFile) -> StagedFile | None:
        """Return as what a file has to arrive, below the root; None = it is here.

        What else is in its place goes to the attic.
        """
        if self._places.holds(uuid, file):
            return None
        return self._missing(uuid, file, replace(file, path=f"{uuid}/{file.path}"))

    def _missing(self, uuid: str, file: StagedFile, place: StagedFile) -> StagedFile | None:
        """Return the place of a file, None if it is there, perhaps taken from here."""
        arrivals = self._places.arrivals
        aside = Attic.of_commit_tables(self._root).contents(uuid)
        known = (uuid, *(str(directory.relative_to(self._root)) for directory in aside))
        here = arrivals.holds(place) or any(
            arrivals.takes(place, f"{directory}/{file.path}") for directory in known
        )
        return None if here else place

    def publish(self, uuid: str, commits: Iterable[tuple[int, StagedFile]]) -> None:
        """Publish versions whose files have their places, ascending.

        Raises:
            CorruptLogError: Somebody published another one meanwhile.
            StorageError: Some may be published; try again.
        """
        unsynced = self._places.place(uuid, {})
        for version, file in commits:
            if not self._places.holds(uuid, file):
                self._places.forget_kept(uuid, version)
            waiting = str(self.commit_file(uuid, file))
            unsynced |= self._places.publish(uuid, version, waiting)
        self._places.sync(unsynced)
        self.drop(uuid)

    def drop(self, uuid: str) -> None:
        """Remove the commit files that wait."""
        shutil.rmtree(self._root / _FETCHED / uuid, ignore_errors=True)
