"""What only Spark's own Delta can do with a table, through the driver's JVM.

It shows rows without those that deletion vectors delete, writes rows with statistics and deletion
vectors, and commits them after it compared them with commits of others.  What a log says is read in
`delta/`.  Delta caches opened logs by path; a log whose files were replaced must be opened again
(`forget_log`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sparktxlog.delta.commit_files import commit_by_hand
from sparktxlog.delta.file_paths import path_of_file
from sparktxlog.errors import ApplyError, CopyConflictError
from sparktxlog.files.stores.store import Store
from sparktxlog.worker.apply.fold import ROW_INDEX, URI_COLUMN, place_columns
from sparktxlog.worker.apply.tables import OwnCommit
from sparktxlog.worker.apply.worker_session import active, be_active, marked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Action = dict[str, Any]
_DELTA = "org.apache.spark.sql.delta"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
#: Where a row is.
_PLACE = (URI_COLUMN, ROW_INDEX)
#: Names of Delta's errors of concurrent writes.
_CONFLICTS = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED", "Concurrent")


def rows_of_files(
    session: SparkSession, table: Path | str, version: int, adds: Iterable[Action]
) -> DataFrame:
    """Return the rows of files as a version of a table shows them: with its columns, and without
    what their deletion vectors delete.

    Args:
        table: Its directory, or its URL.
        adds: `add` actions; the files need not be live in the version.

    Raises:
        PySparkException, Py4JError: The log cannot be read, or has no such version.
    """
    with active(session):
        log, nothing = _open(session, table), _nothing(session)
        snapshot = log.getSnapshotAt(version, nothing, nothing, False)
        files = _actions(session, ({"add": add} for add in adds))
        return DataFrame(log.createDataFrame(snapshot, files, False, nothing), session)


def forget_log(session: SparkSession, table: Path | str) -> None:
    """Make Delta read a log from its files again, because they were written without it.

    Args:
        table: Its directory, or its URL.
    """
    path = _java(session, "org.apache.hadoop.fs.Path")(str(table))
    _java(session, f"{_DELTA}.DeltaLog").invalidateCache(session._jsparkSession, path)


def write_checkpoint(session: SparkSession, table: Path | str) -> None:
    """Let Delta write a checkpoint of a table's newest version.

    Args:
        table: Its directory, or its URL.

    Raises:
        PySparkException, Py4JError: The log cannot be read or written.
    """
    with active(session):
        log, nothing = _open(session, table), _nothing(session)
        log.checkpoint(log.update(False, nothing, nothing), nothing)


class LogTransaction:
    """An optimistic transaction over a whole table: begun at its newest version.

    Args:
        table: As Spark names it.
        by_hand: The table, if its versions are made by hand: Delta's own commits to a bucket look
            first and write then, so that of two writers both would make a version.
    """

    def __init__(
        self, session: SparkSession, table: Path | str, by_hand: Store | None = None
    ) -> None:
        self._session = session
        self._table = table
        self._by_hand = by_hand
        # Delta takes the commit's metadata from the thread's active session.
        be_active(session)
        self._begun = _open(session, table).startTransaction()
        # Then any commit of others in between is a conflict.
        self._begun.readWholeTable()
        #: What the commit builds on.
        self.version = int(self._begun.snapshot().version())
        self._written: list[Any] = []

    def adds_of(self, files: Iterable[str]) -> dict[str, Action]:
        """Return the `add` action of each of some live files; one Spark job.

        Args:
            files: As `_metadata.file_path` of Spark, those of this machine without scheme.

        Raises:
            ApplyError: One of them is not live (definite: nothing was changed).
        """
        # As Delta names the directory, which may be without `..` and links of the path given.
        data = _open(self._session, self._table).dataPath()
        is_local = str(data.toUri().getScheme() or "file") == "file"
        root = str(data.toUri().getPath() if is_local else data.toString())
        paths = {
            _without_scheme(path_of_file(file)).removeprefix(f"{_without_scheme(root)}/"): file
            for file in files
        }
        live = DataFrame(self._begun.snapshot().allFiles().toDF(), self._session)
        # Spark shows `ü` where a log may have `%C3%BC`: only names without quoting are compared.
        name = F.url_decode(F.replace("path", F.lit("+"), F.lit("%2B")))
        wanted = live.where(name.isin(sorted(paths)))
        adds = [json.loads(row[0]) for row in wanted.select(F.to_json(F.struct("*"))).collect()]
        found = {paths[path]: add for add in adds if (path := path_of_file(add["path"])) in paths}
        if missing := paths.keys() - {path_of_file(add["path"]) for add in adds}:
            raise ApplyError(
                f"{self._table}: version {self.version} has no file {min(missing)}",
                hint="Another writer changed the table meanwhile; the batch is done again.",
                path=str(self._table),
            )
        return found

    def rows_of(self, adds: Iterable[Action]) -> DataFrame:
        """Return the rows of live files, without what their deletion vectors delete."""
        return self._rows(_actions(self._session, ({"add": add} for add in adds)))

    def rows_with_place(self) -> DataFrame:
        """Return all rows of the table, with `URI_COLUMN` and `ROW_INDEX`."""
        rows = self._rows(self._live)
        return rows.select("*", *place_columns(rows))

    def remove_rows(self, rows: DataFrame) -> int:
        """Note rows in deletion vectors, which `commit` adds; runs Spark jobs.

        Args:
            rows: Some of `rows_with_place`, with what that adds.

        Returns:
            How many there are.
        """
        session, begun, files = self._session._jsparkSession, self._begun, self._live
        helper = _scala(self._session, f"{_DELTA}.commands.DMLWithDeletionVectorsHelper")
        written = _scala(
            self._session, f"{_DELTA}.commands.DeletionVectorBitmapGenerator"
        ).buildRowIndexSetsForFilesMatchingCondition(
            session,
            begun,
            True,
            # Delta adds columns of its own, whose names a table may have.
            rows.select(*_PLACE)._jdf,
            files,
            _scala(self._session, f"{_EXPRESSIONS}.Literal").TrueLiteral(),
            *(_java(self._session, "scala.Option").apply(F.col(n)._jc) for n in _PLACE),
        )
        named = helper.generateCandidateFileMap(begun.deltaLog().dataPath(), files)
        touched = helper.findFilesWithMatchingRows(begun, named, written)
        length = _scala(
            self._session, f"{_DELTA}.stats.StatsCollectionUtils"
        ).getDataSkippingStringPrefixLength(session, begun.metadata())
        changes = helper.processUnmodifiedData(session, touched, begun.snapshot(), length)
        self._written.extend(_listed(self._session, changes._1()))
        return int(changes._2().apply("numModifiedRows"))

    @cached_property
    def _live(self) -> Any:
        """All live files as a sequence of Scala."""
        found = self._begun.snapshot().allFiles().collectAsList()
        return _java(self._session, "org.apache.spark.api.python.PythonUtils").toSeq(found)

    def _rows(self, files: Any) -> DataFrame:
        log, nothing = _open(self._session, self._table), _nothing(self._session)
        rows = log.createDataFrame(self._begun.snapshot(), files, False, nothing)
        return DataFrame(rows, self._session)

    def write(self, rows: DataFrame) -> None:
        """Write rows with the table's columns into files that `commit` adds."""
        self._written.extend(_listed(self._session, self._begun.writeFiles(rows._jdf)))

    def take_written(self, wanted: Callable[[Action], bool]) -> list[Action]:
        """Return the `add` actions of some written files; `commit` does not add them then."""
        adds, left = [], []
        for made in self._written:
            add = json.loads(made.json()).get("add")
            if add is not None and wanted(add):
                adds.append(add)
            else:
                left.append(made)
        self._written = left
        return adds

    def commit(self, actions: Iterable[Action], own: OwnCommit) -> int:
        """Commit actions atomically; return the table's new version.

        Raises:
            CopyConflictError: Another writer committed meanwhile; nothing was committed (definite).
        """
        session = self._session
        if self._by_hand is not None:
            return self._committed_by_hand(self._by_hand, actions, own)
        sequence = _actions(session, actions, self._written)
        operation = _scala(session, f"{_DELTA}.DeltaOperations$ManualUpdate")
        try:
            with marked(session, own):
                return int(self._begun.commit(sequence, operation))
        except (PySparkException, Py4JError) as error:
            if not any(cause in str(error) for cause in _CONFLICTS):
                raise
            raise self._conflict() from error

    def _committed_by_hand(self, table: Store, actions: Iterable[Action], own: OwnCommit) -> int:
        written = (json.loads(made.json()) for made in self._written)
        info = {
            "timestamp": time_ns() // 1_000_000,
            "operation": "Manual Update",
            "operationParameters": {},
        }
        try:
            commit_by_hand(table, self.version + 1, info, own.to_text(), (*actions, *written))
        except FileExistsError as error:
            raise self._conflict() from error
        return self.version + 1

    def _conflict(self) -> CopyConflictError:
        return CopyConflictError(
            f"{self._table} was written by somebody else meanwhile",
            hint="Nothing was changed; stop other writers of this table.",
            path=str(self._table),
        )


def removal_of(add: Action, now_ms: int) -> Action:
    """Return the `remove` of a live file."""
    kept = {
        key: add[key]
        for key in ("path", "partitionValues", "size", "deletionVector", "stats", "tags")
        if add.get(key) is not None
    }
    extra = {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
    return {**kept, **extra}


def _actions(session: SparkSession, actions: Iterable[Action], written: Iterable[Any] = ()) -> Any:
    """Return actions as a sequence of Scala, with those of the JVM after them."""
    listed = _java(session, "java.util.ArrayList")()
    read = _java(session, f"{_DELTA}.actions.Action").fromJson
    for action in actions:
        listed.add(read(json.dumps(action)))
    for made in written:
        listed.add(made)
    return _java(session, "org.apache.spark.api.python.PythonUtils").toSeq(listed)


def _without_scheme(path: str) -> str:
    """Return what follows the scheme of a URL: Hadoop has several names for that of a bucket."""
    return path.partition("://")[2] or path


def _open(session: SparkSession, table: Path | str) -> Any:
    return _java(session, f"{_DELTA}.DeltaLog").forTable(session._jsparkSession, str(table))


def _nothing(session: SparkSession) -> Any:
    return _java(session, "scala.Option").apply(None)


def _listed(session: SparkSession, sequence: Any) -> Any:
    """Return a sequence of Scala as a list."""
    return _java(session, "scala.jdk.javaapi.CollectionConverters").asJava(sequence)


def _scala(session: SparkSession, name: str) -> Any:
    """Return a singleton of Scala."""
    return getattr(_java(session, f"{name}$"), "MODULE$")


def _java(session: SparkSession, name: str) -> Any:
    """Return a class by its whole name: for `org`, `org.apache`, … Java would search all JARs."""
    return getattr(session.sparkContext._jvm, name)
