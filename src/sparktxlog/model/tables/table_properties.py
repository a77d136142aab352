"""Which properties a row table may have: those that no writer of the log contradicts (P33).

A property of Delta's is in the metadata of each site's Delta table.  Workers write some of its
commits by hand, so only those are allowed that concern how long something is kept, how files are
laid out, or what is counted.  A name without `delta.` is the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparktxlog.errors import InvalidRequestError

#: Characters of a comment, and of a property's value.
MAX_TEXT = 4_000
_MAX_NAME = 255
_MAX_PROPERTIES = 200
_DELTA, _OURS = "delta.", "sparktxlog."
#: Properties of a table of a group: the group, which its creator names, and its sites (P41).
GROUP_OF_TABLE = "sparktxlog.group"
SITES_OF_TABLE = "sparktxlog.sites"

_COUNT = r"[1-9][0-9]{0,8}", "a whole number above 0"
_BOOLEAN = r"true|false", "true or false"
#: Hours at least: readers and copies need the files of a version for as long as they run.
_INTERVAL = (
    r"(interval )?[1-9][0-9]{0,5} (hour|day|week)s?",
    "an interval of hours, days or weeks, such as 'interval 30 days'",
)
_SIZE = r"[1-9][0-9]{0,11}([bkmgBKMG]|[kmgKMG][bB])?", "a size such as 128mb"
#: Property → the form of its values, and the form in words.
_ALLOWED = {
    "delta.autoOptimize.autoCompact": (r"true|false|auto", "true, false or auto"),
    "delta.autoOptimize.optimizeWrite": _BOOLEAN,
    "delta.checkpoint.writeStatsAsJson": _BOOLEAN,
    "delta.checkpoint.writeStatsAsStruct": _BOOLEAN,
    "delta.checkpointInterval": _COUNT,
    "delta.dataSkippingNumIndexedCols": (r"-1|[0-9]{1,9}", "a whole number, -1 for all columns"),
    "delta.deletedFileRetentionDuration": _INTERVAL,
    "delta.enableExpiredLogCleanup": _BOOLEAN,
    "delta.logRetentionDuration": _INTERVAL,
    "delta.targetFileSize": _SIZE,
    "delta.tuneFileSizesForRewrites": _BOOLEAN,
}
#: Property, or how its name begins → why the log decides it, and the way out.
_REFUSED = {
    "delta.appendOnly": "upserts and deletes of the log rewrite rows",
    "delta.checkpointPolicy": "readers without Spark need plain checkpoints",
    "delta.columnMapping.": "the log maps columns itself, when one is renamed or dropped",
    "delta.compatibility.": "workers write no second format",
    "delta.dataSkippingStatsColumns": "it names columns, which may be renamed or dropped; use "
    "delta.dataSkippingNumIndexedCols",
    "delta.constraints.": "the log does not check constraints",
    "delta.enableChangeDataFeed": "workers write no change files; read the changes of a table by "
    "readStream.format('txlog')",
    "delta.enableDeletionVectors": "it is the argument deletion_vectors of create_table",
    "delta.enableIceberg": "workers write no second format",
    "delta.enableInCommitTimestamps": "workers write commits by hand, without these timestamps",
    "delta.enableRowTracking": "workers write commits by hand, without row ids",
    "delta.enableTypeWidening": "the log sets it when a type becomes wider: alter_table(widen=…)",
    "delta.feature.": "the log decides which features a table has",
    "delta.isolationLevel": "only the worker writes to the table",
    "delta.min": "the log decides which protocol a table has",
    "delta.setTransactionRetentionDuration": "the worker needs its transaction versions for ever",
    "delta.universalFormat.": "workers write no second format",
}


def check_comment(table: str, comment: str, column: str = "") -> None:
    """Refuse a comment that is too long.

    Args:
        column: The column that it is of; empty = it is the table's.

    Raises:
        InvalidRequestError: (definite).
    """
    if len(comment) > MAX_TEXT:
        of = f"column {column!r}" if column else "the table"
        raise InvalidRequestError(
            f"table {table!r}: the comment of {of} has {len(comment):,} characters",
            hint=f"It may have {MAX_TEXT:,}.",
            table=table,
            field="comment",
        )


def property_pairs(table: str, properties: Mapping[str, str | None]) -> tuple[tuple[str, str], ...]:
    """Return the properties of a new table as its definition has them, checked.

    Raises:
        InvalidRequestError: The message names the property, its value and the way out (definite).
    """
    found = {name: value for name, value in properties.items() if value is not None}
    check_properties(table, found)
    return tuple(sorted(found.items()))


def check_properties(table: str, properties: Mapping[str, str]) -> None:
    """Refuse properties that a row table cannot have.

    Raises:
        InvalidRequestError: The message names the property, its value and the way out (definite).
    """
    if len(properties) > _MAX_PROPERTIES:
        raise _refused(table, "", f"{len(properties):,} properties, {_MAX_PROPERTIES} are allowed")
    for name, value in properties.items():
        reason = None if name in (GROUP_OF_TABLE, SITES_OF_TABLE) else why_not(name, value)
        if reason is not None:
            raise _refused(table, name, reason)


def why_not(name: str, value: Any) -> str | None:
    """Return why a row table cannot have a property, None if it can."""
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        return f"its name needs 1 to {_MAX_NAME} printable characters"
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        return f"its value is no text of at most {MAX_TEXT:,} characters"
    if name.startswith(_OURS):
        return f"names that begin with {_OURS!r} are the log's own"
    if not name.lower().startswith(_DELTA):
        return None
    if name in _ALLOWED:
        form, words = _ALLOWED[name]
        return None if re.fullmatch(form, value) else f"{value[:80]!r} is not {words}"
    for start, reason in _REFUSED.items():
        if name.lower().startswith(start.lower()):
            return reason
    return f"row tables do not have it; they may have {', '.join(_ALLOWED)}"


def _refused(table: str, name: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"table {table!r} cannot have property {name!r}: {reason}"
        if name
        else f"table {table!r} has {reason}",
        hint="Leave it out.  Names that do not begin with 'delta.' are free.",
        table=table,
        field="properties",
        value=name,
    )
