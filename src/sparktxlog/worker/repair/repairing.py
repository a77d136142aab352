"""Repairs one table from this site's own files and the log alone (S2b, P28).

    examine → prove → put aside → restore or rebuild → replay → recount → state

A table that another writer changed stands still while the others go on, so it may be behind the
replica's position.  If another site can lend its tables, a copy is offered.  Without one:

    restore   if a full scan finds the recorded rows in the recorded version: the rows that others
              added go to the attic, and one commit restores that version
    rebuild   if the recorded version is gone or differs from the record: the table's directory goes
              to the attic, and the log is replayed for this table from its first position

Then the table alone is replayed up to the replica's position, and recounted.

The commit that restores does what Delta's RESTORE does, and two things more: it conflicts with any
concurrent writer, and it sets the table's `txn` back to the restored position.  RESTORE would keep
the newer `txn` of an unfinished batch, and Spark would then skip that batch's commits as done.

Every step may be repeated after a crash: until the last one the state says that the table stands
still, and which position its recorded version holds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.delta.log_files import newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import (
    ApplyError,
    CopyConflictError,
    DivergedError,
    ExpiredError,
    NotAppliedError,
    NotFoundError,
    TransportError,
    TxLogError,
    UnknownTableError,
    first_lines,
)
from sparktxlog.model.report import RecountedTable
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.storage.interfaces import TableEffect
from sparktxlog.supervision import foreseen
from sparktxlog.worker.apply.batches import batch_segments, plan_batch
from sparktxlog.worker.apply.cutting import Cut, cut_segments
from sparktxlog.worker.apply.deltalog import forget_log
from sparktxlog.worker.apply.steps import TableProgress, TableSteps, failures_named
from sparktxlog.worker.apply.tables import OwnCommit
from sparktxlog.worker.apply.worker_session import tagged
from sparktxlog.worker.copy.swap import COPY_STEP, SWAP_ATTEMPTS, commit_files
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.lakes.lake_places import payloads_at
from sparktxlog.worker.repair.examining import Examined, ForeignCommit, examine
from sparktxlog.worker.repair.table_quarantine import TableQuarantine
from sparktxlog.worker.replica.local_replica import inline_extent
from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo
from sparktxlog.worker.replica.state import (
    ReplicaHome,
    ReplicaState,
    ReplicaTable,
)
from sparktxlog.worker.verify.verify import count_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Segments asked for at once.
_SEGMENTS = 100


class RepairWay(str, Enum):
    """How a table is repaired."""

    NOTHING = "nothing"
    RESTORE = "restore"
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with a table, and how it can be repaired."""

    table: str
    way: RepairWay
    #: Why the table is wrong; empty = it is right.
    reason: str = ""
    #: Position that the version to restore holds; the log after it is replayed.
    position: int = 0
    #: Applied position of the replica.
    applied: int = 0
    #: Version to restore, -1 = none.
    recorded_version: int = -1
    #: Newest version.
    version: int = -1
    #: Commits of others after the recorded version.
    foreign: tuple[ForeignCommit, ...] = ()
    #: The node's reason for a copy from another site; empty = no site can lend one.
    copy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOutcome:
    """What a repair did."""

    found: Diagnosis
    #: False: nothing was changed, because the table is right, a copy was offered, or in a dry run.
    done: bool = False
    #: Rows in the attic, None = not counted.
    quarantined: int | None = None
    #: Their directory, relative to the lake; empty = there is none.
    path: str = ""
    #: The table's version and rows afterwards.
    version: int = -1
    rows: int = 0
    #: Positions replayed for this table.
    replayed: int = 0

    def describe(self) -> str:
        """Return the outcome in one line for people."""
        found, name = self.found, self.found.table
        if found.way is RepairWay.NOTHING:
            return f"table {name}: nothing to repair, its rows are those of the log"
        if not self.done:
            what = f"table {name}: {found.reason}; {found.way.value} to position {found.position:,}"
            return f"{what}; a copy is possible: {found.copy}" if found.copy else what
        rows = "files as they were" if self.quarantined is None else f"{self.quarantined:,} rows"
        kept = f"{rows} kept in {self.path}" if self.path else "nothing to keep"
        return (
            f"table {name}: {found.way.value} to position {found.position:,}, {kept}; "
            f"{self.replayed:,} positions replayed, {self.rows:,} rows at version {self.version}"
        )


@dataclass(slots=True, kw_only=True)
class TableRepair:
    """Repairs tables of one replica.

    Args:
        session: The worker's own.
        lake: The replica's tables.
        disk: Directory of this machine for files on their way.
        directory: The replica, owned by this process; None = nothing may be changed.
        state: The replica's state; a repair replaces it.
    """

    session: SparkSession
    source: HttpLogSource
    lake: Lake
    disk: Path
    state: ReplicaState
    info: NodeInfo
    directory: ReplicaHome | None = None
    #: Rows put into the attic, None = not counted; their directory.
    _quarantined: int | None = 0
    _quarantine_path: str = ""

    # --- looking ------------------------------------------------------------------------------

    def diagnose(self, name: str) -> Diagnosis:
        """Find what is wrong with a table, from its log and a full scan; change nothing.

        Raises:
            UnknownTableError: The replica has no such table (definite).
            NotAppliedError: A batch or a copy is unfinished: let the worker end it (definite).
            ExpiredError: The log no longer holds what has to be replayed (definite).
        """
        table = self._table(name)
        examined = self._examined(table)
        position = self._position_of(table)
        found = Diagnosis(
            table=name,
            way=RepairWay.RESTORE,
            reason=table.diverged,
            position=position,
            applied=self.state.position,
            recorded_version=table.version,
            version=examined.version,
            foreign=examined.foreign,
        )
        lost = self._lost(table, examined, position)
        if lost:
            found = replace(
                found,
                way=RepairWay.REBUILD,
                reason=table.diverged or lost,
                recorded_version=-1,
                # For a table that was never made here, the log has nothing before its position.
                position=position if table.version < 0 else 0,
            )
        elif examined.foreign:
            last = examined.foreign[-1]
            written = f"version {last.version} was written by {last.author} ({last.operation})"
            found = replace(found, reason=table.diverged or f"{written}, not by this log")
        elif not table.diverged:
            return replace(found, way=RepairWay.NOTHING)
        self._check_log(found)
        return found

    def _table(self, name: str) -> ReplicaTable:
        if self.state.pending is not None or self.state.copying is not None:
            what = "batch" if self.state.copying is None else "copy"
            raise NotAppliedError(
                f"a {what} is under way in {self.lake.url}: its tables stand at no common position",
                hint="Let the worker end it first: sparktxlog catch-up",
                path=self.lake.url,
            )
        table = self.state.tables.get(name)
        if table is None:
            raise UnknownTableError(
                f"this replica has no table {name!r}",
                hint=f"It has: {', '.join(sorted(self.state.tables)) or 'none'}.",
                table=name,
            )
        return table

    def _examined(self, table: ReplicaTable) -> Examined:
        name = table.definition.name
        try:
            return examine(
                self.lake.table(name),
                table,
                log_id=self.state.log_id,
                name=name,
                copy_id=_repair_id(table),
                placed=None,
            )
        except Exception as error:
            # Nobody can know any more what the table is, so it is built again.
            _logger.exception("the log of table %s is damaged", name)
            newest = newest_commit(self.lake.table(name))
            return Examined(version=newest, replaced=str(foreseen(error)))

    def _position_of(self, table: ReplicaTable) -> int:
        """Return the position of the recorded version; 0 = before everything."""
        return table.position if table.diverged else self.state.position

    def _lost(self, table: ReplicaTable, examined: Examined, position: int) -> str:
        """Return why the recorded version cannot be restored, empty = its rows are all there."""
        name = table.definition.name
        if table.version < 0:
            return "somebody else made the table before this log did"
        if examined.replaced or examined.version < table.version:
            return examined.replaced or f"version {table.version} is gone"
        if position == 0:
            return f"it is not known which position version {table.version} holds"
        forget_log(self.session, self.lake.url_of(name))
        try:
            counted = self._count(table)
        except (PySparkException, Py4JError) as error:
            return f"version {table.version} cannot be read: {first_lines(error, 1)}"
        if counted == table.signature:
            return ""
        recorded = table.signature.to_text()
        return f"version {table.version} counts {counted.to_text()}, recorded is {recorded}"

    def _count(self, table: ReplicaTable) -> TableSignature:
        return count_rows(self.session, self.lake.url_of(table.definition.name), table)

    def _check_log(self, found: Diagnosis) -> None:
        """Refuse a repair for which the log is too short, before anything is changed."""
        if found.position == self.state.position:
            return
        way_out = "Copy it from another site, or restore an image: sparktxlog restore"
        try:
            tail = self.source.segments(found.position, wait_s=0.0, limit=1)
        except ExpiredError as error:
            raise ExpiredError(
                f"table {found.table!r}: {found.reason}; to {found.way.value} it the log is "
                f"replayed after position {found.position}, which it no longer holds",
                hint=way_out,
                table=found.table,
                position=found.position,
            ) from error
        if not tail.segments:
            raise TransportError("the node has not published what this replica applied, yet")

    def copy_offered(self) -> str:
        """Return the node's reason for a copy from another site, empty = no site can lend one."""
        try:
            decision = self.source.plan(self.state.worker_id)
        except NotFoundError:
            return ""
        return decision.reason if decision.plan == "copy" else ""

    # --- doing --------------------------------------------------------------------------------

    def begin(self, found: Diagnosis) -> None:
        """Record that the table stands still, and at which position, before it is changed."""
        table = self.state.tables[found.table]
        if not table.diverged or table.position != self._position_of(table):
            position = self._position_of(table)
            self._save(replace(table, diverged=found.reason, position=position))

    def run(self, found: Diagnosis) -> RepairOutcome:
        """Repair a table as it was diagnosed, durably.

        Raises:
            CopyConflictError: Somebody goes on writing to the table (definite).
            DivergedError: The repaired rows do not have the log's signature (definite).
            ApplyError: A step failed; the table stands still, and the repair may be repeated.
        """
        name = found.table
        self.begin(found)
        with failures_named(name):
            if found.way is RepairWay.REBUILD:
                self._put_aside(found)
            else:
                self._restore(found)
            self._replay(name)
            table = self.state.tables[name]
            counted = self._count(table)
        if counted != table.signature:
            raise DivergedError(
                f"table {name!r} counts {counted.to_text()} after the repair, the log leads to "
                f"{table.signature.to_text()}",
                hint="Repeat it; if it stays so, its payload files are damaged: sparktxlog verify",
                table=name,
            )
        self._save(replace(table, diverged="", position=-1))
        self._tell(table)
        return RepairOutcome(
            found=found,
            done=True,
            quarantined=self._quarantined,
            path=self._quarantine_path,
            version=table.version,
            rows=table.signature.rows,
            replayed=self.state.position - found.position,
        )

    def _save(self, table: ReplicaTable) -> None:
        assert self.directory is not None, "nothing may be changed"
        tables = {**self.state.tables, table.definition.name: table}
        self.state = replace(self.state, tables=tables)
        self.directory.save(self.state)

    def _put_aside(self, found: Diagnosis) -> None:
        """Move the table's directory to the attic; the replay makes a new one."""
        table = self.state.tables[found.table]
        quarantine = self._quarantine(table)
        # First: after a crash the table counts as not made yet.
        self._save(replace(table, version=-1, position=found.position, signature=EMPTY_SIGNATURE))
        if self.lake.has(found.table):
            self._quarantined = None
            kept = quarantine.save_files(found.table, found.foreign, found.reason)
            self._quarantine_path = kept.removeprefix(f"{self.lake.url}/")

    def _quarantine(self, table: ReplicaTable) -> TableQuarantine:
        return TableQuarantine(self.session, self.lake, self.disk, _repair_id(table))

    def _restore(self, found: Diagnosis) -> None:
        """Export the rows of others, and restore the recorded version in one commit."""
        for attempt in range(1, SWAP_ATTEMPTS + 1):
            table = self.state.tables[found.table]
            examined = self._examined(table)
            if examined.version == table.version:
                return
            if examined.swapped == examined.version:
                # Done before a crash.
                self._save(replace(table, version=examined.version))
                return
            if examined.foreign:
                self._export(table, examined, found.reason)
            try:
                version = self._commit(table, examined)
            except CopyConflictError:
                if attempt == SWAP_ATTEMPTS:
                    raise
                # Somebody committed in between: those rows are exported first.
                continue
            self.lake.settle(found.table, version, version)
            self._save(replace(table, version=version))
            return

    def _export(self, table: ReplicaTable, examined: Examined, reason: str) -> None:
        quarantine = self._quarantine(table)
        own = self.lake.url_of(table.definition.name)
        saved = quarantine.save_rows(
            table.definition, own, table.version, examined, reason, table.definition
        )
        self._quarantined = saved.facts["rows"]
        self._quarantine_path = saved.place.removeprefix(f"{self.lake.url}/")

    def _commit(self, table: ReplicaTable, examined: Examined) -> int:
        name = table.definition.name
        forget_log(self.session, self.lake.url_of(name))
        recorded = LogState.read(self.lake.table(name), table.version)
        own = OwnCommit(
            log_id=self.state.log_id,
            epoch=self.state.epoch,
            table=name,
            first=table.position,
            last_position=table.position,
            from_hash="",
            to_hash="",
            step=COPY_STEP,
            last=True,
            signature=table.signature.to_text(),
            copy_id=_repair_id(table),
            donor=self.info.node_id,
        )
        with tagged(self.session, "restore", name):
            # The newer table protocol stays: its readers can read the older version too.
            return commit_files(
                self.session, self.lake, name, recorded, own, examined.version, keep_protocol=True
            )

    def _replay(self, name: str) -> None:
        """Apply the log to one table, up to the replica's position."""
        payloads = payloads_at(self.info.payloads)
        steps = TableSteps(self.session, self.lake, payloads, self.state.log_id)
        while self.state.tables[name].position < self.state.position:
            self._replay_batch(name, steps)

    def _replay_batch(self, name: str, steps: TableSteps) -> None:
        table, end = self.state.tables[name], self.state.position
        tail = self.source.segments(table.position, wait_s=0.0, limit=_SEGMENTS)
        cut = Cut(position=end, chain_hash=self.state.chain_hash, epoch=self.state.epoch)
        found = batch_segments(cut_segments(tail.segments, cut), self.info.signature_interval)
        if not found or not found[0].first <= table.position + 1 <= found[0].last:
            raise ApplyError(
                f"the log has nothing after position {table.position}",
                table=name,
                hint="Copy the table from another site, or restore an image.",
            )
        if found[-1].last == end and found[-1].to_hash != self.state.chain_hash:
            raise DivergedError(
                f"the log has hash {found[-1].to_hash} at position {end}, this replica "
                f"{self.state.chain_hash}",
                hint="The node's log is not the one this replica was built from.",
                position=end,
            )
        batch = plan_batch(
            [
                replace(segment, effects=tuple(e for e in segment.effects if _concerns(e, table)))
                for segment in found
            ],
            inline_extent(payloads_at(self.info.payloads), found[-1].last),
            position=table.position,
            known=() if table.version < 0 else (name,),
        )
        plan = batch.tables.get(name)
        created = None if plan is None or table.version >= 0 else plan.create
        progress = TableProgress(
            # Built again it begins as it was created; changes of it follow in the log (P33).
            definition=created or table.definition,
            recorded=table.version,
            version=table.version,
            signature=table.signature,
        )
        if plan is not None:
            steps.find_progress(progress, None)
            counted = steps.count_unclaimed(batch, {name: progress})
            steps.apply(batch, plan, progress, counted)
        self._save(
            replace(
                table,
                definition=progress.definition,
                version=progress.version,
                signature=progress.signature,
                position=batch.last,
            )
        )

    def _tell(self, table: ReplicaTable) -> None:
        """Send the recount to the node: an earlier one may have found wrong rows."""
        text = table.signature.to_text()
        recounted = RecountedTable(version=table.version, recorded=text, counted=text)
        found = self.state.recount(self.info.node_id, {table.definition.name: recounted})
        try:
            self.source.take_recount(found)
        except TxLogError as error:
            # The worker reports anyway, and any later recount has the same result.
            _logger.warning("the node did not take the recount: %s", error)


def _concerns(effect: TableEffect, table: ReplicaTable) -> bool:
    """Return whether an effect is on a table, and not on a dropped one of that name (P33)."""
    definition = table.definition
    return effect.table == definition.name and effect.schema_version >= definition.first_version


def _repair_id(table: ReplicaTable) -> str:
    """Return one id for all repairs of a version: a repeated one finds what the first did."""
    return f"repair-{table.version}"
