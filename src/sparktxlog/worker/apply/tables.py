"""The replica's Delta tables: their creation, their commits, and the writers of these commits.

Versions newer than the recorded one are examined before each batch.  A commit is *own* if its
`userMetadata` names this log id and table.  A commit that changes neither data nor
metadata (OPTIMIZE, VACUUM, checkpoints) is accepted.  Any other commit stops the table as
diverged, also a RESTORE: it brings back old rows but keeps the newer `txn` versions, so the worker
would skip the undone commits.
"""

from __future__ import annotations

import json
import pwd
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
from deltalake import Schema

from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.delta.commit_files import commit_by_hand, read_actions
from sparktxlog.delta.file_paths import files_of
from sparktxlog.delta.log_files import (
    TablePlace,
    has_commit,
    last_number,
    newest_version,
    store_of,
)
from sparktxlog.errors import ApplyError, DivergedError
from sparktxlog.files.durability import sync_directory
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.apply.batches import STEPS, Batch, Step

#: Feature of tables with a column whose type was widened.
WIDENING = "typeWidening"
#: Feature of tables that are or were clustered, and the domain that names the columns.
CLUSTERED, CLUSTERING = "clustering", "delta.clustering"
#: Features that writer version 2 stands for.
_OF_WRITERS = "appendOnly", "invariants"
_METADATA_KEY = "sparktxlog"


class OwnCommit(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"first": "from", "last_position": "to"},
):
    """Metadata that a worker writes into each commit, and reads after a crash."""

    log_id: str
    epoch: int
    table: str
    first: int
    last_position: int
    step: int
    #: Whether the batch's last step for the table.
    last: bool
    from_hash: str
    to_hash: str
    #: Signature of the table after the commit.
    signature: str
    #: For the commit of a copy: its id and donor; empty for a batch.
    copy_id: str = ""
    donor: str = ""

    @classmethod
    def of(
        cls, batch: Batch, log_id: str, table: str, step: Step, signature: TableSignature
    ) -> OwnCommit:
        """Describe a step's commit."""
        return cls(
            log_id=log_id,
            epoch=batch.epoch,
            table=table,
            first=batch.first,
            last_position=batch.last,
            from_hash=batch.from_hash,
            to_hash=batch.to_hash,
            step=step.number,
            last=step.last,
            signature=signature.to_text(),
        )

    @property
    def app_id(self) -> str:
        """Application id of the commit's `txn`, one for each table of a log."""
        return f"sparktxlog:{self.log_id}:{self.table}"

    @property
    def txn_version(self) -> int:
        """Version of the commit's `txn`: it rises with every commit of the table."""
        return self.last_position * STEPS + self.step

    def to_text(self) -> str:
        """Return the commit's `userMetadata`."""
        return msgspec.json.encode({_METADATA_KEY: self}).decode()

    @classmethod
    def from_text(cls, text: object) -> OwnCommit | None:
        """Read what `to_text` wrote; None for the metadata of others."""
        if not isinstance(text, str) or _METADATA_KEY not in text:
            return None
        try:
            return msgspec.json.decode(text, type=dict[str, OwnCommit])[_METADATA_KEY]
        except (msgspec.MsgspecError, ValueError, KeyError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """A version of a Delta table, read from its log."""

    version: int
    own: OwnCommit | None
    operation: str
    #: Engine and owner of the file: open source Delta records no user.
    author: str
    #: Data files and deletion vectors added, relative to the table.
    added: tuple[str, ...]
    #: Rows, schema or properties may differ from the version before.
    changes: bool


def read_commit(table: TablePlace, version: int) -> TableCommit:
    """Read one commit of a table's log.

    Raises:
        ApplyError: The file is damaged (definite).
        CorruptLogError, StorageError: As `commit_bytes`.
    """
    url = store_of(table).url_of(commit_file_name(version))
    info: dict[str, Any] = {}
    added: list[str] = []
    changes = False
    actions = read_actions(table, version)
    if actions is None:
        raise ApplyError(f"{url} is damaged", path=url)
    for action in actions:
        if "commitInfo" in action:
            info = action["commitInfo"]
        elif "add" in action:
            added += files_of(action["add"])
            changes |= bool(action["add"].get("dataChange", True))
        elif "remove" in action:
            changes |= bool(action["remove"].get("dataChange", True))
        elif "metaData" in action or "protocol" in action:
            changes = True
    return TableCommit(
        version=version,
        own=OwnCommit.from_text(info.get("userMetadata")),
        operation=str(info.get("operation") or "unknown"),
        author=_author(url, info),
        added=tuple(added),
        changes=changes,
    )


def check_expected(commit: TableCommit, batch: Batch | None, log_id: str, name: str) -> None:
    """Refuse a commit after the recorded one that is neither the batch's nor without effect.

    Raises:
        DivergedError: Another writer made it, or the state in the lake is older (definite).
    """
    if is_own(commit.own, log_id, name):
        if batch is None or commit.own.last_position != batch.last:
            raise DivergedError(
                f"table {name!r}: version {commit.version} holds position "
                f"{commit.own.last_position}, which this replica's state does not know",
                hint="The state in the lake is older than its tables: restore both together.",
                table=name,
                version=commit.version,
            )
    elif commit.changes:
        raise _foreign(commit, commit.version, name, "Write through the log only.  The table")


def own_progress(
    table: TablePlace, recorded: int, log_id: str, batch: Batch | None, name: str
) -> tuple[int, OwnCommit | None]:
    """Examine the versions after the recorded one.

    Args:
        batch: The batch under way, whose commits are expected; None = none are.

    Returns:
        The newest version, and this batch's last commit among them.

    Raises:
        DivergedError: Another writer committed, or the table went back (definite).
    """
    newest = newest_version(table, recorded)
    progress: OwnCommit | None = None
    for version in range(recorded + 1, newest + 1):
        commit = read_commit(table, version)
        check_expected(commit, batch, log_id, name)
        if is_own(commit.own, log_id, name):
            progress = commit.own
    if recorded >= 0 and newest == recorded and not has_commit(table, recorded):
        _check_not_gone(table, recorded, name)
    return newest, progress


def check_recorded(table: TablePlace, recorded: int, log_id: str, name: str) -> None:
    """Refuse a table that replaced another one: its recorded version must be of this log.

    A version that Delta's cleanup removed, or that changed nothing, proves nothing.

    Raises:
        DivergedError: Another writer made the recorded version (definite).
    """
    if recorded < 0 or not has_commit(table, recorded):
        return
    commit = read_commit(table, recorded)
    if commit.changes and not is_own(commit.own, log_id, name):
        raise _foreign(commit, recorded, name, "Somebody replaced the table.  It")


def _foreign(commit: TableCommit, version: int, name: str, advice: str) -> DivergedError:
    return DivergedError(
        f"table {name!r}: version {version} was written by {commit.author} "
        f"({commit.operation}), not by this log",
        hint=f"{advice} stands still until it is repaired: sparktxlog repair {name}",
        table=name,
        version=version,
        author=commit.author,
        operation=commit.operation,
    )


def is_own(own: OwnCommit | None, log_id: str, name: str) -> TypeGuard[OwnCommit]:
    """Return whether this log's worker made a commit, for this table."""
    return own is not None and own.log_id == log_id and own.table == name


def _check_not_gone(table: TablePlace, recorded: int, name: str) -> None:
    """Accept a log file that Delta's own cleanup removed, but not a table that went back."""
    if last_number(table) < recorded:
        raise DivergedError(
            f"table {name!r}: version {recorded} is gone",
            hint="Somebody removed or replaced the table.  It needs a copy.",
            table=name,
            version=recorded,
        )


def create_table(
    table: TablePlace, definition: TableDefinition, user_metadata: str, txn: Any
) -> None:
    """Write a table's version 0, with the lowest protocol that its columns need.

    Written by hand, alike at every site: engines add features and properties of their own taste,
    which would keep older readers out.

    Args:
        txn: `txn` action of the commit.

    **After calling** settle the version.
    """
    properties = {"delta.enableDeletionVectors": "true"} if definition.deletion_vectors else {}
    schema = json.loads(_schema(definition))
    put_comments(schema["fields"], {column.name: column.comment for column in definition.columns})
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema, separators=(",", ":")),
        "partitionColumns": list(definition.partition_by),
        "configuration": dict(definition.properties) | properties,
    }
    if definition.comment:
        metadata["description"] = definition.comment
    info = {
        "operation": "CREATE TABLE",
        "operationParameters": {"partitionBy": json.dumps(list(definition.partition_by))},
    }
    actions = [{"protocol": lowest_protocol(definition)}, {"metaData": metadata}, {"txn": txn}]
    if definition.cluster_by:
        actions.append(clustering_of(definition))
    commit_by_hand(table, 0, info, user_metadata, actions)
    if isinstance(table, Path):
        sync_directory(table.parent)


def clustering_of(definition: TableDefinition) -> dict[str, Any]:
    """Return the action that says by which columns a table is clustered, perhaps none."""
    # By names in files; a rename changes none of these.
    columns = [[name] for name in definition.in_files(definition.cluster_by)]
    content = json.dumps({"clusteringColumns": columns, "domainName": CLUSTERING})
    return {"domainMetadata": {"domain": CLUSTERING, "configuration": content, "removed": False}}


def _schema(definition: TableDefinition) -> str:
    return Schema.from_arrow(arrow_schema(definition)).to_json()


def put_comments(fields: Iterable[dict[str, Any]], comments: Mapping[str, str]) -> None:
    """Give fields of Delta's JSON their comments; those of others stay."""
    for field in fields:
        comment = comments.get(field["name"])
        if comment:
            field["metadata"]["comment"] = comment
        elif comment is not None:
            field["metadata"].pop("comment", None)


def lowest_protocol(definition: TableDefinition, *, wide: bool = False) -> dict[str, Any]:
    """Return the lowest protocol that a table's columns need.

    Args:
        wide: The type of a column was widened.
    """
    features = sorted(
        feature
        for feature, wanted in (
            ("columnMapping", definition.is_mapped),
            ("deletionVectors", definition.deletion_vectors),
            ("timestampNtz", '"timestamp_ntz"' in _schema(definition)),
            (WIDENING, wide),
        )
        if wanted
    )
    of_writers = [*features, *((CLUSTERED, "domainMetadata") if definition.cluster_by else ())]
    if not of_writers:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    writers = {"minWriterVersion": 7, "writerFeatures": sorted([*of_writers, *_OF_WRITERS])}
    if not features:
        return {"minReaderVersion": 1, **writers}
    return {"minReaderVersion": 3, "readerFeatures": features, **writers}


def _author(url: str, info: dict[str, Any]) -> str:
    try:
        owner = pwd.getpwuid(Path(url).stat().st_uid).pw_name
    except (KeyError, OSError):  # in a bucket, for one
        owner = "unknown"
    user = info.get("userName") or owner
    engine = info.get("engineInfo") or info.get("clientVersion") or "unknown engine"
    return f"user {user} with {engine}"
