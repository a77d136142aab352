"""A client of the catalog's API that writes Delta commits without Spark, for tests.

It writes what Delta writes, with files of arbitrary bytes in the place of Parquet.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

API = "/api/2.1/unity-catalog"
DELTA = f"{API}/delta/v1"
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "string", "containsNull": True},
            "nullable": True,
            "metadata": {"comment": "many"},
        },
    ],
}
API_SCHEMA: dict[str, Any] = json.loads(
    json.dumps(SCHEMA)
    .replace("elementType", "element-type")
    .replace("containsNull", "contains-null")
)
FEATURES = ["catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"]
#: In-commit timestamp of version 0, milliseconds since 1970 UTC.
BEGIN = 1_700_000_000_000


def path_of(table: str = "", schema: str = "default", catalog: str = "tx") -> str:
    """Return the path of a table, or of all tables of a schema."""
    path = f"{DELTA}/catalogs/{catalog}/schemas/{schema}/tables"
    return f"{path}/{table}" if table else path


@dataclass
class StagedTable:
    """A table at its place, as a client writes it."""

    table_id: str
    directory: Path
    location: str
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: dict[str, Any]) -> StagedTable:
        """Return the table of an answer to `staging-tables`, its definition as Delta makes it."""
        required = answer["required-protocol"]
        return cls(
            table_id=answer["table-id"],
            directory=Path(answer["location"].removeprefix("file:")),
            location=answer["location"],
            metadata={
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(SCHEMA),
                "partitionColumns": [],
                "configuration": answer["required-properties"],
                "createdTime": BEGIN,
            },
            protocol={
                "minReaderVersion": required["min-reader-version"],
                "minWriterVersion": required["min-writer-version"],
                "readerFeatures": required["reader-features"],
                "writerFeatures": required["writer-features"],
            },
        )

    def write_first(self, *more: dict[str, Any], timestamp: int = BEGIN) -> None:
        """Write version 0."""
        actions = [info_of(timestamp), {"metaData": self.metadata}, {"protocol": self.protocol}]
        self.put(f"_delta_log/{0:020}.json", lines_of(*actions, *more))

    def put(self, name: str, content: bytes) -> None:
        """Write a file of the table."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def creation(self, name: str = "t", **changes: Any) -> dict[str, Any]:
        """Return the body of the request that creates the table."""
        body = {
            "name": name,
            "location": self.location,
            "table-type": "MANAGED",
            "columns": API_SCHEMA,
            "protocol": {
                "min-reader-version": self.protocol["minReaderVersion"],
                "min-writer-version": self.protocol["minWriterVersion"],
                "reader-features": self.protocol["readerFeatures"],
                "writer-features": self.protocol["writerFeatures"],
            },
            "properties": self.metadata["configuration"],
            "last-commit-timestamp-ms": BEGIN,
        }
        return body | changes

    def add(self, content: bytes = b"rows") -> dict[str, Any]:
        """Write a data file; return the action that adds it."""
        name = f"part-{uuid.uuid4()}.parquet"
        self.put(name, content)
        return {
            "add": {
                "path": name,
                "size": len(content),
                "partitionValues": {},
                "modificationTime": BEGIN,
                "dataChange": True,
            }
        }

    def stage(
        self, version: int, *actions: dict[str, Any], timestamp: int | None = None
    ) -> dict[str, Any]:
        """Stage a commit; return what the request says about it."""
        timestamp = BEGIN + version if timestamp is None else timestamp
        name = f"{version:020}.{uuid.uuid4()}.json"
        content = lines_of(info_of(timestamp), *actions)
        self.put(f"_delta_log/_staged_commits/{name}", content)
        return {
            "version": version,
            "timestamp": timestamp,
            "file-name": name,
            "file-size": len(content),
            "file-modification-timestamp": timestamp,
        }

    def staged(self, name: str) -> Path:
        """Return the path of a staged commit."""
        return self.directory / "_delta_log" / "_staged_commits" / name

    def published(self, version: int) -> Path:
        """Return the path of a published version."""
        return self.directory / "_delta_log" / f"{version:020}.json"

    def update(self, commit: dict[str, Any] | None, *actions: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a request that commits a staged commit."""
        updates = [] if commit is None else [{"action": "add-commit", "commit": commit}]
        return {
            "requirements": [{"type": "assert-table-uuid", "uuid": self.table_id}],
            "updates": [*updates, *actions],
        }


def info_of(timestamp: int) -> dict[str, Any]:
    """Return the first action of a commit."""
    info = {"inCommitTimestamp": timestamp, "operation": "WRITE", "txnId": str(uuid.uuid4())}
    return {"commitInfo": info}


def lines_of(*actions: dict[str, Any]) -> bytes:
    """Return a commit file."""
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)
