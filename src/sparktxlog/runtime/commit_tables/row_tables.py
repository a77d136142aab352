"""Row tables of the log as the catalog shows them: Delta tables in a lake of this site, to be read.

A session reads the replica that it names: the catalog `tx@reports` shows the replica `reports`.
Any other catalog shows the main one, as long as that has the table, and else the least behind of
those that have it.  It stays with one of them, because versions of Delta are those of one replica.

The table `orders` is `default.orders`, and `bronze.orders` has that name here, too.  No name is of
both kinds (P36).
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import msgspec
import structlog

from sparktxlog.codec.delta_catalog.catalog_answers import ShownTable
from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.errors import (
    InvalidRequestError,
    NameTakenError,
    RowTableError,
    StorageError,
    UnknownTableError,
)
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import full_table_name, log_name
from sparktxlog.model.replicas import MAIN, replica_id
from sparktxlog.model.tables.table import ONLY_READ, TableDefinition, Tables
from sparktxlog.runtime.foundation import Foundation, in_slices
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.storage.lake_tables import LakeTables

_log = structlog.get_logger("sparktxlog.catalog")

#: What names the keys of a row table, a JSON list, and its replica, among the table's properties.
KEYS, REPLICA = "sparktxlog.keys", "sparktxlog.replica"
#: Delta takes options of the file system from the catalog's answer.  Whatever makes a file or a
#: directory asks for this umask; nobody who reads does.  It is no umask, so a write through the
#: catalog ends before its first file, and its error says the text.  A file system that is kept for
#: later would have the options of whoever opened it first, so none is kept.  A writer that uses the
#: table's path does not ask the catalog, so the worker is not hindered
#: (docs/decisions/0118-row-tables-refuse-the-first-file.md).
NO_FILES = {
    "fs.file.impl.disable.cache": "true",
    "fs.permissions.umask-mode": f"[{ONLY_READ}; write it with log.append or log.transaction, "
    "and compact it with sparktxlog maintain]",
}


class RowTables:
    """The row tables of this site's replicas, in their lakes; belongs to the event loop.

    Args:
        lake: Where those of the main one are.
        opened: Returns the store of another one's lake in a bucket; no object is looked at.
    """

    def __init__(
        self,
        base: Foundation,
        lake: TablePlace,
        replicas: Replicas,
        opened: Callable[[str], TablePlace],
    ) -> None:
        self._base = base
        self._lake = LakeTables(lake)
        self._replicas = replicas
        self._opened = opened
        #: Lake of a replica with a name → its tables.
        self._lakes: dict[str, LakeTables] = {}

    def named(self, schema: str, name: str) -> TableDefinition | None:
        """Return the row table that has a name, whose case is ignored; None = it has none.

        This is the one rule for which table has a name: commit tables come first.
        """
        master = self._base.master
        if "." in name or master.commit_tables.named(f"{schema}.{name}") is not None:
            return None
        return Tables.of(master.tables).alike(log_name(schema, name))

    async def with_uuid(self, uuid: str) -> TableDefinition | None:
        """Return the row table that has an id in the catalog, None = none has."""
        async for some in in_slices(list(self._base.master.tables.values())):
            for one in some:
                if self._uuid(one) == uuid:
                    return one
        return None

    def _uuid(self, definition: TableDefinition) -> str:
        """Return its id: another one once the table was dropped and is created again."""
        log_id = self._base.master.view.log_id
        return _uuid_of(f"{log_id}/{definition.name}/{definition.first_version}")

    def place(self, definition: TableDefinition) -> TablePlace:
        """Return where a row table of the main replica is, which may not be there yet."""
        return self._lake.place(definition.name)

    async def load(self, definition: TableDefinition, catalog: str = "") -> ShownTable:
        """Return a row table as it is applied here.

        Args:
            catalog: As the session calls it; it may name a replica.

        Raises:
            InvalidRequestError: This site has no such replica (definite).
            UnknownTableError: It is not applied at this site, or in that replica (definite).
            CorruptLogError: Its Delta table cannot be read.
            StorageError: The bucket of the lake cannot be reached.
        """
        found = await self._shown(definition, catalog)
        if found is None:
            name = catalog.partition("@")[2]
            where = f"in replica {name!r}" if name else "at this site"
            raise UnknownTableError(
                f"row table {definition.name!r} is in the log, whose position is "
                f"{self._base.ordered.value}, and is not applied {where} yet",
                hint="Run a worker: sparktxlog apply, or spark-submit.sh jobs/apply.py.",
                table=definition.name,
                position=self._base.ordered.value,
            )
        return found

    async def listed(self, definition: TableDefinition, catalog: str = "") -> ShownTable | None:
        """Return a row table for a list, None if it is not applied here, or cannot be read.

        Raises:
            InvalidRequestError: As `load` (definite).
        """
        try:
            return await self._shown(definition, catalog)
        except StorageError as error:  # `load` says why
            _log.warning("row table cannot be listed", table=definition.name, error=str(error))
            return None

    def check_free(self, schema: str, name: str) -> None:
        """Refuse the name of a row table for a new commit table.

        What another site makes in the same moment is judged where it is ordered (P36).

        Raises:
            NameTakenError: A row table has the name (definite).
        """
        known = self.named(schema, name)
        if known is not None:
            full = full_table_name(known.name)
            raise NameTakenError(
                f"{full!r} is row table {known.name!r} of the log",
                hint="Take another name or schema, or drop that one: log.drop_table.",
                value=full,
            )

    def refuse_change(self, schema: str, name: str) -> None:
        """Refuse to change a row table; return if the name is not that of one.

        Raises:
            RowTableError: It is one (definite).
        """
        known = self.named(schema, name)
        if known is not None:
            raise RowTableError(
                f"{full_table_name(known.name)} is a row table of the log, and is only read "
                "through the catalog",
                table=known.name,
            )

    async def _shown(self, definition: TableDefinition, catalog: str) -> ShownTable | None:
        name = definition.name
        for replica in self._replicas_of(name, catalog.partition("@")[2]):
            lake = self._lake_of(replica)
            url = store_of(lake.place(name)).url
            state = await self._base.run_on_files(url, lake.read, name)
            if state is None:
                continue
            said = {KEYS: msgspec.json.encode(definition.keys).decode()} if definition.keys else {}
            if self._replicas.lakes:
                said[REPLICA] = replica_id(self._base.config.node_id, replica)
            return ShownTable(
                name=full_table_name(name),
                uuid=self._uuid(definition),
                location=url if "://" in url else f"file:{quote(url)}",
                placed=state,
                external=NO_FILES | said,
            )
        return None

    def _replicas_of(self, table: str, wanted: str) -> list[str]:
        """Return the replicas of which the first one that has a table is shown."""
        lakes = self._replicas.lakes
        if wanted and wanted not in (MAIN, *lakes):
            # With 404 Spark says only that there is no such table.
            raise InvalidRequestError(
                f"site {self._base.config.node_id} has no replica {wanted[:80]!r}",
                hint=f"It has {', '.join((MAIN, *sorted(lakes)))}.  A catalog that is called "
                "tx@NAME shows that one.",
                replica=wanted[:80],
            )
        if wanted:
            return [wanted]
        others = self._replicas.readable(table) if lakes else []
        return [MAIN, *(one for one in others if one in lakes)]

    def _lake_of(self, replica: str) -> LakeTables:
        given = self._replicas.lakes.get(replica)
        if given is None:
            return self._lake
        if given not in self._lakes:
            is_path = bucket_url(given, "lake") is None
            self._lakes[given] = LakeTables(Path(given) if is_path else self._opened(given))
        return self._lakes[given]


@lru_cache(16_384)  # all tables are looked through for one
def _uuid_of(key: str) -> str:
    return str(uuids.uuid5(uuids.NAMESPACE_URL, key))
