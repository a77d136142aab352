"""Requests to the catalog's API for Delta tables, as they are decoded.

The API is public: Unity Catalog, managed tables, version 1.0.  Keys have hyphens; keys that a later
version of it may add are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from sparktxlog.codec.delta_catalog.column_types import check_nesting
from sparktxlog.delta.commit_contents import TableProtocol
from sparktxlog.errors import InvalidRequestError, NotOfferedError

#: Where Unity Catalog's API for Delta tables is, and its part that is for Delta only.
CATALOG_API = "/api/2.1/unity-catalog"
DELTA_API = f"{CATALOG_API}/delta"

_STAGED = re.compile(r"([0-9]{20})\.([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.json")
#: Actions of external tables, and of tables that are shown in another format, too.
_NOT_OFFERED = frozenset({"update-metadata-snapshot-version"})
ADD_COMMIT, BACKFILLED = "add-commit", "set-latest-backfilled-version"


class StagingTableRequest(msgspec.Struct):
    """Asks for the place of a table that is to be created."""

    name: str


class ProtocolOfRequest(msgspec.Struct, rename="kebab"):
    """A table's protocol."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    def as_delta(self) -> TableProtocol:
        """Return it as Delta has it."""
        return TableProtocol(
            min_reader_version=self.min_reader_version,
            min_writer_version=self.min_writer_version,
            reader_features=self.reader_features or (),
            writer_features=self.writer_features or (),
        )


class CreateTableRequest(msgspec.Struct, rename="kebab"):
    """Says that version 0 of a table is written, and what it says."""

    name: str
    location: str
    table_type: str
    columns: dict[str, Any]
    protocol: ProtocolOfRequest
    properties: dict[str, str]
    last_commit_timestamp_ms: int
    comment: str | None = None
    partition_columns: tuple[str, ...] | None = None
    domain_metadata: dict[str, dict[str, Any]] | None = None
    uniform: dict[str, Any] | None = None


class ProposedCommit(msgspec.Struct, rename="kebab"):
    """A staged commit that is to become a version."""

    version: int
    timestamp: int
    file_name: str
    file_size: int
    file_modification_timestamp: int

    @property
    def transaction_id(self) -> bytes:
        """The UUID in the file's name, 16 bytes.

        Raises:
            InvalidRequestError: The name is not that of this version (definite).
        """
        match = _STAGED.fullmatch(self.file_name)
        if match is None or int(match[1]) != self.version or self.version < 1:
            raise InvalidRequestError(
                f"file-name {self.file_name[:80]!r} cannot be that of version {self.version}",
                hint="Its name is the version with 20 digits, a UUID and '.json', from version 1.",
                field="file-name",
                value=self.file_name[:80],
            )
        return bytes.fromhex(match[2].replace("-", ""))


class Requirement(msgspec.Struct):
    """What must hold for an update."""

    type: str
    uuid: str | None = None
    etag: str | None = None


class UpdateTableRequest(msgspec.Struct):
    """Commits a version, or says that versions are published."""

    requirements: list[Requirement]
    updates: list[dict[str, Any]]


class RenameTableRequest(msgspec.Struct, rename="kebab"):
    """Gives a table another name in its schema."""

    new_name: str


class MetricsRequest(msgspec.Struct, rename="kebab"):
    """What a client reports about its commit."""

    table_id: str
    report: dict[str, Any] | None = None


class NewSchemaRequest(msgspec.Struct):
    """A schema to create."""

    name: str
    catalog_name: str
    comment: str | None = None
    properties: dict[str, str] | None = None


class TemporaryCredentialsRequest(msgspec.Struct):
    """Asks for credentials of a table by its id, as the API for lists shows it."""

    table_id: str
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A checked update: at most one action of each kind."""

    #: The table must have this UUID, and this etag if one is given.
    uuid: str
    etag: str | None
    commit: ProposedCommit | None
    #: Versions up to this one are published, says the client.
    backfilled: int | None
    #: Name of the action → the action, for all that change the table's definition.
    changes: dict[str, dict[str, Any]]


def read_update(request: UpdateTableRequest) -> Update:
    """Return the update of a request.

    Raises:
        InvalidRequestError: It says something twice, not at all, or in a wrong form (definite).
        NotOfferedError: It asks for what this catalog does not do (definite).
    """
    check_nesting("updates", request.updates)
    requirements = {one.type: one for one in request.requirements}
    uuid = requirements.get("assert-table-uuid", Requirement(type="")).uuid
    unknown = requirements.keys() - {"assert-table-uuid", "assert-etag"}
    if len(requirements) != len(request.requirements) or unknown or uuid is None:
        raise _wrong("requirements", sorted(one.type for one in request.requirements))
    etag = requirements.get("assert-etag")
    if etag is not None and etag.etag is None:
        raise _wrong("requirements", "assert-etag without etag")
    actions = {str(one.get("action")): one for one in request.updates}
    if not actions or len(actions) != len(request.updates):
        raise _wrong("updates", [str(one.get("action"))[:40] for one in request.updates])
    for name in actions.keys() & _NOT_OFFERED:
        raise NotOfferedError(
            f"action {name!r} is for external tables, which this catalog does not have",
            field="updates",
            value=name,
        )
    given = actions.pop(ADD_COMMIT, None)
    backfilled = actions.pop(BACKFILLED, None)
    if given is not None and given.get("uniform") is not None:
        raise NotOfferedError(
            "commit tables cannot be read as Iceberg (uniform)", field="uniform", value="given"
        )
    return Update(
        uuid=uuid.lower(),
        etag=None if etag is None else etag.etag,
        commit=None if given is None else converted(given.get("commit"), ProposedCommit, "commit"),
        backfilled=None
        if backfilled is None
        else converted(backfilled.get("latest-published-version"), int, "latest-published-version"),
        changes=actions,
    )


def update_of(
    uuid: str, commit: ProposedCommit, changes: Iterable[dict[str, Any]] = ()
) -> UpdateTableRequest:
    """Return the request that commits a staged commit.

    Args:
        uuid: The UUID that the table must have.
        changes: The actions that say what the commit changes of the table's definition.
    """
    return UpdateTableRequest(
        requirements=[Requirement(type="assert-table-uuid", uuid=uuid)],
        updates=[{"action": ADD_COMMIT, "commit": msgspec.to_builtins(commit)}, *changes],
    )


def converted(value: Any, kind: Any, field: str) -> Any:
    """Return a decoded value as one of a type.

    Raises:
        InvalidRequestError: It is none (definite).
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(
            f"{field} cannot be read: {error}",
            hint="Nothing happened. Give it the form that /docs of the node shows.",
            field=field,
            value=str(value)[:80],
        ) from error


def _wrong(field: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"{field} is {str(value)[:120]}",
        hint="One action at least, and each kind of action and requirement once at most; "
        "assert-table-uuid with its uuid is always required.",
        field=field,
        value=str(value)[:120],
    )
