"""An existing Delta table as version 0 of a commit table: what it says, and what is in the way.

The first commit lists the live files of the table as it is, with their deletion vectors and
statistics, beneath the same columns, partitioning, clustering and properties.  Older versions are
not taken along.
"""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparktxlog.codec.delta_catalog.catalog_requests import CreateTableRequest, ProtocolOfRequest
from sparktxlog.codec.delta_catalog.column_types import to_api_type
from sparktxlog.codec.delta_catalog.table_states import (
    KNOWN_FEATURES,
    REQUIRED_PROPERTIES,
    REQUIRED_READER,
    REQUIRED_WRITER,
    TABLE_ID,
    DeltaTableState,
    domain_value,
)
from sparktxlog.delta.commit_contents import CommitContent, read_commit_file
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import StagedCommitError

Action = dict[str, Any]

#: Feature of an old protocol → versions of reader and writer from which on a table has it.
_IMPLIED = {
    "appendOnly": (1, 2),
    "invariants": (1, 2),
    "checkConstraints": (1, 3),
    "changeDataFeed": (1, 4),
    "generatedColumns": (1, 4),
    "columnMapping": (2, 5),
    "identityColumns": (1, 6),
}
_FEATURES_READER, _FEATURES_WRITER = 3, 7
#: Features that say how the old history may be shortened; the new table begins its own.
_OF_THE_HISTORY = frozenset({"checkpointProtection"})
#: Properties about the old history, or of another catalog.
_DROPPED = (
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.requireCheckpointProtectionBeforeVersion",
    "delta.coordinatedCommits.",
    "io.unitycatalog.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """A Delta table at its newest version."""

    path: str
    log: LogState

    @property
    def protocol_of_commits(self) -> Action:
        """The protocol as features, with those that a commit table needs."""
        given = self.log.protocol
        versions = (given["minReaderVersion"], given["minWriterVersion"])
        readers = {*(given.get("readerFeatures") or ())}
        writers = {*(given.get("writerFeatures") or ())}
        if versions[1] < _FEATURES_WRITER:
            writers |= {name for name, (_, least) in _IMPLIED.items() if versions[1] >= least}
        if versions[0] < _FEATURES_READER and versions[0] >= 2 and "columnMapping" in writers:
            readers.add("columnMapping")
        if "columnMapping" not in readers:
            writers.discard("columnMapping")
        return {
            "minReaderVersion": _FEATURES_READER,
            "minWriterVersion": _FEATURES_WRITER,
            "readerFeatures": sorted({*readers, *REQUIRED_READER} - _OF_THE_HISTORY),
            "writerFeatures": sorted({*writers, *REQUIRED_WRITER} - _OF_THE_HISTORY),
        }

    @property
    def obstacles(self) -> list[str]:
        """Why it cannot become a commit table; empty = it can."""
        given = self.log.features
        found = [
            f"it has feature {name!r}, which commit tables do not have"
            for name in sorted(given - KNOWN_FEATURES - _OF_THE_HISTORY)
        ]
        if "catalogManaged" in given:
            found.append("it is managed by a catalog, which decides its versions")
        try:
            read_commit_file(self.first_commit(str(uuids.UUID(int=0)), 1))
        except StagedCommitError as error:
            found.append(error.message)
        return found

    @property
    def left_behind(self) -> list[str]:
        """What a commit table does not keep of it, for people; older versions neither."""
        content = read_commit_file(self.first_commit("its own", 1))
        assert content.protocol is not None and content.metadata is not None
        kept = content.metadata.configuration
        return [
            *(f"feature {name}" for name in sorted(self.log.features - content.protocol.features)),
            *(f"property {name}" for name in sorted(self.log.configuration) if name not in kept),
            *left_writers(self.log.transactions),
        ]

    def first_commit(self, uuid: str, timestamp: int) -> bytes:
        """Return the commit file of version 0.

        Args:
            uuid: Of the commit table.
            timestamp: Its in-commit timestamp, milliseconds since 1970 UTC.
        """
        info = {
            "inCommitTimestamp": timestamp,
            "timestamp": timestamp,
            "operation": "ADOPT",
            "operationParameters": {
                "source": json.dumps(self.path),
                "sourceVersion": json.dumps(self.log.version),
            },
            "isBlindAppend": False,
            "engineInfo": "sparktxlog",
            "txnId": str(uuids.uuid4()),
        }
        kept = self.log.configuration
        properties = {
            **{key: value for key, value in kept.items() if not key.startswith(_DROPPED)},
            **REQUIRED_PROPERTIES,
            TABLE_ID: uuid,
        }
        # A stream that read the old table must not take the new one's versions for those.
        own = {"id": str(uuids.uuid4()), "configuration": properties, "createdTime": timestamp}
        actions: list[Action] = [
            {"commitInfo": info},
            {"metaData": self.log.metadata | own},
            {"protocol": self.protocol_of_commits},
        ]
        actions += [
            {"domainMetadata": {"domain": name, "configuration": text, "removed": False}}
            for name, text in self.log.domains.items()
        ]
        actions += [{"add": _as_new(add)} for add in self.log.adds.values()]
        dumped = (json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in actions)
        return "".join(f"{line}\n" for line in dumped).encode()


def _as_new(add: Action) -> Action:
    found = add | {"dataChange": True}
    if "defaultRowCommitVersion" in found:
        found["defaultRowCommitVersion"] = 0
    return found


def left_writers(writers: Iterable[str]) -> list[str]:
    """Say what becomes of the transactions that writers of an old table counted in its log."""
    named = sorted(writers)
    if not named:
        return []
    more = f" and {len(named) - 3:,} more" if len(named) > 3 else ""
    twice = "a stream that goes on may write its last batch twice"
    return [f"how far {', '.join(named[:3])}{more} came ({twice})"]


def creation_of(content: CommitContent, name: str, location: str) -> CreateTableRequest:
    """Return the request that makes a commit table of its first commit.

    Raises:
        StagedCommitError: The commit does not make a table (definite).
    """
    state = DeltaTableState.first(content)
    protocol, metadata = state.protocol, state.metadata
    return CreateTableRequest(
        name=name,
        location=location,
        table_type="MANAGED",
        columns=to_api_type(metadata.columns),
        protocol=ProtocolOfRequest(
            min_reader_version=protocol.min_reader_version,
            min_writer_version=protocol.min_writer_version,
            reader_features=protocol.reader_features,
            writer_features=protocol.writer_features,
        ),
        properties=metadata.configuration,
        last_commit_timestamp_ms=state.timestamp,
        comment=metadata.description,
        partition_columns=metadata.partition_columns,
        domain_metadata={key: domain_value(text) for key, text in state.domains.items()},
    )
