"""The catalog's API: Unity Catalog's, for Delta tables (docs/catalog.md).

Commit tables are managed tables; row tables of the log are external ones, to be read.  The name of
the catalog in a path is that which a session gave it; the log has one catalog, so every name means
the same, but for a replica that it may name (`runtime/commit_tables/row_tables.py`).
"""

from __future__ import annotations

import asyncio
import uuid as uuids
from collections.abc import Iterable, Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.codec.delta_catalog.catalog_answers import (
    PROTOCOL_VERSION,
    CatalogConfig,
    CatalogInfo,
    CatalogsAnswer,
    CatalogTable,
    CredentialsAnswer,
    DroppedAnswer,
    ListedTables,
    LoadedTable,
    MetastoreAnswer,
    SchemaAnswer,
    SchemasAnswer,
    ShownTable,
    StagingTableAnswer,
    StorageCredential,
    TemporaryCredentials,
    listed_table,
    loaded_table,
    schema_answer,
    staging_answer,
    temporary_credentials,
)
from sparktxlog.codec.delta_catalog.catalog_requests import (
    DELTA_API,
    CreateTableRequest,
    MetricsRequest,
    NewSchemaRequest,
    RenameTableRequest,
    StagingTableRequest,
    TemporaryCredentialsRequest,
    UpdateTableRequest,
    read_update,
)
from sparktxlog.errors import (
    CommitStateUnknownError,
    InvalidRequestError,
    TxLogError,
    UnknownSchemaError,
    UnknownTableError,
)
from sparktxlog.model.ids import full_table_name
from sparktxlog.runtime.commit_tables.commit_catalog import CommitCatalog
from sparktxlog.runtime.node import Node
from sparktxlog.service.granted import check_writes
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.routes import LISTED, ROUTES

#: What a list of catalogs calls the log's.
CATALOG = "tx"
_SUPPORTED = [
    f"{route.method} {route.path.removeprefix(DELTA_API)}"
    for route in ROUTES
    if route.path.startswith(f"{DELTA_API}/v1/") and route.name != "catalog_config"
]

#: A page of tables ends after the table that has this column: an answer has 12 MB or so at most.
_MOST_COLUMNS = 50_000


class CatalogRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._catalog: CommitCatalog = node.catalog
        self._rows = node.row_tables

    # -- the catalog and its schemas ---------------------------------------------------------------

    def catalog_config(self, catalog: str, protocol_versions: str) -> CatalogConfig:
        majors = {version.strip().partition(".")[0] for version in protocol_versions.split(",")}
        if PROTOCOL_VERSION.partition(".")[0] not in majors:
            raise InvalidRequestError(
                f"protocol-versions is {protocol_versions[:80]!r}, this catalog speaks "
                f"{PROTOCOL_VERSION}",
                field="protocol-versions",
                value=protocol_versions[:80],
            )
        return CatalogConfig(endpoints=_SUPPORTED, protocol_version=PROTOCOL_VERSION)

    def metastore(self) -> MetastoreAnswer:
        return MetastoreAnswer(
            metastore_id=_id_of(self._node.log_id),
            name=self._node.log_id,
        )

    def list_catalogs(self, max_results: int, page_token: str | None) -> CatalogsAnswer:
        return CatalogsAnswer(catalogs=[] if page_token else [self._catalog_named(CATALOG)])

    def get_catalog(self, name: str) -> CatalogInfo:
        return self._catalog_named(name)

    def _catalog_named(self, name: str) -> CatalogInfo:
        log_id = self._node.log_id
        return CatalogInfo(name=name, id=_id_of(log_id), comment=f"The log {log_id}")

    def list_schemas(
        self, catalog_name: str, max_results: int, page_token: str | None
    ) -> SchemasAnswer:
        names, following = _page(self._catalog.schemas.all(), max_results, page_token)
        schemas = [self._schema(catalog_name, name) for name in names]
        return SchemasAnswer(schemas=schemas, next_page_token=following)

    async def create_schema(self, body: NewSchemaRequest) -> SchemaAnswer:
        check_writes(lambda: (f"{body.name}.*",))
        given = body.name, body.comment or "", body.properties or {}
        made = await self._catalog.schemas.create(*given)
        return self._schema(body.catalog_name, made.name)

    def get_schema(self, full_name: str) -> SchemaAnswer:
        catalog, schema = _parts(full_name, 2)
        return self._schema(catalog, self._catalog.schemas.check(schema))

    def _schema(self, catalog: str, name: str) -> SchemaAnswer:
        known = self._catalog.schemas.described(name)
        return schema_answer(catalog, name, known.comment, known.properties)

    async def drop_schema(self, full_name: str, force: str | None) -> DroppedAnswer:
        schema = _parts(full_name, 2)[1]
        check_writes(lambda: (f"{schema}.*",))
        name = self._catalog.schemas.check_droppable(schema)
        if force is not None and force.lower() not in ("true", "false"):
            raise InvalidRequestError(
                f"force is {force[:40]!r}, expected true or false", field="force", value=force[:40]
            )
        if force is not None and force.lower() == "true":
            await self._drop_whole(name)
        else:
            await self._catalog.schemas.drop(name)
        return DroppedAnswer()

    async def _drop_whole(self, schema: str) -> None:
        """Drop the commit tables of a schema one by one and then itself, or nothing.

        Raises:
            RowTableError: It holds a row table (definite).
            CommitStateUnknownError: Some of it was dropped (not definite).
        """
        names, dropped, left = self._catalog.schemas.tables(schema), 0, ""
        for name in names:
            self._rows.refuse_change(schema, name)
        try:
            for name in names:
                left = f"'{schema}.{name}'"
                with suppress(UnknownTableError, UnknownSchemaError):  # somebody else dropped it
                    await self._catalog.drop(schema, name)
                    dropped += 1
            left = "the schema"
            await self._catalog.schemas.drop(schema)
        except UnknownSchemaError:
            if not names:  # else it was known by its tables only, or somebody else dropped it
                raise
        except TxLogError as error:
            if not dropped:
                raise
            raise CommitStateUnknownError(
                f"{dropped} of {len(names)} tables of schema {schema!r} are dropped, {left} is "
                f"not: {error.message}",
                hint="Ask again: what is left is dropped then.",
                value=schema,
            ) from error

    # -- tables ------------------------------------------------------------------------------------

    async def list_tables(
        self, catalog_name: str, schema_name: str, max_results: int, page_token: str | None
    ) -> ListedTables:
        every = self._catalog.schemas.tables(schema_name)
        names, following = _page(every, max_results, page_token)
        tables: list[CatalogTable] = []
        columns, last = 0, page_token
        for name in names:
            if columns >= _MOST_COLUMNS:
                return ListedTables(tables=tables, next_page_token=last)
            last, found = name, await self._for_list(catalog_name, schema_name, name)
            if found is not None:
                tables.append(listed_table(catalog_name, found))
                columns += len(tables[-1].columns)
            await asyncio.sleep(0)  # others wait for the loop
        return ListedTables(tables=tables, next_page_token=following)

    async def _for_list(self, catalog: str, schema: str, name: str) -> ShownTable | None:
        """Return a table, None if it is not there (any more)."""
        known = self._rows.named(schema, name)
        if known is not None:
            return await self._rows.listed(known, catalog)
        try:
            return await self._catalog.listed(schema, name)
        except UnknownTableError:
            return None

    async def get_table(self, full_name: str) -> CatalogTable:
        catalog, schema, table = _parts(full_name, 3)
        return listed_table(catalog, await self._load(schema, table, catalog))

    async def drop_table(self, full_name: str) -> DroppedAnswer:
        _, schema, table = _parts(full_name, 3)
        self._check_change(schema, table)
        await self._catalog.drop(schema, table)
        return DroppedAnswer()

    async def create_staging_table(
        self, catalog: str, schema: str, body: StagingTableRequest
    ) -> StagingTableAnswer:
        check_writes(lambda: (f"{schema}.{body.name}",))
        self._rows.check_free(schema, body.name)
        uuid, location = await self._catalog.stage(schema, body.name)
        try:
            given = await self._catalog.credentials(uuid, writes=True)
        except TxLogError:
            await self._catalog.give_up(uuid)  # nobody knows of it
            raise
        return staging_answer(uuid, location, given)

    async def create_delta_table(
        self, catalog: str, schema: str, body: CreateTableRequest
    ) -> LoadedTable:
        check_writes(lambda: (f"{schema}.{body.name}",))
        self._rows.check_free(schema, body.name)
        return loaded_table(await self._catalog.create(schema, body))

    async def load_delta_table(
        self, request: Request, catalog: str, schema: str, table: str
    ) -> LoadedTable | Response:
        found = await self._load(schema, table, catalog)
        return Response(status_code=204) if request.method == "HEAD" else loaded_table(found)

    async def update_delta_table(
        self, catalog: str, schema: str, table: str, body: UpdateTableRequest
    ) -> LoadedTable:
        self._check_change(schema, table)
        return loaded_table(await self._catalog.update(schema, table, read_update(body)))

    async def delete_delta_table(self, catalog: str, schema: str, table: str) -> None:
        self._check_change(schema, table)
        await self._catalog.drop(schema, table)

    async def rename_delta_table(
        self, catalog: str, schema: str, table: str, body: RenameTableRequest
    ) -> None:
        self._check_change(schema, table, body.new_name)
        self._rows.check_free(schema, body.new_name)
        await self._catalog.rename(schema, table, body.new_name)

    async def report_metrics(
        self, catalog: str, schema: str, table: str, body: MetricsRequest
    ) -> None:
        found = await self._load(schema, table)
        if body.table_id.lower() != found.uuid:
            raise InvalidRequestError(
                f"table-id is {body.table_id[:40]!r}, that of {found.name!r} is {found.uuid}",
                field="table-id",
                value=body.table_id[:40],
            )

    def _check_change(self, schema: str, table: str, *also: str) -> None:
        """Let a request change a commit table, and write other names of its schema, or raise."""
        check_writes(lambda: [f"{schema}.{name}" for name in (table, *also)])
        self._rows.refuse_change(schema, table)

    async def _load(self, schema: str, name: str, catalog: str = "") -> ShownTable:
        known = self._rows.named(schema, name)
        if known is not None:
            return await self._rows.load(known, catalog)
        return await self._catalog.load(schema, name)

    # -- credentials -------------------------------------------------------------------------------

    async def table_credentials(
        self, catalog: str, schema: str, table: str, operation: str
    ) -> CredentialsAnswer:
        return CredentialsAnswer((await self._given(schema, table, operation))[1])

    async def temporary_table_credentials(
        self, body: TemporaryCredentialsRequest
    ) -> TemporaryCredentials:
        uuid = body.table_id.lower()
        name = self._catalog.name_at(uuid)
        if name is None and (known := await self._rows.with_uuid(uuid)) is not None:
            name = full_table_name(known.name)
        if name is None:
            raise UnknownTableError(
                f"no table has the id {body.table_id[:40]!r}",
                hint="Its id is the table_id that GET …/tables/{full_name} says.",
                value=body.table_id[:40],
            )
        schema, _, table = name.partition(".")
        return temporary_credentials(*await self._given(schema, table, body.operation))

    async def _given(
        self, schema: str, table: str, operation: str
    ) -> tuple[ShownTable, Sequence[StorageCredential]]:
        """Return a table, and the credentials for it; none = clients have their own."""
        if operation not in ("READ", "READ_WRITE"):
            raise InvalidRequestError(
                f"operation is {operation[:40]!r}, expected READ or READ_WRITE",
                field="operation",
                value=operation[:40],
            )
        writes = operation == "READ_WRITE"
        if writes:
            self._check_change(schema, table)
        found = await self._load(schema, table)
        if found.external is not None:
            return found, ()
        return found, await self._catalog.credentials(found.uuid, writes=writes)

    async def staging_credentials(self, table_id: str) -> CredentialsAnswer:
        uuid = table_id.lower()
        if not await self._catalog.is_staged(uuid):
            raise UnknownTableError(
                f"no staging table has UUID {table_id[:40]!r}", value=table_id[:40]
            )
        if (name := self._catalog.name_at(uuid)) is not None:  # it is a table by now
            check_writes(lambda: (name,))
        return CredentialsAnswer(await self._catalog.credentials(uuid, writes=True))


def _id_of(log_id: str) -> str:
    return str(uuids.uuid5(uuids.NAMESPACE_URL, log_id))


def _page(names: Iterable[str], most: int, after: str | None) -> tuple[list[str], str | None]:
    """Return the names of a page, in order, and where the next one begins; None = nowhere.

    Args:
        most: Names that the client wants; 0 = as many as the node gives, `LISTED`.
        after: The last name of the page before.
    """
    seen = (after or "").lower()
    left = sorted((name for name in names if name.lower() > seen), key=str.lower)
    page = left[: min(most or LISTED, LISTED)]
    return page, page[-1] if len(page) < len(left) else None


def _parts(full_name: str, wanted: int) -> list[str]:
    """Return the parts of a name: of a schema 2, of a table 3."""
    parts = full_name.split(".")
    if len(parts) != wanted:
        kind = UnknownSchemaError if wanted == 2 else UnknownTableError
        raise kind(
            f"{full_name[:80]!r} has {len(parts)} parts, {wanted} are expected",
            hint="Use 'catalog.schema' for a schema and 'catalog.schema.table' for a table.",
            value=full_name[:80],
        )
    return parts
