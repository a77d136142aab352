"""The update of a commit table that belongs to a commit file."""

from __future__ import annotations

from typing import Any

import msgspec

from sparktxlog.codec.delta_catalog.catalog_requests import ProtocolOfRequest
from sparktxlog.codec.delta_catalog.column_types import to_api_type
from sparktxlog.codec.delta_catalog.lockstep import _VALUES
from sparktxlog.codec.delta_catalog.table_states import DeltaTableState, domain_value
from sparktxlog.delta.commit_contents import CommitContent


def changes_of(before: DeltaTableState, content: CommitContent) -> list[dict[str, Any]]:
    """Return the actions that say what a commit file changes of a table, for an update."""
    after = before.after(content)
    old, new = before.metadata, after.metadata
    kept, given = old.configuration, new.configuration
    domains = content.domains.items()
    values: dict[str, Any] = {
        "set-properties": {key: one for key, one in given.items() if kept.get(key) != one},
        "remove-properties": sorted(kept.keys() - given.keys()),
        "set-domain-metadata": {name: domain_value(one) for name, one in domains if one},
        "remove-domain-metadata": [name for name, one in domains if one is None],
    }
    if new.columns != old.columns:
        values["set-columns"] = to_api_type(new.columns)
    if new.partition_columns != old.partition_columns:
        values["set-partition-columns"] = list(new.partition_columns)
    found = [{"action": name, _VALUES[name][0]: one} for name, one in values.items() if one]
    if new.description != old.description:
        found.append({"action": "set-table-comment", "comment": new.description})
    if not after.protocol.is_same(before.protocol):
        told = ProtocolOfRequest(
            min_reader_version=after.protocol.min_reader_version,
            min_writer_version=after.protocol.min_writer_version,
            reader_features=after.protocol.reader_features,
            writer_features=after.protocol.writer_features,
        )
        found.append({"action": "set-protocol", "protocol": msgspec.to_builtins(told)})
    return found
