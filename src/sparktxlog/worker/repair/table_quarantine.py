"""Keeps rows that a copy or a repair would remove, for their author, in the lake's attic (P28).

    rows-<table>-<copy id>     rows that the donor's version lacks, a Delta table
    table-<table>-<copy id>    the whole old directory of a table

The facts of an entry name the version of the old table that it covers, and the swap happens on that
version or not at all (`swap`).  A later export of the old table replaces the earlier one, whose
rows it includes.  An export after a swap that must be repeated does not replace it, nor does one
of a table that somebody put in the old one's place.  Operators decide whether rows are submitted
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F

from sparktxlog.attic.attic import Attic, Entry, Kind
from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.submits.alterations import widens
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import SchemaMismatchError, StorageError, first_lines
from sparktxlog.files.durability import sync_tree
from sparktxlog.worker.apply.deltalog import forget_log
from sparktxlog.worker.apply.signatures import LANE_COLUMNS, SALTS, row_hash
from sparktxlog.worker.apply.worker_session import read_version, tagged
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.repair.examining import Examined, ForeignCommit, committed_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparktxlog.model.tables.table import Column, TableDefinition

#: Most foreign commits named in an entry; the table's own history has all of them.
_NAMED = 100


class TableQuarantine:
    """Keeps what copies replace in one lake.

    Args:
        session: The worker's own.
        lake: The replica's tables.
        disk: Directory of this machine for files on their way.
        copy_id: Of the present copy; the mark of its entries.
    """

    def __init__(self, session: SparkSession, lake: Lake, disk: Path, copy_id: str) -> None:
        self._session = session
        self._lake = lake
        self._copy_id = copy_id
        self._drafts = Attic.of_lake(disk)

    def save_rows(
        self,
        definition: TableDefinition,
        donor: Path | str,
        donor_version: int,
        examined: Examined,
        reason: str,
        known: TableDefinition | None,
    ) -> Entry:
        """Save the rows of the old table that the donor's version lacks, duplicates counted.

        Does it once for each examined version.  If a table cannot be read, its files are kept, and
        the entry says so.

        Args:
            definition: Of the donor's version.
            donor: The staged table, as Spark names it.
            examined: The version that is saved.
            known: The old table as the log had made it; None = the replica does not know it.

        Returns:
            The entry; `rows` in its facts are saved rows, None = not counted.

        Raises:
            OSError: The files cannot be kept; the table must not be replaced.
        """
        name = definition.name
        old = self._lake.table(name)
        exports = [
            entry
            for entry in self._lake.kept(name)
            if entry.mark == self._copy_id and entry.facts.get("donor_version") is not None
        ]
        covered = {(one.facts["version"], one.facts["committed_at"]): one for one in exports}
        if saved := covered.get((examined.version, examined.committed_at)):
            return saved
        facts = _facts(examined.version, examined.committed_at, examined.foreign)
        facts["donor_version"] = donor_version
        with self._drafts.draft(self._copy_id) as draft:
            try:
                facts["rows"] = self._export(
                    definition, examined.version, donor, donor_version, draft, known
                )
            except (PySparkException, Py4JError, StorageError) as error:
                facts["note"] = f"its files are kept, it cannot be read: {first_lines(error, 1)}"
                return self._lake.keep(name, self._copy_id, reason, facts)
            made = self._lake.put_rows(name, draft, self._copy_id, reason, facts)
        same = all(committed_at(old, version) == at for version, at in covered)
        if examined.swapped is None and same:  # else the table has other rows now
            for entry in exports:
                self._lake.forget(entry)
        return made

    def _export(
        self,
        definition: TableDefinition,
        version: int,
        donor: Path | str,
        donor_version: int,
        target: Path,
        known: TableDefinition | None,
    ) -> int:
        """Write the rows of a version that the donor's lacks; return their number."""
        name = definition.name
        old, url = self._lake.table(name), self._lake.url_of(name)
        for place in (url, target):
            forget_log(self._session, place)
        with tagged(self._session, "quarantine", name):
            held = read_version(self._session, url, version)
            staged = read_version(self._session, str(donor), donor_version)
            names = LogState.read(old, version, files=False).names_in_files
            lost = lacking(held, staged, definition, names, known)
            lost.write.format("delta").save(str(target))
            rows = self._session.read.format("delta").load(str(target)).count()
        sync_tree(target)
        return rows

    def save_files(self, table: str, foreign: tuple[ForeignCommit, ...], reason: str) -> str:
        """Move a table to the attic; return where it is now.

        Raises:
            OSError: It is not moved, or not known to be durable; repeat it.
            StorageError: As `Store`, in a bucket; repeat it.
        """
        old = self._lake.table(table)
        version = newest_commit(old)
        facts = _facts(version if version >= 0 else None, committed_at(old, version), foreign)
        kept = self._lake.set_aside(table, self._copy_id, reason, Kind.TABLE, facts)
        forget_log(self._session, self._lake.url_of(table))
        return kept


def _facts(version: int | None, at: int, foreign: tuple[ForeignCommit, ...]) -> dict[str, Any]:
    """Return what is known of a version of an old table; see docs/formats-log.md."""
    named = [asdict(commit) for commit in foreign[:_NAMED]]
    # A table that somebody put in this one's place may have the same version, with another time.
    return {"version": version, "committed_at": at, "rows": None, "foreign": named}


def lacking(
    held: DataFrame,
    donor: DataFrame,
    definition: TableDefinition,
    names: Mapping[str, str],
    known: TableDefinition | None,
) -> DataFrame:
    """Return the rows of `held` that `donor` lacks; equal rows count as often as they occur.

    The table may have changed between both (P33): columns are compared by their names in files, and
    as the wider one of their types.  Columns that the log added later are left out.  Any other
    column that `held` does not have counts as NULL there.  Columns that only `held` has are kept.

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


_KEYS = (*LANE_COLUMNS, "__txlog_twin")


def _wider(kind: str, other: str) -> str:
    """Return the type that both types widen to; the first one if neither widens to the other."""
    try:
        return other if widens(arrow_type(kind), arrow_type(other)) else kind
    except SchemaMismatchError:  # a type that somebody else gave the column
        return kind


def _numbered(frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    # A row is compared with all rows of the other one, so one hash of 64 bits is not enough.
    hashes = {n: row_hash(columns, salt) for n, salt in zip(LANE_COLUMNS, SALTS, strict=True)}
    hashed = frame.withColumns(hashes)
    equal = Window.partitionBy(*LANE_COLUMNS).orderBy(F.lit(0))
    return hashed.withColumn(_KEYS[2], F.row_number().over(equal))
