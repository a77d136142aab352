"""Puts files of a partitioned table that lie flat into the directories of their partitions.

Older releases placed files flat.  Delta allows that, but polars takes the values of partition
columns from the names of directories.  A file gets a second name, and one commit that changes no
rows names it there; VACUUM removes the first name when no version within its retention needs it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from sparktxlog.codec.partitions import partition_directories
from sparktxlog.delta.file_paths import path_in_log, path_of_file
from sparktxlog.delta.live_files import live_files
from sparktxlog.storage.durability import link_or_copy
from sparktxlog.worker.apply.deltalog import forget_log, read_log, removal_of
from sparktxlog.worker.apply.tables import commit_by_hand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def flat_files(table: Path) -> int:
    """Return how many live files of a partitioned table lie in none of its directories."""
    if not DeltaTable(table).metadata().partition_columns:
        return 0
    return sum("/" not in path for path in live_files(table).sizes)


def move_into_partitions(session: SparkSession, table: Path) -> int:
    """Put flat files into the directories of their partitions; return how many there were.

    **Before calling** hold the replica.  **After calling** settle the new version, if there is one.

    Raises:
        PySparkException, Py4JError: The log cannot be read.
        OSError: Nothing was committed; among others FileExistsError: somebody else committed.
    """
    forget_log(session, table)  # the worker commits without Spark, too
    log, now_ms = read_log(session, table), time.time_ns() // 1_000_000
    in_files = {name: stored for stored, name in log.names_in_files.items()}
    columns = [in_files[name] for name in log.metadata["partitionColumns"]]
    actions = list[dict[str, Any]]()
    for add in log.adds:
        name = path_of_file(add["path"])
        values = add.get("partitionValues") or {}
        below = partition_directories({column: values.get(column) for column in columns})
        if not below or "/" in add["path"]:
            continue
        (table / below).mkdir(parents=True, exist_ok=True)
        link_or_copy(table / name, table / below / name)
        moved = add | {"path": path_in_log(below + name), "dataChange": False}
        actions += [{"remove": removal_of(add, now_ms) | {"dataChange": False}}, {"add": moved}]
    if actions:
        info = {"operation": "REORG", "operationParameters": {"purpose": "partition directories"}}
        commit_by_hand(table, log.version + 1, info, "", actions)
        forget_log(session, table)
    return len(actions) // 2
