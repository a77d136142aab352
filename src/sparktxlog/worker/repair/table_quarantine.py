"""Keeps rows that a copy or a repair would remove, for their author (protocol P28).

    lake/_sparktxlog/quarantine/<table>-<copy id>        rows that the donor's version lacks, Delta
    lake/_sparktxlog/quarantine/<table>-<copy id>.files  the whole old directory of a table
    lake/_sparktxlog/quarantine.jsonl                    one line for each of them

A line names the version of the old table that it covers, and the swap happens on that version or
not at all (`swap`).  A later export of the old table replaces the earlier one, whose rows it
includes.  An export after a swap that must be repeated gets its own directory (`.v<version>`), and
so does that of a table that somebody put in the old one's place.

Nothing is removed automatically: `removal` removes what is older than an operator says.  Operators
also decide whether rows are submitted again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparktxlog.codec.alterations import widens
from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import SchemaMismatchError
from sparktxlog.storage.durability import append_line, free_name, sync_directory, whole_lines
from sparktxlog.worker.apply.deltalog import forget_log, read_log
from sparktxlog.worker.apply.signatures import row_hash
from sparktxlog.worker.apply.worker_session import read_version, tagged
from sparktxlog.worker.backup.old_files import link_tree
from sparktxlog.worker.repair.examining import Examined, ForeignCommit, committed_at
from sparktxlog.worker.replica.state import STATE_DIRECTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparktxlog.model.table import Column, TableDefinition

#: Most foreign commits named in a line; the table's own history has all of them.
_NAMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A line of `quarantine.jsonl`."""

    table: str
    copy_id: str
    #: Wall clock, microseconds since 1970 UTC.
    at: int
    reason: str
    #: Version of the old table up to which rows are saved; None = the table has no commit.  And the
    #: donor's version; None = the donor has no such table.
    version: int | None
    donor_version: int | None
    #: Saved rows; None = not counted, the files were kept as they are.
    rows: int | None
    #: Relative to the lake, empty if there was no row to save.
    path: str
    foreign: tuple[ForeignCommit, ...] = ()
    #: What failed.
    note: str = ""
    #: When `version` was written, microseconds since 1970 UTC; 0 = unknown.  A table that somebody
    #: put in this one's place may have the same version, with another time.
    committed_at: int = 0


class TableQuarantine:
    """Keeps what copies replace in one lake.

    Args:
        session: The worker's own.
        lake: Root of the replica's tables.
        copy_id: Of the present copy; a repetition replaces what a crash left.
    """

    def __init__(self, session: SparkSession, lake: Path, copy_id: str) -> None:
        self._session = session
        self._lake = lake
        self._copy_id = copy_id
        self._root = lake / STATE_DIRECTORY / "quarantine"

    def place_of_files(self, table: str) -> Path:
        """Return the path that a table's old directory is moved to."""
        return self._root / f"{table}-{self._copy_id}.files"

    def save_rows(
        self,
        definition: TableDefinition,
        donor: Path,
        donor_version: int,
        examined: Examined,
        reason: str,
        known: TableDefinition | None,
    ) -> Quarantined:
        """Save the rows of the old table that the donor's version lacks, duplicates counted.

        Does it once for each examined version.  Of a table that cannot be read the files are kept,
        and the line says so.

        Args:
            definition: Of the donor's version.
            donor: The staged table.
            examined: The version that is saved.
            known: The old table as the log had made it; None = the replica does not know it.

        Raises:
            OSError: The files cannot be kept; the table must not be replaced.
        """
        name, old = definition.name, self._lake / definition.name
        exports = self._exports(name)
        for saved in exports:
            if (saved.version, saved.committed_at) == (examined.version, examined.committed_at):
                return saved
        target = self._target(name, examined, exports)
        note, rows, path = "", None, str(target.relative_to(self._lake))
        try:
            rows = self._export(definition, examined.version, donor, donor_version, target, known)
        except (PySparkException, Py4JError) as error:
            note = f"the table cannot be read, its files are kept: {str(error).split(chr(10))[0]}"
            kept = free_name(target.with_name(f"{target.name}.files"))
            link_tree(old, kept)
            path = str(kept.relative_to(self._lake))
        return self._record(
            Quarantined(
                table=name,
                copy_id=self._copy_id,
                at=time_ns() // 1000,
                reason=reason,
                version=examined.version,
                donor_version=donor_version,
                rows=rows,
                path=path,
                foreign=examined.foreign[:_NAMED],
                note=note[:500],
                committed_at=examined.committed_at,
            )
        )

    def _export(
        self,
        definition: TableDefinition,
        version: int,
        donor: Path,
        donor_version: int,
        target: Path,
        known: TableDefinition | None,
    ) -> int:
        """Write the rows of a version that the donor's lacks; return their number."""
        name, old = definition.name, self._lake / definition.name
        forget_log(self._session, old)
        with tagged(self._session, "quarantine", name):
            held = read_version(self._session, str(old), version)
            staged = read_version(self._session, str(donor), donor_version)
            names = read_log(self._session, old, version, files=False).names_in_files
            lost = lacking(held, staged, definition, names, known)
            lost.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
                str(target)
            )
            rows = self._session.read.format("delta").load(str(target)).count()
        _sync_tree(target)
        return rows

    def save_files(self, table: str, foreign: tuple[ForeignCommit, ...], reason: str) -> str:
        """Move a table's directory to quarantine and record it; return its path in the lake."""
        old, kept = self._lake / table, free_name(self.place_of_files(table))
        version = newest_commit(old)
        at = committed_at(old, version)
        if old.exists():
            self._root.mkdir(parents=True, exist_ok=True)
            old.rename(kept)
            for directory in (self._root, self._lake):
                sync_directory(directory)
            forget_log(self._session, old)
        return self._record(
            Quarantined(
                table=table,
                copy_id=self._copy_id,
                at=time_ns() // 1000,
                reason=reason,
                version=version if version >= 0 else None,
                donor_version=None,
                rows=None,
                path=str(kept.relative_to(self._lake)),
                foreign=foreign[:_NAMED],
                committed_at=at,
            )
        ).path

    def _exports(self, table: str) -> list[Quarantined]:
        """Return the lines about exported versions of a table, of any process."""
        path, found = self._lake / STATE_DIRECTORY / "quarantine.jsonl", list[Quarantined]()
        for line in whole_lines(path):
            if f'"{self._copy_id}"'.encode() in line:
                try:
                    read = msgspec.json.decode(line, type=Quarantined)
                except msgspec.MsgspecError:
                    continue  # an older release wrote after a torn line
                # Lines without a donor's version are about whole directories.
                if (read.table, read.copy_id) == (table, self._copy_id) and (
                    read.donor_version is not None
                ):
                    found.append(read)
        return found

    def _target(self, table: str, examined: Examined, exports: Sequence[Quarantined]) -> Path:
        """Return the path of an export: that of an earlier one if it includes its rows."""
        target = self._root / f"{table}-{self._copy_id}"
        old = self._lake / table
        same = all(
            line.version is not None and committed_at(old, line.version) == line.committed_at
            for line in exports
        )
        if examined.swapped is None and same:
            return target
        # The table does not have the rows of the earlier export any more.
        return target.with_name(f"{target.name}.v{examined.version}")

    def _record(self, line: Quarantined) -> Quarantined:
        path = self._lake / STATE_DIRECTORY / "quarantine.jsonl"
        append_line(path, json.dumps(asdict(line)).encode())
        return line


def lacking(
    held: DataFrame,
    donor: DataFrame,
    definition: TableDefinition,
    names: Mapping[str, str],
    known: TableDefinition | None,
) -> DataFrame:
    """Return the rows of `held` that `donor` lacks; equal rows count as often as they occur.

    Spark's `exceptAll` does not take maps, so rows are compared by two hashes, as signatures have
    them.  The table may have changed between both (P33): columns are compared by their names in
    files, and as the wider one of their types.  Those that the log added later are left out.  Any
    other that `held` does not have counts as NULL there.  Columns that only `held` has are kept.

    **Shape:** columns of `held`, no order.

    Args:
        definition: Of `donor`.
        names: Names in files → names of columns of `held`.
        known: `held` as the log had made it, None = unknown.
    """
    before = {column.in_files for column in (known or definition).columns}
    of_held: list[Column] = []
    of_donor: list[Column] = []
    for column in definition.columns:
        name = names.get(column.in_files)
        if name is not None:
            shown = held.schema[name].dataType.simpleString()
            column = replace(column, type=_wider(column.type, shown))
            of_held.append(replace(column, name=name, stored=column.in_files))
        if name is not None or column.in_files in before:
            of_donor.append(column)
    left = _numbered(held, of_held).alias("held")
    right = _numbered(donor, of_donor).alias("donor")
    keys = list(_KEYS)
    return left.join(right.select(*keys), keys, "left_anti").select(
        *[quoted_name(name) for name in held.columns]
    )


_KEYS = ("__txlog_lane0", "__txlog_lane1", "__txlog_twin")


def _wider(kind: str, other: str) -> str:
    """Return the type that both types widen to; the first one if neither widens to the other."""
    try:
        return other if widens(arrow_type(kind), arrow_type(other)) else kind
    except SchemaMismatchError:  # a type that somebody else gave the column
        return kind


def _numbered(frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    hashed = frame.withColumns({_KEYS[lane]: row_hash(columns, lane) for lane in (0, 1)})
    equal = Window.partitionBy(*_KEYS[:2]).orderBy(F.lit(0))
    return hashed.withColumn(_KEYS[2], F.row_number().over(equal))


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            with open(Path(folder) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_directory(folder)
