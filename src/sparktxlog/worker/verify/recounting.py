"""Recounts that the node asks a worker for, where replicas differ and no majority is at hand (S3).

Then the rows may tell who is wrong: signatures are sums of claims, only a scan reads the rows.
What people ask for is `verify`'s, which also looks for the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from sparktxlog.model.report import Recount, RecountedTable
from sparktxlog.worker.replica.state import ReplicaState, ReplicaTable
from sparktxlog.worker.verify.verify import count_table, data_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


def recount(
    session: SparkSession, lake: Path, state: ReplicaState, node_id: str, tables: Iterable[str]
) -> Recount:
    """Recount tables of a replica at their recorded versions.

    A table that cannot be scanned although all its files can be read proves nothing, and is left
    out: the scan itself failed.

    Args:
        session: The worker's own.
        tables: Names; those that the replica does not have are left out.
    """
    found = {}
    for name in sorted({*tables} & state.tables.keys()):
        counted = _recount_table(session, lake / name, state.tables[name])
        if counted is not None:
            found[name] = counted
    return state.recount(node_id, found)


def _recount_table(session: SparkSession, path: Path, table: ReplicaTable) -> RecountedTable | None:
    name, causes = table.definition.name, list[str]()
    try:
        files = data_files(path, table.version)
    except DeltaError as error:
        counted, failure = "", str(error)
    else:
        counted, causes, failure = count_table(session, path, table, files)
    if failure and not causes:
        _logger.warning("table %s is not recounted: %s", name, failure)
        return None
    recorded = table.signature.to_text()
    if counted != recorded:
        _logger.error(
            "table %s counts %s, recorded is %s; %s",
            name, counted or "nothing", recorded, "; ".join(causes) or "all its files are whole",
        )  # fmt: skip
    return RecountedTable(
        version=table.version, recorded=recorded, counted=counted, cause="; ".join(causes[:3])
    )
