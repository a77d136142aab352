"""Writes files of a table again without some of their rows, by tasks in Python with Arrow.

Spark has found the rows.  Its own reader and writer look at each value of each row that stays;
Arrow copies columns, which takes a fifth of the processor time.  Each task copies the files of one
partition until the new file is large enough.  It hands the rows that it leaves out to Spark, which
counts their signature.  Delta's statistics are made of the rows that stay.

Files that Arrow would read in another way than Spark are left to Spark: see `is_copied`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparktxlog.codec.calendars import FileCalendar, open_parquet
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.errors import InvariantViolation, first_lines
from sparktxlog.model.signature import TableSignature
from sparktxlog.worker.apply.deltalog import Action
from sparktxlog.worker.apply.row_copying import (
    MADE_COLUMN,
    TASK,
    RowPlaces,
    copied_files,
    names_in,
    same_batches,
    stored_columns,
)
from sparktxlog.worker.apply.signatures import hashed, row_hash, signature_from, sums_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparktxlog.model.tables.table import TableDefinition

_logger = logging.getLogger(__name__)

#: Bytes for which one more file is written.
FILE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Copied:
    """A live file whose rows are copied, but for some."""

    add: Action
    #: As `FILE_COLUMN` names it; "" = it was written by the same transaction.
    file: str = ""
    #: Its rows that are left out; None = all are copied.
    gone: RowPlaces | None = None


@lru_cache(maxsize=8)
def reaches_python(session: SparkSession) -> bool:
    """Return whether executors can run `row_copying`; asked once for each session."""
    try:
        session.range(1, numPartitions=1).mapInArrow(same_batches, "id bigint").collect()
    except (PySparkException, Py4JError) as error:
        _logger.warning(
            "executors cannot run sparktxlog, so Spark itself writes changed files again, which "
            "takes longer: %s",
            first_lines(error),
        )
        return False
    return True


def are_copied(table: Path, definition: TableDefinition, adds: Sequence[Action]) -> list[bool]:
    """Return of each live file whether Arrow reads it as Spark does; reads their footers."""
    wanted = stored_columns(definition)
    with ThreadPoolExecutor(8, "footers") as threads:
        return list(threads.map(partial(is_copied, table, wanted), adds))


def is_copied(table: Path, wanted: pa.Schema, add: Action) -> bool:
    """Return whether Arrow reads a file as Spark does.

    It does not where the file has deletion vectors, a column has another type or case than in the
    table or is INT96, or days may be those of the old calendar.  What cannot be read is left to
    Spark's error.

    Args:
        wanted: Columns that files of the table have.
    """
    if add.get("deletionVector"):
        return False
    try:
        with open_parquet(table / path_of_file(add["path"])) as file:
            found = file.schema_arrow
            leaves = (file.schema.column(number) for number in range(len(file.schema)))
            if any(leaf.physical_type == "INT96" for leaf in leaves) or FileCalendar(file).columns:
                return False
    except (OSError, ValueError, pa.ArrowException):
        return False
    same = (found.field(name).type == wanted.field(name).type for name in names_in(wanted, found))
    # Spark ignores case: it reads a column of another one, and of two it would be unknown which.
    exact, names = {name.lower(): name for name in wanted.names}, found.names
    is_exact = all(exact.get(name.lower(), name) == name for name in names)
    return is_exact and len(set(map(str.lower, names))) == len(names) and all(same)


def rewrite(
    session: SparkSession, table: Path, definition: TableDefinition, files: Sequence[Copied]
) -> tuple[list[Action], TableSignature]:
    """Copy files of a table into new ones, one Spark job; the table's log stays as it is.

    Args:
        files: Those that `is_copied` allows.

    Returns:
        The `add` actions of the new files, and the signature of the rows that were left out.

    Raises:
        PySparkException, Py4JError: The job failed; files may be left that no version names.
        InvariantViolation: Not those rows were left out (nothing is committed).
    """
    # Spark shares batches, or the rows of few, among its tasks.
    batches = [_task_of(group) for group in grouped(files)]
    tasks = session.createDataFrame(pa.Table.from_batches(batches))
    columns = [
        f"{quoted_name(c.name)} {'string' if c.name in definition.partition_by else c.type}"
        for c in definition.columns
    ]
    copy = partial(copied_files, table=table, definition=definition)
    left = tasks.mapInArrow(copy, ", ".join([*columns, f"{MADE_COLUMN} string"]))
    is_left = F.col(MADE_COLUMN).isNull()
    found = hashed(left, row_hash(definition.columns), is_left, keep=(MADE_COLUMN,))
    row = found.agg(*sums_of(), F.collect_list(MADE_COLUMN)).collect()[0]
    lost, made = signature_from(row), [json.loads(text) for text in row[-1]]
    meant = sum(one.gone.rows for one in files if one.gone is not None)
    if lost.rows != meant:
        raise InvariantViolation(
            f"table {definition.name!r}: {lost.rows:,} rows were left out, {meant:,} were found",
            table=definition.name,
        )
    return [one for one in made if one], lost


def _task_of(group: Sequence[Copied]) -> pa.RecordBatch:
    paths = [path_of_file(one.add["path"]) for one in group]
    gone = [b"" if one.gone is None else one.gone.to_bytes() for one in group]
    values = [[json.dumps(group[0].add["partitionValues"])], [paths], [gone]]
    arrays = [pa.array(value, kind) for value, kind in zip(values, TASK.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=TASK)


def grouped(files: Sequence[Copied]) -> list[list[Copied]]:
    """Return the files of each new file: of one partition, until they are large enough."""
    groups: list[list[Copied]] = []
    open_groups: dict[str, list[Copied]] = {}
    for one in files:
        values = json.dumps(one.add["partitionValues"], sort_keys=True)
        group = open_groups.get(values)
        if group is None or sum(other.add["size"] for other in group) >= FILE_BYTES:
            group = open_groups[values] = []
            groups.append(group)
        group.append(one)
    return groups
