"""A Delta table that others write: what it is, and which of its files the log can take as they are.

Files are taken as they are if they hold exactly the table's columns under their names.  Rows of
other files (with deletion vectors, names or types of an older schema, days of the old calendar,
floats that readers with a filter would miss) are written again by Spark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sparktxlog.api.adopting.losses import left_behind, obstacles_of
from sparktxlog.codec.arrow import schema_of_file
from sparktxlog.codec.calendars import READ_MODES, FileCalendar, open_parquet
from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable
from sparktxlog.codec.parquet_columns import hides_rows
from sparktxlog.codec.submits.requests import check_partition
from sparktxlog.codec.submits.validation import check_file_schema
from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.delta.log_files import TablePlace, has_log, newest_commit, store_of
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    CommitRejectedError,
    InvalidRequestError,
    ObjectMissingError,
    StorageError,
)
from sparktxlog.files.durability import link_new
from sparktxlog.files.stores.store import Store
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import local_path
from sparktxlog.model.tables.commit_table import COMMIT_LOG
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.tables.table_kind import TableKind
from sparktxlog.model.tables.table_properties import MAX_TEXT, why_not
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.worker.apply.deltalog import rows_of_files
from sparktxlog.worker.apply.tables import CLUSTERING
from sparktxlog.worker.tables.places_of_tables import store_of_job
from sparktxlog.worker.tables.table_adoption import in_the_way

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Action = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A live data file of a Delta table."""

    #: None: it is a file of this machine.
    bucket: Store | None
    #: Key of the bucket, or path.
    path: str
    #: As Delta writes the values.
    partition: dict[str, str | None]
    add: Action

    @property
    def size_bytes(self) -> int:
        """Size as the log says it."""
        return int(self.add["size"])

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return self.path if self.bucket is None else self.bucket.url_of(self.path)

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition("/")[2]

    def open(self) -> pq.ParquetFile:
        """Open it to be read in any order.

        Raises:
            OSError, StorageError, ArrowException: It is not there, or no Parquet file.
        """
        return open_parquet(self.path if self.bucket is None else self.bucket.reader(self.path))

    def place_at(self, target: Path) -> None:
        """Give its bytes a name of this machine: a second one, or a copy of a bucket's.

        Raises:
            OSError, StorageError: It is gone, or a disk or the store fails.
        """
        if self.bucket is None:
            link_new(Path(self.path), target)
            return
        with closing(self.bucket.open(self.path).pieces) as pieces, target.open("xb") as file:
            file.writelines(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFiles:
    """Files by what the log does with them."""

    #: Taken as they are.
    linked: tuple[SourceFile, ...]
    #: Their rows are written again.
    rewritten: tuple[SourceFile, ...]
    #: Why → how many.
    reasons: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """A Delta table at one version."""

    #: Its directory, or the store whose root it is.
    place: TablePlace
    log: LogState

    @classmethod
    def read(cls, path: str, version: int | None = None, *, files: bool = True) -> SourceTable:
        """Read a table.

        Args:
            path: Or URL of a bucket, which is reached by the environment of this process.
            version: None = the newest.
            files: Live files, too.

        Raises:
            InvalidRequestError: There is none (definite).
            ConfigError: No store here has such URLs (definite).
        """
        in_bucket = bucket_url(path, "path")
        if in_bucket is not None:
            return cls.at(store_of_job(in_bucket.url), version, files=files)
        return cls.at(Path(local_path(path)).absolute(), version, files=files)

    @classmethod
    def at(
        cls, place: TablePlace, version: int | None = None, *, files: bool = True
    ) -> SourceTable:
        """Read a table at its place; as `read`."""
        problem = f"it has no {COMMIT_LOG}"
        try:
            if has_log(place):
                return cls(place=place, log=LogState.read(place, version, files=files))
        except StorageError as error:
            if error.retryable:
                raise
            problem = error.message
        url = store_of(place).url
        raise InvalidRequestError(
            f"{url} cannot be read as a Delta table: {problem}",
            hint=f"Name the directory, or prefix, that has {COMMIT_LOG}.",
            field="path",
            value=url,
        )

    def newest(self) -> int:
        """Return the newest version of the Delta table now, -1 = it has none any more."""
        return newest_commit(self.place)

    @property
    def url(self) -> str:
        """Its path, or its URL in a bucket, as Spark names it."""
        return store_of(self.place).url

    @property
    def plain(self) -> PlainTable:
        """What a commit table can be made of."""
        return PlainTable(path=self.url, log=self.log)

    @property
    def table_id(self) -> str:
        """UUID of the Delta table."""
        return str(self.log.metadata["id"])

    @property
    def version(self) -> int:
        """Version of the Delta table."""
        return self.log.version

    @cached_property
    def struct(self) -> StructType:
        """Its columns."""
        return StructType.fromJson(json.loads(self.log.metadata["schemaString"]))

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Its partition columns."""
        return tuple(self.log.metadata.get("partitionColumns") or ())

    @cached_property
    def obstacles(self) -> list[str]:
        """Why it cannot become a row table, with a way out for each; empty = it can."""
        return obstacles_of(self.log, self.struct)

    @property
    def left_behind(self) -> list[str]:
        """What a row table does not keep of it, for people."""
        return left_behind(self.log, self.struct, self.cluster_by)

    @property
    def comment(self) -> str:
        """Its comment."""
        return str(self.log.metadata.get("description") or "")[:MAX_TEXT]

    @property
    def properties(self) -> dict[str, str]:
        """Those of its properties that a row table may have."""
        found = self.log.configuration
        return {name: value for name, value in found.items() if why_not(name, value) is None}

    @cached_property
    def cluster_by(self) -> tuple[str, ...]:
        """The columns that it is clustered by; empty also where one is a field of a struct."""
        paths = json.loads(self.log.domains.get(CLUSTERING, "{}")).get("clusteringColumns") or []
        names = self.log.names_in_files
        plain = all(len(path) == 1 and path[0] in names for path in paths)
        return tuple(names[path[0]] for path in paths) if plain else ()

    def check_possible(self) -> None:
        """Refuse a table that cannot become a row table.

        Raises:
            InvalidRequestError: Something is in the way; the message names all of it (definite).
        """
        if self.obstacles:
            raise in_the_way(TableKind.ROW_TABLE, self.url, self.obstacles)

    def files(self, adds: Iterable[Action] | None = None) -> list[SourceFile]:
        """Return files of the table.

        Args:
            adds: Their `add` actions; default: all live ones.

        Raises:
            InvalidRequestError: The table lies in a bucket and has files elsewhere, as a shallow
                clone (definite).
        """
        names = self.log.names_in_files
        return [
            SourceFile(
                bucket=None if isinstance(self.place, Path) else self.place,
                path=self._path_of(path_of_file(add["path"])),
                partition={
                    names.get(name, name): value or None
                    for name, value in (add.get("partitionValues") or {}).items()
                },
                add=add,
            )
            for add in (self.log.adds.values() if adds is None else adds)
        ]

    def _path_of(self, path: str) -> str:
        if isinstance(self.place, Path):
            # A shallow clone names files of another table by URL.
            return str(self.place / local_path(path))
        if "://" in path or path.startswith("/"):
            raise in_the_way(
                TableKind.ROW_TABLE,
                self.url,
                [f"it is a shallow clone, with files elsewhere, such as {path[:200]}"],
            )
        return path

    def split(
        self, spark: SparkSession, files: Sequence[SourceFile], definition: TableDefinition
    ) -> SplitFiles:
        """Find out which files can be taken as they are.

        Reads their footers, and where these name the old calendar, dates and timestamps.

        Args:
            spark: The session that reads rows.

        Raises:
            InvalidRequestError: A file is missing or damaged, or a partition value is none of its
                type (definite).
        """
        modes = [str(spark.conf.get(name)) for name in READ_MODES]
        is_mapped = any(stored != name for stored, name in self.log.names_in_files.items())
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "footers") as threads:
            found = list(
                threads.map(lambda file: _misfit(file, definition, is_mapped, modes), files)
            )
        counted: dict[str, int] = {}
        for reason in filter(None, found):
            counted[reason] = counted.get(reason, 0) + 1
        if lost := [name for name in counted if name.startswith(_LOST)]:
            raise in_the_way(TableKind.ROW_TABLE, self.url, lost)
        pairs = list(zip(files, found, strict=True))
        others = [file for file, reason in pairs if reason == _OTHER_FORM]
        if wrong := _unreadable_values(spark, others, definition):
            raise in_the_way(TableKind.ROW_TABLE, self.url, wrong)
        return SplitFiles(
            linked=tuple(file for file, reason in pairs if not reason),
            rewritten=tuple(file for file, reason in pairs if reason),
            reasons=counted,
        )

    def rows(
        self, spark: SparkSession, files: Iterable[SourceFile], version: int | None = None
    ) -> DataFrame:
        """Return the rows of files, without those that their deletion vectors delete.

        Args:
            version: The rows have the columns of this version; default: this table's version.
        """
        adds = (file.add for file in files)
        return rows_of_files(spark, self.url, self.version if version is None else version, adds)


_LOST = "a file cannot be read: "
_OTHER_FORM = "partition value in a form of its own"


def _misfit(
    file: SourceFile, definition: TableDefinition, is_mapped: bool, modes: Sequence[str]
) -> str:
    """Return why a file cannot be taken as it is, empty if it can.

    Args:
        modes: How the session that reads rows takes files without a version.
    """
    try:
        with file.open() as opened:
            hides = hides_rows(opened)
            schema, calendar = schema_of_file(opened), FileCalendar(opened, modes)
            batches = opened.iter_batches(columns=calendar.columns) if calendar.columns else ()
            is_old = any(calendar.old_column(batch) for batch in batches)
    except ObjectMissingError as error:
        return f"{_LOST}{error.message}"
    except (OSError, pa.ArrowException) as error:
        return f"{_LOST}{file.url}: {error}"
    if file.add.get("deletionVector"):
        return "deletion vector"
    if is_mapped:
        return "other column names in the file"
    if hides:
        return "NaN or -0.0, which filters would not find in the file"
    kinds = {column.name: column.type for column in definition.columns}
    for name, value in file.partition.items():
        if kinds.get(name) == "timestamp" and value and not value.endswith("Z"):
            return "partition value without a time zone"
    try:
        check_partition(file.name, file.partition, definition, OperationKind.APPEND)
    except CommitRejectedError:
        return _OTHER_FORM
    try:
        check_file_schema(file.name, definition, OperationKind.APPEND, schema)
    except CommitRejectedError:
        return "older or other columns in the file"
    return "dates or timestamps of the old calendar" if is_old else ""


def _unreadable_values(
    spark: SparkSession, files: Iterable[SourceFile], definition: TableDefinition
) -> list[str]:
    """Return the partition values that Spark reads as NULL, although they are none, with columns.

    Their rows cannot be written again: nobody knows what the value was.
    """
    found = []
    for name in definition.partition_by:
        column = definition.column(name)
        assert column is not None
        texts = sorted({text for file in files if (text := file.partition.get(name)) is not None})
        read = spark.createDataFrame([(text,) for text in texts], "text string").where(
            F.col("text").try_cast(column.type).isNull()
        )
        found += [
            f"partition column {name!r} has the value {row.text[:80]!r}, which is no {column.type}"
            for row in (read.take(5) if texts else ())
        ]
    return found
