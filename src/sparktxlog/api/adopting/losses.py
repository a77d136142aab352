"""What a row table cannot keep of a Delta table: what is in the way, and what is left out.

Everything that a table says of itself is a feature, a property, metadata of a column, a domain, or
a writer's transaction.  What these tables do not name is refused (features) or left out and
named (all else), so that nothing is lost without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import types as T

from sparktxlog.api.schema import LENGTHS, lengths_of
from sparktxlog.codec.delta_catalog.adopted_tables import left_writers
from sparktxlog.codec.refused_types import REFUSED_TYPES
from sparktxlog.delta.log_state import LogState
from sparktxlog.model.tables.table_properties import MAX_TEXT, why_not
from sparktxlog.worker.apply.tables import CLUSTERING

#: Features that a table may have → what a row table does not keep of them; empty = nothing, or
#: properties and columns say it.
ALLOWED_FEATURES = {
    "allowColumnDefaults": "",
    "appendOnly": "",
    "changeDataFeed": "",
    "checkConstraints": "",
    "checkpointProtection": "",
    "clustering": "",
    "columnMapping": "",
    "deletionVectors": "",
    "domainMetadata": "",
    "generatedColumns": "",
    "identityColumns": "",
    "inCommitTimestamp": "",
    "invariants": "",
    "materializePartitionColumns": "",
    "rowTracking": "its row ids",
    "timestampNtz": "",
    "typeWidening": "",
    "typeWidening-preview": "",
    "v2Checkpoint": "",
    "vacuumProtocolCheck": "",
}
_NO_VARIANTS = "row tables have no columns of type variant"
_NO_GEOMETRIES = "row tables have no geometries and geographies"
_NO_ICEBERG = "workers write no second format"
_OTHER_OWNER = "something else decides its versions"
#: Features that are refused → why; a feature that no table here names is refused, too.
REFUSED_FEATURES = {
    "adaptiveMetadata-preview": "it is a preview of another form of the log",
    "catalogManaged": _OTHER_OWNER,
    "coordinatedCommits-preview": _OTHER_OWNER,
    "geospatial": _NO_GEOMETRIES,
    "geospatial-dev": _NO_GEOMETRIES,
    "icebergCompatV1": _NO_ICEBERG,
    "icebergCompatV2": _NO_ICEBERG,
    "icebergCompatV3": _NO_ICEBERG,
    "variantShredding": _NO_VARIANTS,
    "variantShredding-preview": _NO_VARIANTS,
    "variantType": _NO_VARIANTS,
    "variantType-preview": _NO_VARIANTS,
}
#: Metadata of a column → what it makes of the column.  The log would not do that for its writers.
_COMPUTED = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
}
#: Metadata of a column, or how its name begins → what a row table does not keep; empty = nothing.
_OF_COLUMNS = {
    "comment": "",
    "delta.columnMapping.": "",
    "delta.identity.": "",
    "delta.typeChanges": "",
    "CURRENT_DEFAULT": "the default",
    "EXISTS_DEFAULT": "",
    **dict.fromkeys([*_COMPUTED, LENGTHS], ""),
}
#: Property of a table → what a row table does not keep; empty = nothing that anybody misses.
_PROPERTIES = {
    "delta.appendOnly": "that it is append-only",
    "delta.columnMapping.": "",
    "delta.enableChangeDataFeed": "its change data feed",
    "delta.enableDeletionVectors": "that deletes are written as deletion vectors",
    "delta.enableIcebergCompat": "",
    "delta.enableInCommitTimestamps": "",
    "delta.enableRowTracking": "",
    "delta.enableTypeWidening": "",
    "delta.feature.": "",
    "delta.inCommitTimestampEnablement": "",
    "delta.min": "",
    "delta.requireCheckpointProtectionBeforeVersion": "",
    "delta.rowTracking.": "",
}
#: Domains that Delta keeps for features.
_OF_FEATURES = ("delta.clustering", "delta.rowTracking")
_CONSTRAINT = "delta.constraints."


def obstacles_of(log: LogState, columns: T.StructType) -> list[str]:
    """Return why a table cannot become a row table, with a way out for each; empty = it can."""
    found = [
        f"it has feature {name!r}, which row tables do not have: "
        f"{REFUSED_FEATURES.get(name, 'nobody knows what it asks of writers')} "
        f"(ALTER TABLE … DROP FEATURE {name})"
        for name in sorted(log.features - ALLOWED_FEATURES.keys())
    ]
    found += [
        f"it has the constraint {name.removeprefix(_CONSTRAINT)!r}, which the log would not "
        f"check (ALTER TABLE … DROP CONSTRAINT {name.removeprefix(_CONSTRAINT)})"
        for name in sorted(log.configuration)
        if name.startswith(_CONSTRAINT)
    ]
    for path, field in _fields(columns):
        found += [
            f"column {path!r} {what}, which the log would not compute or check (add a plain "
            "column, copy the values, drop this one)"
            for name, what in _COMPUTED.items()
            if name in field.metadata
        ]
        kind, words = lengths_of(field)
        for word in words[:1]:
            reason = REFUSED_TYPES[word].reason
            found.append(
                f"column {path!r} is {kind}: {reason} (ALTER TABLE … ALTER COLUMN {path} TYPE "
                f"{re.sub(r'(var)?char[(][0-9]+[)]', 'string', kind)})"
            )
    return found


def left_behind(log: LogState, columns: T.StructType, cluster_by: Iterable[str]) -> list[str]:
    """Return what a row table does not keep of a table, for people.

    Args:
        cluster_by: Columns by which the row table is clustered.
    """
    found = [kept for name, kept in ALLOWED_FEATURES.items() if kept and name in log.features]
    if "clustering" in log.features and not cluster_by:
        clustered = json.loads(log.domains.get(CLUSTERING, "{}")).get("clusteringColumns")
        found += ["its clustering"] if clustered else []
    for name, value in sorted(log.configuration.items()):
        reason = why_not(name, value)
        if reason is None or name.startswith(_CONSTRAINT):
            continue
        known = _known(_PROPERTIES, name)
        if known is None:
            found.append(f"property {name} ({reason})")
        elif value != "false":
            found.append(known)
    for path, field in _fields(columns):
        for name in sorted(field.metadata):
            known = _known(_OF_COLUMNS, name)
            said = f"metadata {name!r}" if known is None else known
            if name == "comment" and path != field.name:
                said = "the comment"
            found += [f"{said} of column {path!r}"] if said else []
    found += [
        f"that fields, elements or values inside column {field.name!r} take no NULL"
        for field in columns.fields
        if not _takes_nulls(field.dataType)
    ]
    if len(log.metadata.get("description") or "") > MAX_TEXT:
        found.append(f"what its comment says after {MAX_TEXT:,} characters")
    others = sorted(name for name in log.domains if name not in _OF_FEATURES)
    found += [f"the metadata of domain {name!r}" for name in others]
    return [*filter(None, found), *left_writers(log.transactions)]


def _known(table: Mapping[str, str], name: str) -> str | None:
    return next((kept for start, kept in table.items() if name.startswith(start)), None)


def _fields(kind: T.DataType, path: str = "") -> Iterator[tuple[str, T.StructField]]:
    """Yield all fields with their paths, also those inside of other types."""
    if isinstance(kind, T.ArrayType):
        yield from _fields(kind.elementType, f"{path}element.")
    elif isinstance(kind, T.MapType):
        yield from _fields(kind.keyType, f"{path}key.")
        yield from _fields(kind.valueType, f"{path}value.")
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield f"{path}{field.name}", field
            yield from _fields(field.dataType, f"{path}{field.name}.")


def _takes_nulls(kind: T.DataType) -> bool:
    """Return whether all that is inside a type may be NULL, but for keys of maps."""
    if isinstance(kind, T.ArrayType):
        return kind.containsNull and _takes_nulls(kind.elementType)
    if isinstance(kind, T.MapType):
        inside = _takes_nulls(kind.keyType) and _takes_nulls(kind.valueType)
        return kind.valueContainsNull and inside
    if isinstance(kind, T.StructType):
        return all(field.nullable and _takes_nulls(field.dataType) for field in kind.fields)
    return True
