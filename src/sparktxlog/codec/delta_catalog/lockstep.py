"""A request and the commit file that it names must say the same about the table.

Columns, properties, protocol and domains are taken from the file, never from the request.  A
difference is an error of the client, and refused: nobody could say which of both it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparktxlog.codec.delta_catalog.catalog_requests import (
    CreateTableRequest,
    ProtocolOfRequest,
    Update,
    converted,
)
from sparktxlog.codec.delta_catalog.column_types import (
    check_nesting,
    to_delta_type,
)
from sparktxlog.codec.delta_catalog.table_states import (
    ROW_TRACKING,
    DeltaTableState,
    domain_value,
)
from sparktxlog.delta.commit_contents import CommitContent
from sparktxlog.errors import InvalidRequestError, StagedCommitError

#: Action → key of its value, and the type of that.
_VALUES: dict[str, tuple[str, Any]] = {
    "set-properties": ("updates", dict[str, str]),
    "remove-properties": ("removals", list[str]),
    "set-columns": ("columns", dict[str, Any]),
    "set-table-comment": ("comment", str | None),
    "set-protocol": ("protocol", ProtocolOfRequest),
    "set-domain-metadata": ("updates", dict[str, dict[str, Any]]),
    "remove-domain-metadata": ("domains", list[str]),
    "set-partition-columns": ("partition-columns", list[str]),
}


def check_created(request: CreateTableRequest, state: DeltaTableState) -> None:
    """Check that version 0 says what the request does.

    Raises:
        InvalidRequestError: A value is nested too deeply (definite).
        StagedCommitError: It does not; field `field` says where (definite).
    """
    for field, value in (
        ("columns", request.columns),
        ("domain-metadata", request.domain_metadata),
    ):
        check_nesting(field, value)
    _same("last-commit-timestamp-ms", request.last_commit_timestamp_ms, state.timestamp)
    metadata = state.metadata
    _same("columns", to_delta_type(request.columns), metadata.columns)
    _same("partition-columns", list(request.partition_columns or ()), _list(metadata))
    _same("properties", request.properties, metadata.configuration)
    if not request.protocol.as_delta().is_same(state.protocol):
        raise _differs("protocol", request.protocol, state.protocol)
    _check_domains(request.domain_metadata or {}, state.domains)


def check_changes(update: Update, before: DeltaTableState, content: CommitContent) -> None:
    """Check that the actions of an update are what its commit file does to the table.

    Raises:
        InvalidRequestError: An action is not known, or has no value (definite).
        StagedCommitError: One is not in the file, or the file changes more (definite).
    """
    values = _values(update)
    after = before.after(content)
    old, new = before.metadata, after.metadata
    kept, given = old.configuration, new.configuration
    changes = values.get("set-properties") or {}
    removed = set(values.get("remove-properties") or ())
    for key in sorted(kept.keys() | given.keys() | changes.keys() | removed):
        if key in changes and key in removed:
            raise _differs(f"properties.{key}", "set and removed", given.get(key))
        wanted = None if key in removed else changes.get(key, kept.get(key))
        _same(f"properties.{key}", wanted, given.get(key))
    columns = values.get("set-columns")
    _same("set-columns", old.columns if columns is None else to_delta_type(columns), new.columns)
    parts = values.get("set-partition-columns")
    _same("set-partition-columns", _list(old) if parts is None else parts, _list(new))
    comment = values.get("set-table-comment", old.description)
    _same("set-table-comment", comment or None, new.description or None)
    protocol = values.get("set-protocol")
    wanted_protocol = before.protocol if protocol is None else protocol.as_delta()
    if not wanted_protocol.is_same(after.protocol):
        raise _differs("set-protocol", wanted_protocol, after.protocol)
    _check_domains(values.get("set-domain-metadata") or {}, after.domains)
    for domain in values.get("remove-domain-metadata") or ():
        if domain in after.domains:
            raise _differs("remove-domain-metadata", domain, "kept")


def _values(update: Update) -> dict[str, Any]:
    """Return action → its value."""
    found = {}
    for action, body in update.changes.items():
        if action not in _VALUES:
            raise InvalidRequestError(
                f"there is no action {action[:80]!r}",
                hint=f"Actions: add-commit, set-latest-backfilled-version, {', '.join(_VALUES)}.",
                field="updates",
                value=action[:80],
            )
        key, kind = _VALUES[action]
        found[action] = converted(body.get(key), kind, f"{action}.{key}")
    return found


def _check_domains(given: Mapping[str, Mapping[str, Any]], kept: Mapping[str, str]) -> None:
    for domain, wanted in given.items():
        if domain == ROW_TRACKING:
            # Delta 4.4.0 repeats the mark of its first attempt when it makes a commit again after
            # a conflict; only the file has the right one.
            continue
        known = domain_value(kept.get(domain))
        _same(f"domain-metadata.{domain}", dict(wanted), {key: known.get(key) for key in wanted})


def _list(metadata: Any) -> list[str]:
    return list(metadata.partition_columns)


def _same(field: str, asked: object, kept: object) -> None:
    if asked != kept:
        raise _differs(field, asked, kept)


def _differs(field: str, asked: object, kept: object) -> StagedCommitError:
    return StagedCommitError(
        f"{field} is {str(asked)[:200]} in the request, {str(kept)[:200]} after the commit file",
        field=field,
        value=str(asked)[:200],
    )
