"""What a copy would make disappear, kept for whoever wrote it (protocol P28, D17).

    lake/_sparktxlog/quarantine/<table>-<copy id>        rows that the donor's version lacks, Delta
    lake/_sparktxlog/quarantine/<table>-<copy id>.files  the whole old directory of a table
    lake/_sparktxlog/quarantine.jsonl                    one line for each of them

Nothing here goes by itself: `leftovers` removes what people name by its age.  Resubmitting rows is
a decision of people, too.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparktxlog.storage.durability import sync_directory
from sparktxlog.worker.backup import link_tree
from sparktxlog.worker.deltalog import forget_log
from sparktxlog.worker.merging import read_version, tagged
from sparktxlog.worker.signatures import quoted, row_hash
from sparktxlog.worker.state import STATE_DIRECTORY
from sparktxlog.worker.tables import TableCommit, newest_version, read_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparktxlog.model.table import TableDefinition

#: Foreign commits named in a line; the table's own history holds all of them.
_NAMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCommit:
    """A version that somebody else wrote."""

    version: int
    #: User and engine, as far as the log says.
    author: str
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A line of `quarantine.jsonl`."""

    table: str
    copy_id: str
    #: Wall clock, microseconds since 1970 UTC.
    at: int
    reason: str
    #: Newest version of the old table, and of the donor's; None = unknown, or the donor has none.
    version: int | None
    donor_version: int | None
    #: Rows saved; None = not counted, the files were kept as they are.
    rows: int | None
    #: Relative to the lake, empty if there was no row to save.
    path: str
    foreign: tuple[ForeignCommit, ...] = ()
    #: What could not be done, in words.
    note: str = ""


class Quarantine:
    """Keeps what copies replace in one lake.

    Args:
        session: The worker's own.
        lake: Root of the replica's tables.
        copy_id: Of the copy under way; a repeated act replaces what a crash left.
    """

    def __init__(self, session: SparkSession, lake: Path, copy_id: str) -> None:
        self._session = session
        self._lake = lake
        self._copy_id = copy_id
        self._root = lake / STATE_DIRECTORY / "quarantine"

    def place_of_files(self, table: str) -> Path:
        """Return where a table's old directory goes as a whole."""
        return self._root / f"{table}-{self._copy_id}.files"

    def save_rows(
        self,
        definition: TableDefinition,
        donor: Path,
        donor_version: int,
        foreign: tuple[ForeignCommit, ...],
        reason: str,
        *,
        anew: bool = False,
    ) -> Quarantined:
        """Save the rows of the old table that the donor's version lacks, duplicates counted.

        A table that cannot be read is kept by its files, and the line says so.

        Args:
            donor: The staged table.
            anew: The old table has changed since it was saved; it is still the old one.

        Raises:
            OSError: The files cannot be kept either; the table must not be replaced.
        """
        name, old = definition.name, self._lake / definition.name
        saved = None if anew else self._find(name)
        if saved is not None:
            # The table may be the donor's by now: what it lacked was saved before.
            return saved
        target = self._root / f"{name}-{self._copy_id}"
        note, rows, path = "", None, str(target.relative_to(self._lake))
        try:
            forget_log(self._session, old)
            with tagged(self._session, "quarantine", name):
                held = self._session.read.format("delta").load(str(old))
                staged = read_version(self._session, str(donor), donor_version)
                lost = lacking(held, staged, definition)
                lost.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
                    str(target)
                )
                rows = self._session.read.format("delta").load(str(target)).count()
            _sync_tree(target)
        except (PySparkException, Py4JError) as error:
            note = f"the table cannot be read, its files are kept: {str(error).split(chr(10))[0]}"
            kept = self.place_of_files(name)
            link_tree(old, kept)
            path = str(kept.relative_to(self._lake))
        return self._record(name, reason, donor_version, rows, path, foreign, note[:500])

    def save_files(self, table: str, foreign: tuple[ForeignCommit, ...], reason: str) -> None:
        """Move a table's directory away as a whole, and record it."""
        old, kept = self._lake / table, self.place_of_files(table)
        version = newest_version(old, oldest_version(old))
        if old.exists():
            self._root.mkdir(parents=True, exist_ok=True)
            old.rename(kept)
            for directory in (self._root, self._lake):
                sync_directory(directory)
            forget_log(self._session, old)
        path = str(kept.relative_to(self._lake))
        self._record(table, reason, None, None, path, foreign, "", version)

    def _find(self, table: str) -> Quarantined | None:
        """Return the line of a table's rows that an attempt before a crash has written."""
        path = self._lake / STATE_DIRECTORY / "quarantine.jsonl"
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            if line.endswith(b"\n") and f'"{self._copy_id}"'.encode() in line:
                found = msgspec.json.decode(line, type=Quarantined)
                if (found.table, found.copy_id) == (table, self._copy_id):
                    return found
        return None

    def _record(
        self,
        table: str,
        reason: str,
        donor_version: int | None,
        rows: int | None,
        path: str,
        foreign: tuple[ForeignCommit, ...],
        note: str,
        version: int | None = None,
    ) -> Quarantined:
        if version is None:
            old = self._lake / table
            version = newest_version(old, oldest_version(old))
        line = Quarantined(
            table=table,
            copy_id=self._copy_id,
            at=time_ns() // 1000,
            reason=reason,
            version=version if version >= 0 else None,
            donor_version=donor_version,
            rows=rows,
            path=path,
            foreign=foreign[:_NAMED],
            note=note,
        )
        own = self._lake / STATE_DIRECTORY
        with open(own / "quarantine.jsonl", "ab") as file:
            file.write(json.dumps(asdict(line)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(own)
        return line


def lacking(held: DataFrame, donor: DataFrame, definition: TableDefinition) -> DataFrame:
    """Return the rows of `held` that `donor` lacks; of equal rows as many as are too many.

    Spark's `exceptAll` does not take maps: rows are compared by their signature's two hashes, and
    columns that only `held` has come along.

    **Shape:** columns of `held`, no order.
    """
    left = _numbered(held, definition).alias("held")
    right = _numbered(donor, definition).alias("donor")
    keys = list(_KEYS)
    return left.join(right.select(*keys), keys, "left_anti").select(
        *[quoted(name) for name in held.columns]
    )


_KEYS = ("__txlog_lane0", "__txlog_lane1", "__txlog_twin")


def _numbered(frame: DataFrame, definition: TableDefinition) -> DataFrame:
    hashed = frame.withColumns({_KEYS[lane]: row_hash(definition.columns, lane) for lane in (0, 1)})
    equal = Window.partitionBy(*_KEYS[:2]).orderBy(F.lit(0))
    return hashed.withColumn(_KEYS[2], F.row_number().over(equal))


def foreign_commits(
    table: Path, recorded: int, lineage: str, name: str
) -> tuple[ForeignCommit, ...]:
    """Return the commits after a version that this log's worker did not make."""
    found = []
    for version in range(recorded + 1, newest_version(table, recorded) + 1):
        commit = read_commit(table, version)
        if commit.changes and not _is_own(commit, lineage, name):
            found.append(
                ForeignCommit(version=version, author=commit.author, operation=commit.operation)
            )
    return tuple(found)


def _is_own(commit: TableCommit, lineage: str, name: str) -> bool:
    return commit.own is not None and commit.own.lineage == lineage and commit.own.table == name


def oldest_version(table: Path) -> int:
    """Return the oldest commit that a table's log still has, -1 = none."""
    versions = [
        int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit()
    ]
    return min(versions, default=-1)


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            with open(Path(folder) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_directory(folder)
