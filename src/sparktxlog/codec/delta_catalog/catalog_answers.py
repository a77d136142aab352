"""Answers of the catalog's API, as they are encoded.

Those for Delta tables have keys with hyphens (`delta.yaml` of the public API), those for schemas
and lists have underscores (`all.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sparktxlog.codec.delta_catalog.column_types import to_api_type
from sparktxlog.codec.delta_catalog.listed_columns import ColumnInfo, columns_of
from sparktxlog.codec.delta_catalog.table_states import (
    REQUIRED_PROPERTIES,
    REQUIRED_READER,
    REQUIRED_WRITER,
    SUGGESTED_PROPERTIES,
    SUGGESTED_WRITER,
    TABLE_ID,
    DeltaTableState,
)

#: The version of the API that this catalog speaks.
PROTOCOL_VERSION = "1.0"


class CatalogConfig(msgspec.Struct, rename="kebab"):
    """What the catalog offers."""

    endpoints: list[str]
    protocol_version: str


class ProtocolAnswer(msgspec.Struct, rename="kebab", omit_defaults=True):
    """Versions and features; a suggestion has features only."""

    min_reader_version: int | None = None
    min_writer_version: int | None = None
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


class StorageCredential(msgspec.Struct, rename="kebab"):
    """Credentials for what is below a prefix, which end."""

    prefix: str
    operation: str
    #: As the API names them: `s3.access-key-id`, `s3.secret-access-key`, `s3.session-token`; or
    #: `azure.sas-token`.
    config: dict[str, str]
    expiration_time_ms: int


class StagingTableAnswer(msgspec.Struct, rename="kebab"):
    """Where a new table is to be written, and what it must be."""

    table_id: str
    table_type: str
    location: str
    storage_credentials: Sequence[StorageCredential]
    required_protocol: ProtocolAnswer
    suggested_protocol: ProtocolAnswer
    required_properties: dict[str, str]
    suggested_properties: dict[str, str]


class DeltaTableMetadata(msgspec.Struct, rename="kebab"):
    """A table, at its newest version."""

    etag: str
    data_source_format: str
    table_type: str
    table_uuid: str
    location: str
    created_time: int
    updated_time: int
    columns: dict[str, Any]
    partition_columns: tuple[str, ...]
    properties: dict[str, str]
    last_commit_version: int
    last_commit_timestamp_ms: int


class LoadedTable(msgspec.Struct, rename="kebab"):
    """A table; all its versions are published, so no commit is listed."""

    metadata: DeltaTableMetadata
    commits: list[Any]
    latest_table_version: int


class CredentialsAnswer(msgspec.Struct, rename="kebab"):
    """Credentials for a table's storage; none = clients have their own, or share a file system."""

    storage_credentials: Sequence[StorageCredential] = ()


class AwsCredentials(msgspec.Struct):
    """Credentials of S3."""

    access_key_id: str
    secret_access_key: str
    session_token: str


class AzureSignature(msgspec.Struct):
    """A signature of Azure."""

    sas_token: str


class TemporaryCredentials(msgspec.Struct, omit_defaults=True):
    """Credentials for a table's storage; none = clients have their own, or share a file system."""

    url: str
    aws_temp_credentials: AwsCredentials | None = None
    azure_user_delegation_sas: AzureSignature | None = None
    #: Milliseconds since 1970 UTC.
    expiration_time: int | None = None


class CatalogInfo(msgspec.Struct):
    """The log, as a catalog."""

    name: str
    id: str
    comment: str


class CatalogsAnswer(msgspec.Struct):
    """All catalogs: the log has one."""

    catalogs: list[CatalogInfo]
    next_page_token: str | None = None


class SchemaAnswer(msgspec.Struct):
    """A schema."""

    name: str
    catalog_name: str
    full_name: str
    schema_id: str
    comment: str = ""
    properties: dict[str, str] = {}


class SchemasAnswer(msgspec.Struct):
    """All schemas."""

    schemas: list[SchemaAnswer]
    next_page_token: str | None = None


class CatalogTable(msgspec.Struct):
    """A table; one that is not placed at this site has no columns."""

    name: str
    catalog_name: str
    schema_name: str
    table_type: str
    data_source_format: str
    columns: list[ColumnInfo]
    storage_location: str
    table_id: str
    created_at: int
    updated_at: int
    comment: str = ""
    properties: dict[str, str] = {}


class ListedTables(msgspec.Struct):
    """The tables of a schema."""

    tables: list[CatalogTable]
    next_page_token: str | None = None


class DroppedAnswer(msgspec.Struct):
    """An object without keys: clients of the API for schemas and lists want to read one."""


class MetastoreAnswer(msgspec.Struct):
    """The log, as the API's metastore."""

    metastore_id: str
    name: str


def staging_answer(
    uuid: str, location: str, credentials: Sequence[StorageCredential]
) -> StagingTableAnswer:
    """Return what a client must know to write version 0 of a table."""
    return StagingTableAnswer(
        table_id=uuid,
        table_type="MANAGED",
        location=location,
        storage_credentials=credentials,
        required_protocol=ProtocolAnswer(
            min_reader_version=3,
            min_writer_version=7,
            reader_features=REQUIRED_READER,
            writer_features=REQUIRED_WRITER,
        ),
        suggested_protocol=ProtocolAnswer(writer_features=SUGGESTED_WRITER),
        required_properties={**REQUIRED_PROPERTIES, TABLE_ID: uuid},
        suggested_properties=SUGGESTED_PROPERTIES,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTable:
    """A table of either kind as clients see it: at its newest version that is at this site."""

    #: `schema.table`.
    name: str
    #: Lower-case text with hyphens; the same at all sites.
    uuid: str
    #: `file:` URL of its directory.
    location: str
    #: What holds for it; None = not known here, which only a list shows.
    placed: DeltaTableState | None
    #: Of a row table, which is an external one: its properties other than those of the state.
    external: Mapping[str, str] | None = None

    @property
    def state(self) -> DeltaTableState:
        """What holds for it; only a list has tables without."""
        assert self.placed is not None
        return self.placed

    @property
    def table_type(self) -> str:
        """Its kind, as the API calls it."""
        return "MANAGED" if self.external is None else "EXTERNAL"

    @property
    def properties(self) -> dict[str, str]:
        """All of its properties that are known here."""
        return {**(self.placed.properties if self.placed else {}), **(self.external or {})}


def loaded_table(shown: ShownTable) -> LoadedTable:
    """Return the answer to a client that loads a table."""
    state = shown.state
    metadata = DeltaTableMetadata(
        etag=state.etag,
        data_source_format="DELTA",
        table_type=shown.table_type,
        table_uuid=shown.uuid,
        location=shown.location,
        created_time=state.created,
        updated_time=state.timestamp,
        columns=to_api_type(state.metadata.columns),
        partition_columns=state.metadata.partition_columns,
        properties=shown.properties,
        last_commit_version=state.changed_version,
        last_commit_timestamp_ms=state.changed_timestamp,
    )
    return LoadedTable(metadata=metadata, commits=[], latest_table_version=state.version)


def listed_table(catalog: str, shown: ShownTable) -> CatalogTable:
    """Return a table for a list."""
    schema, _, table = shown.name.partition(".")
    return CatalogTable(
        name=table,
        catalog_name=catalog,
        schema_name=schema,
        table_type=shown.table_type,
        data_source_format="DELTA",
        columns=columns_of(shown.placed),
        storage_location=shown.location,
        table_id=shown.uuid,
        created_at=shown.placed.created if shown.placed else 0,
        updated_at=shown.placed.timestamp if shown.placed else 0,
        comment=(shown.placed.metadata.description if shown.placed else None) or "",
        properties=shown.properties,
    )


def schema_answer(
    catalog: str, schema: str, comment: str = "", properties: Mapping[str, str] | None = None
) -> SchemaAnswer:
    """Return a schema; its id is its name."""
    return SchemaAnswer(
        name=schema,
        catalog_name=catalog,
        full_name=f"{catalog}.{schema}",
        schema_id=schema,
        comment=comment,
        properties=dict(properties or {}),
    )


def temporary_credentials(
    shown: ShownTable, given: Sequence[StorageCredential]
) -> TemporaryCredentials:
    """Return credentials as the API for lists says them."""
    if not given:
        return TemporaryCredentials(url=shown.location)
    (one,) = given
    config, signature = one.config, one.config.get("azure.sas-token")
    return TemporaryCredentials(
        url=shown.location,
        aws_temp_credentials=None
        if signature is not None
        else AwsCredentials(
            access_key_id=config["s3.access-key-id"],
            secret_access_key=config["s3.secret-access-key"],
            session_token=config["s3.session-token"],
        ),
        azure_user_delegation_sas=None if signature is None else AzureSignature(signature),
        expiration_time=one.expiration_time_ms,
    )
