"""The gate of commit files: what no reader could use is refused before it is ordered.

It is stricter than `read_commit_file`, which also reads what an older release has ordered: a rule
that comes later must not stop the placing of a version (decision 72).
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparktxlog.codec.delta_catalog.column_types import (
    DEEPEST_JSON,
    check_nesting,
    to_api_type,
)
from sparktxlog.codec.delta_catalog.table_states import (
    CLUSTERING,
    ROW_TRACKING,
    SYNCHRONOUS,
    SYNCHRONOUS_VALUES,
    DeltaTableState,
    domain_value,
)
from sparktxlog.delta.commit_contents import CommitContent, read_commit_file
from sparktxlog.errors import InvalidRequestError, StagedCommitError
from sparktxlog.model.ids import LARGEST
from sparktxlog.model.tables.table_properties import GROUP_OF_TABLE

#: How far a commit's time may be ahead of the node's clock, milliseconds: a day.
AHEAD_MS = 24 * 3_600_000
#: Versions of the Delta protocol whose features are named one by one.
_READER, _WRITER = 3, 7
#: Longest path of a file, bytes: other sites have the table below a root of their own, and the
#: payload store puts two UUIDs before it.
_LONGEST_PATH = 900


def read_new_commit(
    raw: bytes, before: DeltaTableState | None, uuid: str, now_ms: int
) -> tuple[CommitContent, DeltaTableState]:
    """Return what a commit file says that is to be ordered, and the table after it.

    Args:
        before: The table before the commit; None = the commit makes it.
        uuid: Of the table.
        now_ms: The node's wall clock, milliseconds since 1970 UTC.

    Raises:
        StagedCommitError: It cannot be a version; field `field` says why (definite).
    """
    content = read_commit_file(raw)
    _check_time(content.timestamp, max(now_ms, 0 if before is None else before.timestamp))
    after = DeltaTableState.first(content) if before is None else before.after(content)
    after.check(uuid)
    content.check_partitions(after.metadata.partition_names)
    if content.protocol is not None:
        versions = (content.protocol.min_reader_version, content.protocol.min_writer_version)
        if versions != (_READER, _WRITER):
            raise _unfit("protocol", versions, f"are not versions {_READER} and {_WRITER}")
    if content.metadata is not None:
        _check_schema(content.metadata.columns)
        if (group := content.metadata.configuration.get(GROUP_OF_TABLE)) is not None:
            raise StagedCommitError(
                f"property {GROUP_OF_TABLE} is {group[:80]!r}: a commit table is in no group",
                hint="Leave it out, or make a row table of the group.",
                field=f"properties.{GROUP_OF_TABLE}",
                value=group[:80],
            )
        given = content.metadata.configuration.get(SYNCHRONOUS)
        if given is not None and given not in SYNCHRONOUS_VALUES:
            raise StagedCommitError(
                f"property {SYNCHRONOUS} is {given[:80]!r}",
                hint=f"It is {' or '.join(map(repr, SYNCHRONOUS_VALUES))}.",
                field=f"properties.{SYNCHRONOUS}",
                value=given[:80],
            )
    for domain, text in content.domains.items():
        _check_domain(domain, text or "")
    for file in content.files:
        if not 0 <= file.size <= LARGEST:
            raise _unfit("add.size", file.path, "has a size or an offset that no file can have")
        if len(file.path.encode()) > _LONGEST_PATH:
            raise _unfit("add.path", file.path, f"is longer than {_LONGEST_PATH} bytes")
    return content, after


def _check_time(timestamp: int, newest: int) -> None:
    if timestamp > newest + AHEAD_MS:
        raise StagedCommitError(
            f"commitInfo.inCommitTimestamp of the commit file is {timestamp}, "
            f"{(timestamp - newest) / 3_600_000:,.0f} hours after the clock of this node",
            hint="All later versions would have to be later still. Set the clock of the machine "
            "that writes, or of this node; then stage the commit again, under a new UUID.",
            field="commitInfo.inCommitTimestamp",
            value=timestamp,
        )


def _check_schema(columns: dict[str, Any]) -> None:
    try:
        check_nesting("metaData.schemaString", columns)
        to_api_type(columns)  # every client that loads the table gets it
    except InvalidRequestError as error:
        raise _unfit("metaData.schemaString", error.fields["value"], error.message) from error


def _check_domain(domain: str, text: str) -> None:
    field = f"domainMetadata.{domain[:80]}"
    try:
        check_nesting(field, msgspec.json.decode(text or "{}"))
    except (InvalidRequestError, RecursionError) as error:
        raise _unfit(field, text, f"is nested more than {DEEPEST_JSON} levels deep") from error
    except (msgspec.MsgspecError, UnicodeError):
        return  # it need not be JSON
    value = domain_value(text)
    mark = value.get("rowIdHighWaterMark", 0)
    if domain == ROW_TRACKING and not (isinstance(mark, int) and -1 <= mark <= LARGEST):
        raise _unfit(field, mark, "has a rowIdHighWaterMark that is no number of a row")
    if domain == CLUSTERING:
        try:
            msgspec.convert(value.get("clusteringColumns", []), list[list[str]])
        except msgspec.ValidationError as error:
            raise _unfit(field, value, "has clusteringColumns that are no names") from error


def _unfit(field: str, value: object, problem: str) -> StagedCommitError:
    return StagedCommitError(
        f"{field} of the commit file ({str(value)[:120]!r}) {problem}",
        field=field,
        value=str(value)[:120],
    )
