"""Gives peers what they lack of commit tables: lists of files by version, and the files.

Only files that a version names are sent, and none that lies outside of its table's directory.
Between two pieces of a file this node's own transactions go first, as they do for copies.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping

from sparktxlog.errors import DonorYieldsError, NotFoundError
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_versions import TableVersions
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.commit.file_repair import PIECE_BYTES
from sparktxlog.runtime.commit_tables.table_records import TableRecords
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle, Turn
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.commit_tables.table_places import TablePlaces
from sparktxlog.storage.foreign_files import ForeignFile


class TableGiver:
    """Answers peers that lack versions of commit tables; belongs to the event loop.

    Args:
        placed: UUID → the newest version that is placed here.
        throttle: Makes them wait for this node's transactions.
    """

    def __init__(
        self,
        base: Foundation,
        records: TableRecords,
        places: TablePlaces,
        placed: Mapping[str, int],
        throttle: CopyThrottle,
    ) -> None:
        self._base = base
        self._records = records
        self._places = places
        self._placed = placed
        self._throttle = throttle

    async def versions(self, uuid: str, after: int, until: int) -> TableVersions:
        """Return what the next versions after one consist of, as many as one answer takes.

        Raises:
            NotFoundError: This site does not have the table, or no later version (definite).
            StorageError: A version cannot be read.
        """
        placed = self._placed_of(uuid)
        if placed <= after:
            raise NotFoundError(
                f"commit table {uuid} is placed up to version {placed} at this site",
                uuid=uuid,
                version=placed,
            )
        found = await self._records.page(uuid, after, min(until, placed))
        return TableVersions(versions=tuple(found), placed=placed)

    async def open(self, uuid: str, version: int, wanted: StagedFile) -> ForeignFile:
        """Return a file that a version brings, of the size that it should have.

        Raises:
            NotFoundError: The version names no such file, or it is gone or damaged (definite).
            InvalidNameError: The path leaves the table's directory (definite).
        """
        named = await self._records.known(uuid, version - 1, 1)
        one = named.get(version) if version <= self._placed_of(uuid) else None
        if one is None or not any(
            (file.path, file.digest) == (wanted.path, wanted.digest) for file in one.files
        ):
            raise NotFoundError(
                f"version {version} of commit table {uuid} names no such file", uuid=uuid
            )
        found = self._places.file(uuid, check_relative_path(wanted.path))
        place = self._places.path(uuid, "")
        size = await self._base.run_on_files(place, _size_of, found)
        if size < 0 and wanted.path == commit_file_name(version):
            found = self._places.kept_commit(uuid, version)  # Delta cleaned up the log
            size = await self._base.run_on_files(place, _size_of, found)
        if size != wanted.size_bytes:
            raise NotFoundError(
                f"file {wanted.path!r} of commit table {uuid} is gone or damaged at this site",
                path=wanted.path,
            )
        return found

    async def pieces(self, uuid: str, file: ForeignFile, offset: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a table's file from an offset on, each piece in a turn of its own."""
        run, place = self._base.run_on_files, self._places.path(uuid, "")
        with await run(place, file.open) as content:
            while True:
                turn = await self._turn()
                try:
                    piece = await run(place, os.pread, content.fileno(), PIECE_BYTES, offset)
                    if not piece:
                        return
                    yield piece
                finally:
                    turn.end()
                offset += len(piece)
                self._base.metrics.donor_plain_bytes.inc(len(piece))

    async def _turn(self) -> Turn:
        while True:
            try:
                return await self._throttle.take()
            except DonorYieldsError:
                continue  # the peer waits, or asks again where it was

    def _placed_of(self, uuid: str) -> int:
        return self._placed.get(uuid, -1) if uuid in self._base.master.commit_tables else -1


def _size_of(file: ForeignFile) -> int:
    try:
        return file.size()
    except OSError:
        return -1
