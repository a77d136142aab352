"""Changes of a table (protocol P33) as one Delta commit of metadata: no data file is written.

Renamed and dropped columns are Delta's *column mapping* by name: the schema says for each column
its name in files, which is that of the definition (`Column.in_files`).  Readers that do not know
column mapping refuse the table, for the protocol names it as a feature.  The same holds for *type
widening*: files that are there keep the narrower type, and readers widen their values.
"""

from __future__ import annotations

import json
from typing import Any

from deltalake import Schema

from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.delta.commit_contents import STORED_NAME
from sparktxlog.delta.commit_files import commit_by_hand
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.delta.log_segments import read_version
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.apply.tables import (
    WIDENING,
    OwnCommit,
    clustering_of,
    lowest_protocol,
    put_comments,
)

_MODE, _MOST = "delta.columnMapping.mode", "delta.columnMapping.maxColumnId"
_ID = "delta.columnMapping.id"
_WIDE, _STEPS = "delta.enableTypeWidening", "delta.typeChanges"

#: A field of a schema as Delta's JSON has it.
Field = dict[str, Any]


def alter_table(
    table: TablePlace, version: int, before: TableDefinition, change: TableChange, own: OwnCommit
) -> None:
    """Commit a change, after a version.

    The schema is that of the log, changed, so what Delta keeps with columns stays.

    **After calling** settle the version.

    Args:
        before: The table as it is.

    Raises:
        StorageError: The log cannot be read or written.
        FileExistsError: Somebody else committed meanwhile (definite).
    """
    known, after = read_version(table, version), change.applied_to(before)
    held, actions = known.metadata, list[dict[str, Any]]()
    readers = {*known.protocol.reader_features}
    writers = {*known.protocol.writer_features}
    wanted = lowest_protocol(after, wide=bool(change.widen) or WIDENING in readers)
    if not {*wanted.get("writerFeatures", ())} <= writers:
        # Features of a former definition stay: of a table that was clustered once, for example.
        readers |= {*wanted.get("readerFeatures", ())}
        protocol: dict[str, Any] = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
        protocol |= {"readerFeatures": sorted(readers)} if readers else {}
        protocol["writerFeatures"] = sorted({*wanted["writerFeatures"], *writers})
        actions.append({"protocol": protocol})
    if change.cluster_by is not None:
        actions.append(clustering_of(after))
    fields: list[Field] = json.loads(held.schema_string)["fields"]
    configuration = dict(held.configuration)
    for name, value in change.properties:
        configuration.pop(name, None)
        if value is not None:
            configuration[name] = value
    metadata = {
        "id": held.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _changed(fields, after, change, configuration),
        "partitionColumns": list(after.partition_by),
        "configuration": configuration,
        "createdTime": held.created_time,
    }
    comment = held.description if change.comment is None else change.comment
    if comment:
        metadata["description"] = comment
    if change != TableChange(
        keys=change.keys, is_sync=change.is_sync, cluster_by=change.cluster_by
    ):
        actions.append({"metaData": metadata})
    actions.append({"txn": {"appId": own.app_id, "version": own.txn_version}})
    info = {"operation": "ALTER TABLE", "operationParameters": _described(change)}
    commit_by_hand(table, version + 1, info, own.to_text(), actions)


def _changed(
    fields: list[Field],
    after: TableDefinition,
    change: TableChange,
    configuration: dict[str, str],
) -> str:
    """Return the schema after a change as JSON; put what it needs into the properties."""
    if after.is_mapped and _MODE not in configuration:
        configuration |= {_MODE: "name", _MOST: "0"}
        _map(fields, configuration)
    renamed = dict(change.rename)
    fields = [field for field in fields if field["name"] not in change.drop]
    for field in fields:
        field["name"] = renamed.get(field["name"], field["name"])
    for name in dict(change.widen):
        configuration[_WIDE] = "true"
        (field,) = (field for field in fields if field["name"] == name)
        (wide,) = json.loads(Schema.from_arrow(arrow_schema(after, [name])).to_json())["fields"]
        step = {"toType": wide["type"], "fromType": field["type"]}
        field["metadata"][_STEPS] = [*field["metadata"].get(_STEPS, ()), step]
        field["type"] = wide["type"]
    if change.add:
        names = [column.name for column in change.add]
        added = json.loads(Schema.from_arrow(arrow_schema(after, names)).to_json())["fields"]
        if after.is_mapped:
            _map(added, configuration)
            for field, stored in zip(added, after.in_files(names), strict=True):
                field["metadata"][STORED_NAME] = stored
        fields += added
    comments = {renamed.get(name, name): comment for name, comment in change.comments}
    put_comments(fields, comments | {column.name: column.comment for column in change.add})
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def _map(fields: list[Field], configuration: dict[str, str]) -> None:
    """Give fields and those in them an id, and in files the names that they have."""
    for field in fields:
        configuration[_MOST] = str(int(configuration[_MOST]) + 1)
        field["metadata"] |= {_ID: int(configuration[_MOST]), STORED_NAME: field["name"]}
        _map(_inner(field["type"]), configuration)


def _inner(kind: str | dict[str, Any]) -> list[Field]:
    """Return the fields of the structs in a type."""
    if isinstance(kind, str):
        return []
    found: list[Field] = list(kind.get("fields", ()))
    for part in ("elementType", "keyType", "valueType"):
        found += _inner(kind.get(part, ""))
    return found


def _described(change: TableChange) -> dict[str, str]:
    """Return what a change does, for the history of the table."""
    done = {
        "add": [column.name for column in change.add],
        "rename": dict(change.rename),
        "drop": change.drop,
        "widen": dict(change.widen),
        "keys": change.keys,
        "is_sync": change.is_sync,
        "comment": change.comment,
        "comments": dict(change.comments),
        "properties": dict(change.properties),
        "cluster_by": change.cluster_by,
    }
    return {what: json.dumps(value) for what, value in done.items() if value or value is False}
