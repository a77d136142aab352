"""Which files of a table's directory make one version of it, read without Spark.

These are the log up to the version, the live data files and their deletion vectors.  delta-rs names
the data files but not the deletion vectors, so these are read from the log itself.  If delta-rs
cannot read the table, or the log has a kind of checkpoint that is not read here, all files of the
directory are used: more than needed, never less.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparktxlog.delta.file_paths import files_of, may_be_data
from sparktxlog.delta.log_files import (
    commit_path,
    log_of,
    log_paths,
    missing_commit,
    newest_checkpoint,
)
from sparktxlog.worker.apply.tables import live_files

_CLASSIC_CHECKPOINT = re.compile(r"\d{20}\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")


class VersionGoneError(Exception):
    """The directory does not hold all files of a version."""


def version_files(table: Path, version: int) -> dict[str, int | None]:
    """Return the files of a version: path relative to the table → bytes, None = not recorded.

    Raises:
        VersionGoneError: Log or data files of the version are missing.
        OSError: The directory cannot be read.
    """
    log = _log_files(table, version)
    files: dict[str, int | None] = dict.fromkeys(log)
    try:
        live = live_files(table, version)
        features = DeltaTable(table, version=version).protocol().reader_features or []
    except (DeltaError, ValueError):
        return files | dict.fromkeys(all_data_files(table))
    files |= live
    if "deletionVectors" in features:
        files |= dict.fromkeys(_vectors(table, newest_checkpoint(log, version), version))
    return files


def all_data_files(table: Path) -> list[str]:
    """Return all files of a directory that may belong to some version, ascending."""
    paths = (path.relative_to(table).as_posix() for path in table.rglob("*") if path.is_file())
    return sorted(path for path in paths if may_be_data(path))


def _log_files(table: Path, version: int) -> list[str]:
    paths = [path.relative_to(table).as_posix() for path in log_of(table).rglob("*")]
    if not paths:
        raise VersionGoneError(f"{table} is no Delta table")
    missing = missing_commit(paths, version)
    if missing is not None:
        raise VersionGoneError(f"{table} has no log of version {missing}")
    return sorted(log_paths(paths, version))


def _vectors(table: Path, start: int, version: int) -> list[str]:
    """Return the files of the deletion vectors of a version."""
    newest = [p for p in log_of(table).iterdir() if p.name.startswith(f"{start:020}.checkpoint")]
    if not all(_CLASSIC_CHECKPOINT.fullmatch(path.name) for path in newest):
        return [str(path.relative_to(table)) for path in table.rglob("deletion_vector_*.bin")]
    live: dict[str, dict[str, Any]] = {}
    for part in newest:
        # A checkpoint has old versions of a file as `remove`, with another vector.
        with pq.ParquetFile(part) as checkpoint:
            # Statistics of all files would be most of it.
            rows = checkpoint.read(columns=["add.path", "add.deletionVector"])
        for add in rows.column("add").to_pylist():
            if add is not None and add["path"] is not None:
                live[add["path"]] = add
    for number in range(start + 1, version + 1):
        lines = commit_path(table, number).read_bytes().splitlines()
        actions = [json.loads(line) for line in lines]
        # A new vector for a file is a `remove` and an `add` of the same path, in any order.
        for action in actions:
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        live |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    # The first of them is the data file itself.
    return [vector for add in live.values() for vector in files_of(add)[1:]]
