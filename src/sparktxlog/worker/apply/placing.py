"""Adds staged files to a table: linked into its directory, or sent to its bucket, and added by one
metadata-only commit.

No row is read or rewritten, but each file is compared with its digest in the log, so a damaged file
is not added.  A hard link costs nothing, and stays when the payload store removes its name; on
another file system the file is copied.  The commit is written by hand: delta-rs commits twice if it
gets no answer to the first attempt, and does not write to tables with every feature.

Files of a partition lie in its directory, as those that Spark and delta-rs write: polars takes the
values of partition columns from there.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparktxlog.codec.partitions import partition_directories
from sparktxlog.delta.classic_checkpoints import write_classic
from sparktxlog.delta.commit_files import commit_by_hand
from sparktxlog.delta.file_paths import path_in_log
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply.tables import OwnCommit

if TYPE_CHECKING:
    from sparktxlog.worker.lakes.lake import Lake
    from sparktxlog.worker.lakes.payload_files import PayloadFiles

#: Files whose digests are computed at the same time.
_PARALLEL_FILES = 4
#: Commits between two checkpoints, where the table's properties do not say it.
_CHECKPOINT_EVERY = 100
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


class Placer:
    """Adds files to the tables of a lake.

    Args:
        lake: Of the replica's tables.
        payloads: The files that the log names.
    """

    def __init__(self, lake: Lake, payloads: PayloadFiles) -> None:
        self.lake, self.payloads = lake, payloads

    def place(
        self,
        definition: TableDefinition,
        files: Sequence[StagedFile],
        own: OwnCommit,
        examined: int,
    ) -> int:
        """Bring files into their table and add them in one commit; return the table's version.

        It may be repeated after a crash before the commit: files that are there are kept.

        **After calling** settle the version.

        Args:
            examined: The newest version that the worker knows.

        Raises:
            ApplyError: A file is missing from the payload store, or is not what its manifest says
                (definite: the table is as before).
            FileExistsError: In a bucket: somebody committed meanwhile (definite).
        """
        table = self.lake.table(definition.name)
        with ThreadPoolExecutor(_PARALLEL_FILES, "placing") as threads:
            actions = list(threads.map(partial(self._bring, definition.name), files))
        actions.append({"txn": {"appId": own.app_id, "version": own.txn_version}})
        info = {
            "timestamp": time.time_ns() // 1_000_000,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
        }
        version = examined + 1
        while True:
            try:
                commit_by_hand(table, version, info, own.to_text(), actions)
                break
            except FileExistsError:
                # A worker that was overtaken must not add the files once more.
                if not isinstance(table, Path):
                    raise
                # Somebody committed: what it was is examined after the step.
                version += 1
        if isinstance(table, Path) and is_checkpoint_due(definition, version):
            cleans = dict(definition.properties).get("delta.enableExpiredLogCleanup") != "false"
            write_classic(table, cleans=cleans)
        return version

    def _bring(self, name: str, file: StagedFile) -> dict[str, Any]:
        path = placed_path(file)
        changed_ms = self.lake.bring(name, path, file, self.payloads)
        add = {
            "path": path_in_log(path),
            "partitionValues": file.partition or {},
            "size": file.size_bytes,
            "modificationTime": changed_ms,
            "dataChange": True,
            "stats": file.stats or json.dumps({"numRecords": file.rows}),
        }
        return {"add": add}


def is_checkpoint_due(definition: TableDefinition, version: int) -> bool:
    """Return whether a table's properties want a checkpoint of a version."""
    interval = dict(definition.properties).get("delta.checkpointInterval", _CHECKPOINT_EVERY)
    return version > 0 and version % int(interval) == 0


def placed_path(file: StagedFile) -> str:
    """Return where a payload file lies in its table: in the directory of its partition, if any."""
    return partition_directories(file.partition or {}) + placed_name(file.path)


def placed_name(path: str) -> str:
    """Return the name of a payload file inside its table, which is unique and shows its origin.

    `<transaction id>/<table>/part-0.parquet` becomes `<transaction id>-<table>-part-0.parquet`.
    """
    name = path.replace("/", "-")
    if _PLAIN.fullmatch(name) and len(name) <= 200 and "_" not in name[:1]:
        return name
    digest = hashlib.sha256(path.encode()).hexdigest()[:16]
    plain = "".join(char if _PLAIN.fullmatch(char) else "_" for char in name)
    return f"{digest}-{plain[-160:]}"
