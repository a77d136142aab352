"""Gives peers what they lack of commit tables: lists of files by version, and the files.

Only files that a version names are sent, and none that lies outside of its table's directory.
Between two pieces of a file this node's own transactions go first, as they do for copies.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

from sparktxlog.errors import DonorYieldsError, NotFoundError
from sparktxlog.files.sending import Outgoing
from sparktxlog.model.ids import check_relative_path
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_versions import TableVersions, VersionFiles
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.commit_tables.table_records import TableRecords
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle, Turn
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.commit_tables.site_tables import SiteTables

_NUMBER = re.compile(r"[0-9]{1,18}")


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
        places: SiteTables,
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

    async def outgoing(self, wanted: StagedFile) -> Outgoing:
        """Return a file that a version brings, by `<UUID>/<version>/<path below the table>`.

        Raises:
            NotFoundError: The version names no such file (definite).
            InvalidNameError: The path leaves the table's directory (definite).
        """
        uuid, number, path = (*wanted.path.split("/", 2), "", "")[:3]
        version = int(number) if _NUMBER.fullmatch(number) else -1
        named: Mapping[int, VersionFiles] = {}
        if 0 <= version <= self._placed_of(uuid):
            named = await self._records.known(uuid, version - 1, 1)
        if version not in named or not any(
            (file.path, file.digest) == (path, wanted.digest) for file in named[version].files
        ):
            raise NotFoundError(f"no version of a commit table names {wanted.path[:300]!r}")
        is_commit = path == commit_file_name(version)
        return Outgoing(
            file=self._places.file(uuid, check_relative_path(path)),
            # Delta cleans up its log.
            otherwise=self._places.kept_commit(uuid, version) if is_commit else None,
            size_bytes=wanted.size_bytes,
            run=partial(self._base.run_on_files, self._places.where(uuid)),
            turn=self._turn,
            sent=self._base.metrics.donor_file_bytes.inc,
        )

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        turn: Turn | None = None
        while turn is None:
            with suppress(DonorYieldsError):  # the peer waits, or asks again where it was
                turn = await self._throttle.take()
        try:
            yield
        finally:
            turn.end()

    def _placed_of(self, uuid: str) -> int:
        return self._placed.get(uuid, -1) if uuid in self._base.master.commit_tables else -1
