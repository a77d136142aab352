"""Classic checkpoints, which every reader knows.

Those of a table whose state is at hand are written here, others by delta-rs, which reads its log.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparktxlog.delta.checkpoints import Checkpoint, files_to_sync, say_last
from sparktxlog.delta.file_paths import path_in_log
from sparktxlog.delta.log_files import (
    last_number,
    log_of,
    names_in_log,
    number_of,
    store_of,
    whole_checkpoints,
)
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import StorageError
from sparktxlog.files.durability import (
    storage_error,
    storing,
    sync_directory,
    sync_file,
)
from sparktxlog.model.tables.commit_table import COMMIT_LOG

_MAP = pa.map_(pa.string(), pa.string())
#: Actions of a checkpoint that are not about files.
_KINDS = {
    "protocol": pa.struct(
        {
            "minReaderVersion": pa.int32(),
            "minWriterVersion": pa.int32(),
            "readerFeatures": pa.list_(pa.string()),
            "writerFeatures": pa.list_(pa.string()),
        }
    ),
    "metaData": pa.struct(
        {
            "id": pa.string(),
            "name": pa.string(),
            "description": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": _MAP}),
            "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.string()),
            "configuration": _MAP,
            "createdTime": pa.int64(),
        }
    ),
    "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
    "domainMetadata": pa.struct(
        {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}
    ),
}


#: Actions of a checkpoint that are about files; a reader needs no more of those that were removed.
_FILE_KINDS = {
    "add": pa.struct(
        {
            "path": pa.string(),
            "partitionValues": _MAP,
            "size": pa.int64(),
            "modificationTime": pa.int64(),
            "dataChange": pa.bool_(),
            "stats": pa.string(),
            "tags": _MAP,
        }
    ),
    "remove": pa.struct(
        {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}
    ),
}


def write_state(table: Path, state: LogState) -> None:
    """Write a checkpoint of the newest version, whose state is known, durably.

    Raises:
        DiskFullError, StorageError: There may be one; do it again.
    """
    if state.features or state.domains:  # somebody else's: those say more of files
        write_classic(table, cleans=False)
        return
    actions = [{"protocol": state.protocol}, {"metaData": state.metadata}]
    actions += [
        {"txn": {"appId": name, "version": version}} for name, version in state.transactions.items()
    ]
    # A checkpoint changes nothing.
    actions += [{"add": add | {"dataChange": False}} for add in state.adds.values()]
    actions += [
        {"remove": {"path": path_in_log(path), "deletionTimestamp": at, "dataChange": False}}
        for path, at in state.removed.items()
    ]
    kinds = {name: _KINDS[name] for name in ("protocol", "metaData", "txn")} | _FILE_KINDS
    columns = {
        kind: pa.array([_listed(action.get(kind)) for action in actions], fields)
        for kind, fields in kinds.items()
    }
    content = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), content)
    name = f"{COMMIT_LOG}{state.version:020}.checkpoint.parquet"
    store_of(table).replace(name, content.getvalue().to_pybytes())
    say_last(table, state.version, len(actions))


def drop_expired(table: Path, keep_ms: int) -> None:
    """Remove commits and checkpoints before the newest checkpoint, if they are older than that.

    A kill leaves the later ones of them.

    Raises:
        StorageError: Some may be left.
    """
    log, names = log_of(table), names_in_log(table)
    base = max((at for at, _ in whole_checkpoints(names, last_number(table))), default=-1)
    horizon = time_ns() // 1_000_000 - keep_ms
    with storing(log):
        for name in sorted(name for name in names if number_of(name) in range(base)):
            path = log / name
            if path.stat().st_mtime_ns // 1_000_000 <= horizon:
                path.unlink()


def write_classic(table: Path, *, cleans: bool) -> None:
    """Write a checkpoint of the newest version, durably.

    Args:
        cleans: Before it, remove what the log keeps no longer, as the table's properties say.  An
            older checkpoint stands for that: the newest version may be undone, with its own one.

    Raises:
        DiskFullError: No space left (definite).
        StorageError: The disk failed, or delta-rs does not know a feature of the table.
    """
    try:
        handle = DeltaTable(table)
        if cleans:
            handle.cleanup_metadata()
        handle.create_checkpoint()
        for path in files_to_sync(table, handle.version(), handle.version()):
            sync_file(path)
        sync_directory(log_of(table))
    except (DeltaError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, table) from error
        # delta-rs only passes on the system's text.
        if os.strerror(errno.ENOSPC) in str(error):
            raise storage_error(OSError(errno.ENOSPC, str(error)), table) from error
        said = f"no checkpoint of {table} can be written: {error}"
        raise StorageError(said, path=str(table)) from error


def replace_by_classic(table: Path, found: Checkpoint, changed: Callable[[bytes], bytes]) -> None:
    """Replace a checkpoint of version 2 by one of the form that every reader knows, durably.

    Args:
        found: Its file at the top is JSON; the actions of files are in its sidecars.
        changed: Returns the JSON lines as the new one has them.

    Raises:
        StorageError: Its top has actions of files (definite: nothing was changed).
        DiskFullError, StorageError: Both may be there; do it again.
    """
    log = log_of(table)
    with storing(log):
        lines = [json.loads(line) for line in changed(found.read_top()).splitlines()]
        if any("add" in line or "remove" in line for line in lines):
            # Without them the table would lack these files' rows.
            raise StorageError(
                f"{found.path} has files of the table, which only its sidecars should have",
                hint="Release the table with --keep-features.",
                path=found.path,
            )
        said = [{kind: one for kind, one in line.items() if kind in _KINDS} for line in lines]
        top = {
            kind: pa.array([_listed(one.get(kind)) for one in said if one], fields)
            for kind, fields in _KINDS.items()
        }
        sidecars = (pq.read_table(found.table.reader(key)) for key in found.sidecars)
        parts = [pa.table(top), *sidecars]
        whole = pa.concat_tables(parts, promote_options="permissive")
        classic = log / f"{found.version:020}.checkpoint.parquet"
        pq.write_table(whole, classic)
        sync_file(classic)
        say_last(table, found.version, whole.num_rows)
        found.table.remove((*found.tops, *found.sidecars))


def _listed(value: Any) -> Any:
    """Return JSON with the values of maps as Arrow takes them."""
    if not isinstance(value, dict):
        return value
    return {
        key: [*one.items()]
        if key in ("configuration", "options", "partitionValues", "tags") and isinstance(one, dict)
        else _listed(one)
        for key, one in value.items()
    }
