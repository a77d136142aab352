"""Keeps a plain Delta table for each commit table, for readers without a catalog.

It follows what is placed, version by version, and goes when its table is dropped.  Nobody waits for
it: a reader table that cannot be written makes no commit fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from sparktxlog.errors import StorageError, TxLogError
from sparktxlog.model.answers import OperatorWarning
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.runtime.commit_tables.commit_placer import CommitPlacer
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.commit_tables.reader_table import ReaderTable, remove_unknown
from sparktxlog.storage.commit_tables.site_tables import SiteTables
from sparktxlog.supervision import foreseen

_log = structlog.get_logger("sparktxlog.readers")

#: Seconds that one wait for the next ordered transaction takes at most.
_WAIT_S = 3_600.0
#: The same while a table could not be followed.
_RETRY_S = 10.0


class ReaderTables:
    """The reader tables of this site, `<reader-table-dir>/<schema>/<table>`."""

    def __init__(self, base: Foundation, placer: CommitPlacer, places: SiteTables) -> None:
        self._base = base
        self._placer = placer
        self._places = places
        self._root = base.config.reader_table_dir
        self._tables: dict[str, ReaderTable] = {}
        #: UUID → the version that the reader table has.
        self._versions: dict[str, int] = {}
        self._failed: dict[str, TxLogError] = {}

    def warnings(self) -> list[OperatorWarning]:
        """Return the reader tables that are behind, and why."""
        return [
            {"code": "reader-table-behind", "text": f"{error.message}  {error.hint}".strip()}
            for error in self._failed.values()
        ]

    async def watch(self) -> None:
        """Follow what is placed, until cancelled."""
        if self._root is None:
            await self._base.loop.create_future()
            return
        ordered, known = self._base.ordered, dict[str, str]()
        await self._remove_others(self._root, self._base.master.commit_tables)
        while True:
            seen = ordered.value
            tables = dict(self._base.master.commit_tables)
            names = {uuid: table.name for uuid, table in tables.items()}
            if names != known:
                for uuid, _ in known.items() - names.items():
                    # Dropped, or renamed: then it is made again, under its new name.
                    for of_table in (self._tables, self._versions, self._failed):
                        of_table.pop(uuid, None)
                known = names
                await self._remove_others(self._root, tables)
            for uuid, table in tables.items():
                if self._versions.get(uuid, -1) < table.version:
                    await self._follow(self._root, table)
            await ordered.reach(seen + 1, _RETRY_S if self._failed else _WAIT_S)

    async def _remove_others(self, root: Path, tables: Mapping[str, CommitTable]) -> None:
        kept = {_path(root, table) for table in tables.values()}
        try:
            gone = await self._base.run_on_files(root, remove_unknown, root, kept)
        except StorageError as error:
            _log.warning("reader tables of dropped tables are left", reason=str(error))
            return
        for directory in gone:
            _log.info("reader table removed", path=str(directory))

    async def _follow(self, root: Path, table: CommitTable) -> None:
        uuid = table.uuid
        try:
            state = await self._placer.placed(table)
            directory = self._places.log_directory(uuid)
            if uuid not in self._tables:
                self._tables[uuid] = ReaderTable(directory, _path(root, table))
            await self._base.run_on_files(directory, self._tables[uuid].follow, state.version)
        except Exception as error:  # noqa: BLE001
            found = foreseen(error)
            if uuid not in self._failed:
                _log.warning("reader table is behind", table=table.name, reason=str(found))
            self._failed[uuid] = found
            self._tables.pop(uuid, None)  # the next attempt looks at all of it
            return
        self._versions[uuid] = state.version
        self._failed.pop(uuid, None)


def _path(root: Path, table: CommitTable) -> Path:
    schema, _, name = table.name.partition(".")
    return root / schema / name
