"""Classic checkpoints, which every reader knows; delta-rs makes those of our own tables."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparktxlog.delta.checkpoints import Checkpoint, files_to_sync, say_last
from sparktxlog.delta.log_files import log_of
from sparktxlog.errors import StorageError
from sparktxlog.files.durability import (
    storage_error,
    storing,
    sync_directory,
    sync_file,
)

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
        if key in ("configuration", "options") and isinstance(one, dict)
        else _listed(one)
        for key, one in value.items()
    }
