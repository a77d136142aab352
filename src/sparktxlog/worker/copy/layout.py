"""Which files of a donor's table a copy needs, and whether a table can be copied by its files.

A donor offers every file of a table's directory.  The log is fetched first: all of it up to the
version for a new table, else the newest complete checkpoint and later files.  At that version it
names the live data files and the files of deletion vectors.  All other files belong to older
versions and are copied only for history.
"""

from __future__ import annotations

import re
from enum import Enum

from sparktxlog.delta.file_paths import live_paths, may_be_data, path_of_file
from sparktxlog.delta.log_files import log_paths, missing_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import ApplyError
from sparktxlog.model.copying import OfferedFile, OfferedTable

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")

#: Features that a commit of file actions into another log carries: they concern single files,
#: rows or columns, and no state of the log they came from.
CARRIED_BY_COMMIT = frozenset(
    """
    allowColumnDefaults appendOnly changeDataFeed checkConstraints columnMapping deletionVectors
    generatedColumns invariants materializePartitionColumns timestampNtz typeWidening
    typeWidening-preview v2Checkpoint vacuumProtocolCheck variantShredding-preview variantType
    variantType-preview
    """.split()
)
#: Features that hold only together with their own log: row ids, high-water marks, domains and
#: commit times count that log's versions.  They are copied with the whole log.
CARRIED_BY_LOG = frozenset(
    """
    checkpointProtection clustering domainMetadata icebergCompatV1 icebergCompatV2 identityColumns
    inCommitTimestamp inCommitTimestamp-preview rowTracking
    """.split()
)
_WAY_OUT = (
    "Drop the feature at the donor (ALTER TABLE … DROP FEATURE) or keep the table out of the "
    "log; replaying the log still works."
)


class Way(str, Enum):
    """How staged files replace the table."""

    #: The staged directory, log included, becomes the table's.
    RENAME = "rename"
    #: The files are added to the table's own log by one commit.
    COMMIT = "commit"


# --- the log ----------------------------------------------------------------------------------


def log_files(offered: OfferedTable, *, whole: bool) -> list[OfferedFile]:
    """Return the files of the log that a table's version needs, ascending by path.

    Args:
        whole: Everything up to the version, for a table that takes over the log; else from the
            newest complete checkpoint on.

    Raises:
        ApplyError: The offered log lacks a commit (definite).
    """
    paths = [file.path for file in offered.files]
    missing = missing_commit(paths, offered.version)
    if missing is not None:
        raise ApplyError(
            f"table {offered.definition.name!r}: the donor's log lacks version {missing}",
            hint="Nothing was changed here.  Repair the donor, or copy from another one.",
            table=offered.definition.name,
            version=missing,
        )
    wanted = set(log_paths(paths, offered.version, whole=whole))
    return [file for file in offered.files if file.path in wanted]


# --- the data ---------------------------------------------------------------------------------


def data_files(offered: OfferedTable, log: LogState, *, history: bool = False) -> list[OfferedFile]:
    """Return the data files and deletion vectors of a version, ascending by path.

    Args:
        log: The offered log, opened at the offered version.
        history: All other files of the directory too, for time travel and change readers.

    Raises:
        ApplyError: The donor does not offer a file that the version needs (definite).
    """
    by_path = {file.path: file for file in offered.files}
    wanted = live_paths(log.adds.values())
    missing = sorted(wanted - by_path.keys())
    if missing:
        raise ApplyError(
            f"table {offered.definition.name!r}: the donor has no file {missing[0]}, which its "
            f"version {offered.version} needs",
            hint="Nothing was changed here.  Repair the donor, or copy from another one.",
            table=offered.definition.name,
            path=missing[0],
        )
    if history:
        wanted |= {path for path in by_path if may_be_data(path, changes=True)}
    return [by_path[path] for path in sorted(wanted)]


# --- what can be copied -----------------------------------------------------------------------


def check_copyable(table: str, log: LogState) -> None:
    """Refuse a table that cannot be copied by its files.

    Raises:
        ApplyError: With table, feature and what to do (definite: nothing was changed).
    """
    unknown = sorted(log.features - CARRIED_BY_COMMIT - CARRIED_BY_LOG)
    if unknown:
        raise _refusal(table, unknown[0], f"its feature {unknown[0]!r} is not carried by files")
    for add in log.adds.values():
        path = str(add["path"])
        vector = add.get("deletionVector") or {}
        if _ABSOLUTE.match(path):
            reason = f"it refers to a file outside of its directory (shallow clone): {path[:120]}"
            raise _refusal(table, "shallow clone", reason)
        if ".." in path_of_file(path).split("/"):
            raise _refusal(table, "path", f"a path leaves the table's directory: {path[:120]}")
        if vector and vector.get("storageType") not in ("u", "i"):
            kind = vector.get("storageType")
            raise _refusal(
                table, "deletionVectors", f"a deletion vector has an absolute path (type {kind!r})"
            )


def swap_way(target: LogState | None, donor: LogState) -> Way:
    """Choose how a table is replaced; None = the target has no readable table."""
    if target is None or _needs_own_log(donor) or _needs_own_log(target):
        return Way.RENAME
    if not target.features <= donor.features or not _is_upgrade(target, donor):
        return Way.RENAME
    mapped = {"columnMapping", "typeWidening", "typeWidening-preview"} & donor.features
    if (mapped or _maps_columns(donor)) and not _same_columns(target, donor):
        # Column names in files follow the mapping of their own log.
        return Way.RENAME
    return Way.COMMIT


def _needs_own_log(log: LogState) -> bool:
    return (
        bool(log.features & CARRIED_BY_LOG)
        or "delta.identity." in str(log.metadata.get("schemaString"))
        # Nothing may be removed from such a table by a commit.
        or log.configuration.get("delta.appendOnly", "").lower() == "true"
    )


def _is_upgrade(target: LogState, donor: LogState) -> bool:
    return all(
        int(target.protocol[key]) <= int(donor.protocol[key])
        for key in ("minReaderVersion", "minWriterVersion")
    )


def _maps_columns(log: LogState) -> bool:
    return log.configuration.get("delta.columnMapping.mode", "none") != "none"


def _same_columns(target: LogState, donor: LogState) -> bool:
    keys = ("schemaString", "partitionColumns")
    mapping = [
        {k: v for k, v in log.configuration.items() if k.startswith("delta.columnMapping.")}
        for log in (target, donor)
    ]
    return mapping[0] == mapping[1] and all(
        target.metadata.get(k) == donor.metadata.get(k) for k in keys
    )


def _refusal(table: str, feature: str, reason: str) -> ApplyError:
    return ApplyError(
        f"table {table!r} cannot be copied by its files: {reason}",
        hint=_WAY_OUT,
        table=table,
        feature=feature,
    )
