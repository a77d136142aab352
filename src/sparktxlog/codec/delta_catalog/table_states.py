"""What holds for a commit table at one of its versions: columns, properties, protocol, domains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from sparktxlog.delta.commit_contents import (
    CommitContent,
    TableMetadata,
    TableProtocol,
)
from sparktxlog.errors import StagedCommitError

#: What `properties` says about rows that are tracked and clustered: property → domain, key.
CLUSTERING, ROW_TRACKING = "delta.clustering", "delta.rowTracking"
_FROM_DOMAINS = (
    ("delta.clusteringColumns", CLUSTERING, "clusteringColumns"),
    ("delta.rowTracking.rowIdHighWaterMark", ROW_TRACKING, "rowIdHighWaterMark"),
)
#: Features without which a table cannot be a commit table, and all that it may have.  Others may
#: keep files where no site looks for them, or expect what this catalog does not do.
REQUIRED_READER = ("catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck")
REQUIRED_WRITER = (*REQUIRED_READER, "inCommitTimestamp")
SUGGESTED_WRITER = ("domainMetadata", "rowTracking")
KNOWN_FEATURES = frozenset(
    {
        *REQUIRED_WRITER,
        *SUGGESTED_WRITER,
        *("allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "clustering"),
        *("columnMapping", "generatedColumns", "identityColumns", "invariants", "timestampNtz"),
        *("typeWidening", "variantType", "variantShredding"),
    }
)
#: Property of a table that holds its UUID, and others with the value that they must have.
TABLE_ID = "io.unitycatalog.tableId"
REQUIRED_PROPERTIES = {
    "delta.checkpointPolicy": "v2",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
}
#: Property of a table whose commits are synchronous, and its values (P34).
SYNCHRONOUS, SYNCHRONOUS_VALUES = "sparktxlog.synchronous", ("true", "false")
SUGGESTED_PROPERTIES = {"delta.enableRowTracking": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTableState:
    """A commit table at one version."""

    version: int
    #: In-commit timestamp of that version, milliseconds since 1970 UTC.
    timestamp: int
    metadata: TableMetadata
    protocol: TableProtocol
    #: Domain → its configuration as JSON text.
    domains: dict[str, str]
    #: In-commit timestamp of version 0.
    created: int
    #: The version that changed columns, properties, protocol or clustering last, and its timestamp.
    changed_version: int
    changed_timestamp: int

    @classmethod
    def first(cls, content: CommitContent) -> DeltaTableState:
        """Return the state at version 0.

        Raises:
            StagedCommitError: The commit does not make a table (definite).
        """
        if content.metadata is None or content.protocol is None:
            missing = "metaData" if content.metadata is None else "protocol"
            raise StagedCommitError(f"version 0 has no {missing}", field=missing, value="missing")
        return cls(
            version=0,
            timestamp=content.timestamp,
            metadata=content.metadata,
            protocol=content.protocol,
            domains={name: one for name, one in content.domains.items() if one is not None},
            created=content.timestamp,
            changed_version=0,
            changed_timestamp=content.timestamp,
        )

    def after(self, content: CommitContent) -> DeltaTableState:
        """Return the state after the next commit."""
        domains = self.domains
        if content.domains:
            merged = self.domains | content.domains
            domains = {name: one for name, one in merged.items() if one is not None}
        found = replace(
            self,
            version=self.version + 1,
            timestamp=content.timestamp,
            metadata=content.metadata or self.metadata,
            protocol=content.protocol or self.protocol,
            domains=domains,
        )
        if found.defined == self.defined:
            return found
        return replace(found, changed_version=found.version, changed_timestamp=found.timestamp)

    @property
    def defined(self) -> tuple[Any, ...]:
        """All that holds until somebody changes the table; rows that come change none of it."""
        return self.metadata, self.protocol, self.domains.get(CLUSTERING)

    @property
    def is_sync(self) -> bool:
        """Whether each commit of the table is synchronous (P34)."""
        return self.metadata.configuration.get(SYNCHRONOUS) == SYNCHRONOUS_VALUES[0]

    @property
    def etag(self) -> str:
        """A text that changes with the table's definition, not with its rows."""
        return str(self.changed_version)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties, and those that the catalog derives from protocol and domains."""
        derived = {
            "delta.minReaderVersion": str(self.protocol.min_reader_version),
            "delta.minWriterVersion": str(self.protocol.min_writer_version),
            **{f"delta.feature.{name}": "supported" for name in sorted(self.protocol.features)},
            "delta.lastUpdateVersion": str(self.changed_version),
            "delta.lastCommitTimestamp": str(self.changed_timestamp),
        }
        for key, domain, name in _FROM_DOMAINS:
            value = domain_value(self.domains.get(domain)).get(name)
            if value is not None:
                derived[key] = msgspec.json.encode(value).decode()
        return self.metadata.configuration | derived

    def check(self, uuid: str) -> None:
        """Check that the state is one of a commit table.

        Raises:
            StagedCommitError: A feature or property is missing, wrong or not known (definite).
        """
        self.metadata.columns  # noqa: B018 - it raises if the text is no schema
        protocol, given = self.protocol, self.metadata.configuration
        lacking = {*REQUIRED_READER} - {*protocol.reader_features}
        lacking |= {*REQUIRED_WRITER} - {*protocol.writer_features}
        if lacking:
            raise _unfit("protocol", sorted(lacking), "lacks features that a commit table needs")
        unknown = protocol.features - KNOWN_FEATURES
        if unknown:
            raise _unfit(
                "protocol", sorted(unknown), "has features that this catalog does not know"
            )
        for key, value in {**REQUIRED_PROPERTIES, TABLE_ID: uuid}.items():
            if given.get(key) != value:
                raise _unfit("properties", f"{key}={given.get(key)}", f"needs {key}={value}")


def domain_value(text: str | None) -> dict[str, Any]:
    """Return the decoded configuration of a domain; nothing if it has none, or it is no JSON."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def _unfit(field: str, value: object, problem: str) -> StagedCommitError:
    return StagedCommitError(
        f"the table's {field} {problem}: {value}",
        hint="The answer to staging-tables says what a table needs.",
        field=field,
        value=str(value)[:200],
    )
