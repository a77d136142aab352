"""Reads a plain Delta table with Spark, as what a commit table can be made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable
from sparktxlog.delta.log_files import has_log
from sparktxlog.errors import InvalidRequestError, first_lines
from sparktxlog.model.ids import local_path
from sparktxlog.model.tables.commit_table import COMMIT_LOG
from sparktxlog.worker.apply.deltalog import LogVersion, read_log, with_writers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_plain_table(spark: SparkSession, path: str) -> PlainTable:
    """Return a Delta table at its newest version.

    Args:
        path: Its directory.

    Raises:
        InvalidRequestError: There is none, or it is elsewhere than in a file system (definite).
    """
    source = Path(local_path(path)).absolute()
    log = read_delta(spark, source, files=True)
    return PlainTable(
        path=str(source),
        version=log.version,
        protocol=log.protocol,
        metadata=log.metadata,
        adds=log.adds,
        domains=log.domains,
        writers=log.writers,
    )


def newest_version(spark: SparkSession, plain: PlainTable) -> int:
    """Return the newest version of a table now."""
    return read_delta(spark, Path(plain.path), files=False).version


def read_delta(
    spark: SparkSession, source: Path, version: int | None = None, *, files: bool
) -> LogVersion:
    """Return the log of a Delta table that somebody else writes; errors as `read_plain_table`.

    Args:
        version: None = the newest.
        files: Live files, domains and writers too.
    """
    problem = f"it has no {COMMIT_LOG}"
    try:
        if has_log(source):
            found = read_log(spark, source, version, files=files)
            return with_writers(spark, source, found) if files else found
    except (PySparkException, Py4JError) as error:
        problem = first_lines(error)
    raise InvalidRequestError(
        f"{source} cannot be read as a Delta table: {problem}",
        hint=f"Name the directory that has {COMMIT_LOG}.",
        field="path",
        value=str(source),
    )
