"""Which files of a table's directory make one version of it, read without Spark.

Needed are the log up to the version, the live data files and their deletion vectors.  delta-rs
names the data files; it does not name deletion vectors, so these are read from the log itself.
Where delta-rs cannot read the table, or the log is checkpointed in a way not read here, all files
of the directory are taken: more than needed, never less.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from sparktxlog.worker.apply.tables import commit_path, files_of, newest_checkpoint

LOG = "_delta_log"
#: Commits, checksums, compacted commits, checkpoints: the version they reach is the last number.
_LOG_FILE = re.compile(
    r"(?:\d{20}\.)?(\d{20})\.(?:json|crc|compacted\.json|checkpoint(?:\..+)?\.(?:parquet|json))"
)
_CLASSIC_CHECKPOINT = re.compile(r"\d{20}\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")


class VersionGoneError(Exception):
    """The directory does not hold all of a version (any more)."""


def version_files(table: Path, version: int) -> dict[str, int | None]:
    """Return the files of a version: path relative to the table → bytes, None = not recorded.

    Raises:
        VersionGoneError: Log or data files of the version are missing.
        OSError: The directory cannot be read.
    """
    log, start = _log_files(table, version)
    files: dict[str, int | None] = dict.fromkeys(log)
    try:
        opened = DeltaTable(table, version=version)
        actions = pa.table(opened.get_add_actions())
        features = opened.protocol().reader_features or []
    except (DeltaError, ValueError):
        return files | dict.fromkeys(all_data_files(table))
    live = zip(
        actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True
    )
    for path, size in live:
        files[_on_disk(table, path)] = size
    if "deletionVectors" in features:
        files |= dict.fromkeys(_vectors(table, start, version))
    return files


def all_data_files(table: Path) -> list[str]:
    """Return all files of a directory that may belong to some version, ascending."""
    found = []
    for path in table.rglob("*"):
        parts = path.relative_to(table).parts
        hidden = any(part[0] in "._" and "=" not in part for part in parts)
        if not hidden and path.is_file():
            found.append("/".join(parts))
    return sorted(found)


def is_commit(path: str) -> bool:
    """Tell whether a file is of the log: its time is part of the table's history."""
    return path.startswith(f"{LOG}/")


def _log_files(table: Path, version: int) -> tuple[list[str], int]:
    """Return the log's files up to a version, and the newest checkpoint of it, -1 = none."""
    try:
        names = [path.name for path in (table / LOG).iterdir()]
        sidecars = [path.name for path in (table / LOG / "_sidecars").glob("*.parquet")]
    except FileNotFoundError as error:
        raise VersionGoneError(f"{table} is no Delta table") from error
    kept = [n for n in names if (m := _LOG_FILE.fullmatch(n)) and int(m[1]) <= version]
    start = newest_checkpoint(kept, version)
    missing = [
        number
        for number in range(start + 1, version + 1)
        if commit_path(table, number).name not in kept
    ]
    if missing:
        raise VersionGoneError(f"{table} has no log of version {missing[0]}")
    return sorted([f"{LOG}/{n}" for n in kept] + [f"{LOG}/_sidecars/{n}" for n in sidecars]), start


def _on_disk(table: Path, path: str) -> str:
    # Partition values in paths are quoted once in the log, and once more by some writers.
    return next((p for p in (unquote(path), path) if (table / p).exists()), unquote(path))


def _vectors(table: Path, start: int, version: int) -> list[str]:
    """Return the files of the deletion vectors of a version."""
    newest = [p for p in (table / LOG).iterdir() if p.name.startswith(f"{start:020}.checkpoint")]
    if not all(_CLASSIC_CHECKPOINT.fullmatch(path.name) for path in newest):
        return [str(path.relative_to(table)) for path in table.rglob("deletion_vector_*.bin")]
    live: dict[str, dict[str, Any]] = {}
    for part in newest:
        # Old versions of a file stand in a checkpoint as `remove`, with another vector.
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
