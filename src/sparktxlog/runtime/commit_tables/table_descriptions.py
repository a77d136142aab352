"""Describes the tables of the log, of both kinds, as this site has them.

`RowTables.named` decides, here and in the catalog, which kind of table has a name.  So everybody
gets the same answer.

There may be 10,000 tables, and the event loop has other work: lists are made a `SLICE` at a time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sparktxlog.codec.delta_catalog.catalog_answers import ShownTable
from sparktxlog.codec.delta_catalog.column_types import to_ddl
from sparktxlog.codec.delta_catalog.table_states import CLUSTERING, DeltaTableState, domain_value
from sparktxlog.codec.submits.validation import known_table
from sparktxlog.delta.commit_contents import STORED_NAME
from sparktxlog.delta.log_files import TablePlace, has_log, store_of
from sparktxlog.errors import UnknownSchemaError, UnknownTableError
from sparktxlog.model.ids import full_table_name, log_name, table_name
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.tables.sorted_names import SortedNames
from sparktxlog.model.tables.table import Column, TableDefinition, Tables
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.runtime.commit_tables.commit_catalog import CommitCatalog
from sparktxlog.runtime.commit_tables.row_tables import RowTables
from sparktxlog.runtime.foundation import SLICE, Foundation
from sparktxlog.storage.table_samples import TableSample, read_sample

#: Samples that are kept.
_SAMPLES = 16


class TableDescriptions:
    """Says what tables are; belongs to the event loop.

    Its answers hold at their `position`, which this node's disk may not have yet.
    """

    def __init__(self, base: Foundation, rows: RowTables, commits: CommitCatalog) -> None:
        self._base = base
        self._rows = rows
        self._commits = commits
        self._names = SortedNames()
        #: Place, version and when it was written → what a page shows of it; a few, since pages ask
        #: again at each news, and a table that was dropped may come again at its place.
        self._samples: OrderedDict[tuple[str, int, int], TableSample] = OrderedDict()

    async def of(self, name: str) -> TableDescription:
        """Return a table that a user names.

        Raises:
            InvalidNameError: No table can have this name (definite).
            UnknownTableError: There is none (definite).
        """
        schema, _, table = full_table_name(table_name(name)).partition(".")
        found = await self._named(f"{schema}.{table}")
        if found is None:
            self._check_dropped(schema, table)
            # Its error names the nearest table.
            return self._of_rows(known_table(self._base.master.tables, name))
        return found

    def _check_dropped(self, schema: str, table: str) -> None:
        """Say where a table was dropped, if there was one of that name.

        Raises:
            UnknownTableError: There was; `dropped_at` is the position (definite).
        """
        master = self._base.master
        former = Tables.of(master.tables).former(log_name(schema, table))
        gone = master.commit_tables.dropped(f"{schema}.{table}")
        at = max(
            0 if former is None else master.writes(former.name).position or 0,
            0 if gone is None else gone.position,
        )
        if at:
            name = log_name(schema, table)
            raise UnknownTableError(
                f"table {name!r} was dropped at position {at}",
                hint="`sparktxlog tables` lists those that there are.",
                table=name,
                dropped_at=at,
            )

    async def sample(self, name: str) -> TableSample | None:
        """Return how large a table is here and some of its rows, None = it has no version here.

        Of a row table it is the newest version, of a commit table the one that is placed.

        Raises:
            InvalidNameError, UnknownTableError: As `of` (definite).
            TxLogError: It cannot be read, or has a log that is too large for a page.
        """
        found, version, written = await self.of(name), None, 0
        schema, _, table = full_table_name(found.name).partition(".")
        if found.kind is TableKind.ROW_TABLE:
            known = self._rows.named(schema, table)
            place = None if known is None else self._rows.place(known)
            state = None if known is None else await self._rows.listed(known)
            if state is not None:
                version, written = state.state.version, state.state.timestamp
        else:
            commit_table = self._base.master.commit_tables.named(f"{schema}.{table}")
            place = None if commit_table is None else self._commits.root(commit_table.uuid)
            version = found.version
        if place is None or version is None:
            return None
        key = store_of(place).url, version, written
        if (sample := self._samples.get(key)) is None:
            sample = await self._base.run_on_files(key[0], read_sample, place, version)
            self._samples[key] = sample
            while len(self._samples) > _SAMPLES:
                self._samples.popitem(last=False)
        return sample

    async def all(self, after: str = "", most: int | None = None) -> list[TableDescription]:
        """Return all tables, by full name, whose case is ignored.

        A table that comes into being meanwhile may be left out.

        Args:
            after: Only tables after this full lower-case name.
            most: Tables at most, None = all.
        """
        found: list[TableDescription] = []
        async for names in self._names_of_both(after):
            for name in names:
                if len(found) == most:
                    return found
                one = await self._named(name)
                if one is not None:
                    found.append(one)
        return found

    async def row_tables(
        self, after: str = "", most: int | None = None
    ) -> AsyncIterator[list[TableDefinition]]:
        """Yield row tables, by full name, in lists of up to `SLICE`; as `all`.

        Each list holds at the queue's end of its moment.
        """
        while most is None or most > 0:
            names = await self._row_names(after, SLICE if most is None else min(SLICE, most))
            if not names:
                return
            after, known = names[-1], Tables.of(self._base.master.tables)
            found = [one for name in names if (one := known.alike(_in_log(name))) is not None]
            most = None if most is None else most - len(found)
            yield found
            await asyncio.sleep(0)

    async def _row_names(self, after: str, most: int) -> list[str]:
        """Return the next full names of row tables, those of dropped ones too."""
        for _ in iter(lambda: self._names.catch_up(Tables.of(self._base.master.tables)), True):
            await asyncio.sleep(0)
        return self._names.after(after, most)

    async def _names_of_both(self, after: str) -> AsyncIterator[list[str]]:
        """Yield full names of tables of both kinds, ascending, in lists of up to `SLICE`."""
        commits, at = self._base.master.commit_tables.names_after(after), 0
        while True:
            rows = await self._row_names(after, SLICE)
            names = sorted({*rows, *commits[at : at + SLICE]})[:SLICE]
            if not names:
                return
            after = names[-1]
            at = bisect_right(commits, after)
            yield names
            await asyncio.sleep(0)

    async def _named(self, name: str) -> TableDescription | None:
        """Return a table of either kind, None = it was dropped."""
        schema, _, table = name.partition(".")
        row_table = self._rows.named(schema, table)
        if row_table is not None:
            return self._of_rows(row_table)
        try:
            return await self._of_commits(schema, table)
        except (UnknownSchemaError, UnknownTableError):
            return None

    def _of_rows(self, table: TableDefinition) -> TableDescription:
        master, place = self._base.master, self._rows.place(table)
        writes = master.writes(table.name)
        return TableDescription(
            name=table.name,
            kind=TableKind.ROW_TABLE,
            comment=table.comment,
            columns=table.columns,
            keys=table.keys,
            partition_by=table.partition_by,
            cluster_by=table.cluster_by,
            properties=dict(table.properties),
            deletion_vectors=table.deletion_vectors,
            is_sync=table.is_sync,
            location=_location(place),
            schema_version=table.schema_version,
            version=writes.version,
            last_write=writes.position,
            position=master.base.position,
        )

    async def _of_commits(self, schema: str, table: str) -> TableDescription:
        master = self._base.master
        shown = await self._commits.listed(schema, table)
        # A version that was ordered meanwhile belongs to the position of the answer.
        while self._is_older(shown, master.commit_tables.get(shown.uuid)):
            shown = await self._commits.listed(schema, table)
        position, state = master.base.position, shown.placed
        if state is None:
            return TableDescription(name=shown.name, kind=TableKind.COMMIT_TABLE, position=position)
        properties = state.metadata.configuration
        return TableDescription(
            name=shown.name,
            kind=TableKind.COMMIT_TABLE,
            comment=state.metadata.description or "",
            columns=tuple(_column(field) for field in state.metadata.columns["fields"]),
            partition_by=state.metadata.partition_columns,
            cluster_by=_clustering(state),
            properties=properties,
            deletion_vectors=properties.get("delta.enableDeletionVectors") == "true",
            is_sync=state.is_sync,
            location=_path_or_url(shown.location),
            schema_version=state.changed_version,
            version=state.version,
            position=position,
        )

    @staticmethod
    def _is_older(shown: ShownTable, newest: CommitTable | None) -> bool:
        placed = shown.placed
        return placed is not None and newest is not None and placed.version < newest.version


def _in_log(name: str) -> str:
    schema, _, table = name.partition(".")
    return log_name(schema, table)


def _location(place: TablePlace) -> str | None:
    """Return where a row table is; a bucket is not asked whether it is there yet."""
    if isinstance(place, Path):
        return str(place) if has_log(place) else None
    return place.url


def _path_or_url(location: str) -> str:
    """Return the directory that a `file:` URL names, and any other URL as it is."""
    parts = urlsplit(location)
    return unquote(parts.path) if parts.scheme == "file" else location


def _column(field: dict[str, Any]) -> Column:
    return Column(
        name=field["name"],
        type=to_ddl(field["type"]),
        nullable=field["nullable"],
        comment=str(field.get("metadata", {}).get("comment") or ""),
    )


def _clustering(state: DeltaTableState) -> tuple[str, ...]:
    """Return the columns that a table is clustered by; a field of a struct with its path."""
    clustering = domain_value(state.domains.get(CLUSTERING))
    names = {
        field.get("metadata", {}).get(STORED_NAME, field["name"]): field["name"]
        for field in state.metadata.columns["fields"]
    }
    paths = clustering.get("clusteringColumns") or []
    return tuple(".".join([names.get(path[0], path[0]), *path[1:]]) for path in paths)
