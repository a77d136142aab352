"""Columns of a table as Unity Catalog's API for lists shows them (`ColumnInfo` of `all.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sparktxlog.codec.delta_catalog.column_types import to_ddl
from sparktxlog.codec.delta_catalog.table_states import DeltaTableState

#: Type of Delta → its name in the API, where that is not the same in capitals.
_NAMES = {"integer": "INT", "void": "NULL"}
_DECIMAL = re.compile(r"decimal\(([0-9]+),(-?[0-9]+)\)")


class ColumnInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A column; what does not apply is left out.

    Args:
        type_json: The field in Delta's JSON, which is that of Spark.
        type_precision, type_scale: Of a decimal, else 0.
        partition_index: Its place among the columns that the table is partitioned by.
    """

    name: str
    type_name: str
    type_text: str
    type_json: str
    type_precision: int
    type_scale: int
    position: int
    nullable: bool
    comment: str | None = None
    partition_index: int | None = None


def columns_of(state: DeltaTableState | None) -> list[ColumnInfo]:
    """Return the columns of a table, in order; none of one that is not known here."""
    if state is None:
        return []
    parts = {name.lower(): at for at, name in enumerate(state.metadata.partition_columns)}
    fields = state.metadata.columns["fields"]
    return [_column(at, field, parts) for at, field in enumerate(fields)]


def _column(position: int, field: Mapping[str, Any], parts: Mapping[str, int]) -> ColumnInfo:
    kind = field["type"]
    decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    name = "decimal" if decimal else kind if isinstance(kind, str) else kind["type"]
    return ColumnInfo(
        name=field["name"],
        type_name=_NAMES.get(name, name.upper()),
        type_text=to_ddl(kind),
        type_json=msgspec.json.encode(field).decode(),
        type_precision=int(decimal[1]) if decimal else 0,
        type_scale=int(decimal[2]) if decimal else 0,
        position=position,
        nullable=field["nullable"],
        comment=str(field.get("metadata", {}).get("comment") or "") or None,
        partition_index=parts.get(field["name"].lower()),
    )
