"""One table given back what the log says, from this site's own files and the log alone (S2b, P28).

    examine → prove → quarantine → restore or rebuild → replay → recount → state

A table that another writer changed stands still while the others go on, so it may lag behind the
replica's position.  If another site can lend its tables, a copy is offered.  Without one:

    restore   the rows that others added go to quarantine, and one commit brings the recorded
              version back.  Only after a full scan has found the recorded rows in it.
    rebuild   the recorded version is gone, or is not what was recorded: the table's directory goes
              to quarantine, and the log is replayed for this table from its first position.

Then the table alone is replayed up to the replica's position, and recounted.

The commit that restores is Delta's RESTORE in what it does, and one transaction with two things
that the command has not: it is a conflict for whoever writes meanwhile, and it sets the table's
`txn` back to the restored position.  The command would keep the newer marker of a batch that was
under way, and Spark would then skip that batch's commits as done before.

Every step may be repeated after a crash: the state says that the table stands still until the last
one, and at which position its recorded version stands.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

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
from sparktxlog.worker.apply.batches import batch_segments, plan_batch
from sparktxlog.worker.apply.cutting import Cut, cut_segments
from sparktxlog.worker.apply.deltalog import forget_log, read_log
from sparktxlog.worker.apply.merging import tagged
from sparktxlog.worker.apply.settling import settle
from sparktxlog.worker.apply.steps import TableProgress, TableSteps, failures_named
from sparktxlog.worker.apply.tables import OwnCommit, is_own, read_commit
from sparktxlog.worker.copy.swap import COPY_STEP, SWAP_ATTEMPTS, commit_files
from sparktxlog.worker.repair.examining import Examined, ForeignCommit, examine
from sparktxlog.worker.repair.table_quarantine import TableQuarantine
from sparktxlog.worker.replica.local_replica import inline_extent
from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo
from sparktxlog.worker.replica.state import (
    ReplicaDirectory,
    ReplicaState,
    ReplicaTable,
    read_snapshots,
)
from sparktxlog.worker.verify.verify import count_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Segments asked for at once.
_SEGMENTS = 100


class RepairWay(str, Enum):
    """What brings a table back."""

    NOTHING = "nothing"
    RESTORE = "restore"
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with a table, and what would bring it back."""

    table: str
    way: RepairWay
    #: In words; empty = nothing is wrong.
    reason: str = ""
    #: Position up to which the version to go back to holds the log; what follows is replayed.
    position: int = 0
    #: Applied position of the replica.
    applied: int = 0
    #: Version to go back to, -1 = none.
    recorded_version: int = -1
    #: Newest version.
    version: int = -1
    #: Commits of others after the recorded version.
    foreign: tuple[ForeignCommit, ...] = ()
    #: What a copy from another site would be, in the node's words; empty = no site can lend one.
    copy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOutcome:
    """What a repair did."""

    found: Diagnosis
    #: False: only looked at, because nothing is wrong, a copy was offered, or the run was dry.
    done: bool = False
    #: Rows in quarantine, None = not counted.
    quarantined: int | None = None
    #: Their directory, relative to the lake; empty = there is none.
    path: str = ""
    #: The table's version and rows afterwards.
    version: int = -1
    rows: int = 0
    #: Positions replayed for this table.
    replayed: int = 0

    def describe(self) -> str:
        """Return what was found and done, for people."""
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
        directory: The lake, owned; None = nothing may be changed.
        state: As it stands; afterwards as it was left.
    """

    session: SparkSession
    source: HttpLogSource
    lake: Path
    state: ReplicaState
    info: NodeInfo
    directory: ReplicaDirectory | None = None
    #: Rows put into quarantine, None = not counted; their directory.
    _quarantined: int | None = 0
    _quarantine_path: str = ""

    # --- looking ------------------------------------------------------------------------------

    def diagnose(self, name: str) -> Diagnosis:
        """Say what is wrong with a table, by its log and a full scan; nothing is changed.

        Raises:
            UnknownTableError: The replica has no such table (definite).
            NotAppliedError: A batch or a copy is under way: let the worker end it (definite).
            ExpiredError: The log no longer holds what would have to be replayed (definite).
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
                # A table that was never made here is missing nothing from before.
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
                f"a {what} is under way in {self.lake}: its tables stand at no common position",
                hint="Let the worker end it first: sparktxlog catch-up",
                path=str(self.lake),
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
        return examine(
            self.lake / name,
            table,
            lineage=self.state.lineage,
            name=name,
            copy_id=_repair_id(table),
            placed=None,
        )

    def _position_of(self, table: ReplicaTable) -> int:
        """Return the position of the recorded version; 0 = not known, or before everything."""
        if not table.diverged:
            return self.state.position
        if table.position >= 0:
            return table.position
        # It was marked by an older worker, which kept the version only.
        name = table.definition.name
        try:
            own = read_commit(self.lake / name, table.version).own
        except (OSError, ApplyError):
            own = None
        if is_own(own, self.state.lineage, name):
            return own.last_position
        kept = read_snapshots(self.lake)
        return min((p for p, of in kept.items() if of.get(name) == table.version), default=0)

    def _lost(self, table: ReplicaTable, examined: Examined, position: int) -> str:
        """Say why the recorded version cannot be gone back to, empty = its rows are all there."""
        name = table.definition.name
        if table.version < 0:
            return "somebody else made the table before this log did"
        if examined.replaced or examined.version < table.version:
            return examined.replaced or f"version {table.version} is gone"
        if position == 0:
            return f"it is not known which position version {table.version} stands at"
        forget_log(self.session, self.lake / name)
        try:
            counted = self._count(table)
        except (PySparkException, Py4JError) as error:
            return f"version {table.version} cannot be read: {first_lines(error, 1)}"
        if counted == table.signature:
            return ""
        recorded = table.signature.to_text()
        return f"version {table.version} counts {counted.to_text()}, recorded is {recorded}"

    def _count(self, table: ReplicaTable) -> TableSignature:
        return count_rows(self.session, self.lake / table.definition.name, table)

    def _check_log(self, found: Diagnosis) -> None:
        """Refuse what the log does not reach back to, before anything is touched."""
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
        """Return what the node says of a copy from another site, empty = no site can lend one."""
        try:
            decision = self.source.plan(self.state.worker_id)
        except NotFoundError:
            return ""
        return decision.reason if decision.plan == "copy" else ""

    # --- doing --------------------------------------------------------------------------------

    def begin(self, found: Diagnosis) -> None:
        """Write down that the table stands still, and at which position, before it is touched."""
        table = self.state.tables[found.table]
        if not table.diverged or table.position != self._position_of(table):
            position = self._position_of(table)
            self._save(replace(table, diverged=found.reason, position=position))

    def run(self, found: Diagnosis) -> RepairOutcome:
        """Bring a table back as it was diagnosed, durably.

        Raises:
            CopyConflictError: Somebody goes on writing to the table (definite).
            DivergedError: The log did not lead to the rows that it should have (definite).
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
        assert self.directory is not None
        self.directory.record_snapshot(self.state.position, self.state.tables)
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
        """Move the table's directory into quarantine; it is made anew by the log."""
        table = self.state.tables[found.table]
        quarantine = TableQuarantine(self.session, self.lake, _repair_id(table))
        # First: what a crash leaves is a table that is not there yet.
        self._save(replace(table, version=-1, position=found.position, signature=EMPTY_SIGNATURE))
        if (self.lake / found.table).exists():
            self._quarantined = None
            self._quarantine_path = quarantine.save_files(found.table, found.foreign, found.reason)

    def _restore(self, found: Diagnosis) -> None:
        """Export what others added, and go back to the recorded version in one commit."""
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
                # What came in between would disappear with the next attempt.
                continue
            settle(self.lake / found.table, version, version)
            self._save(replace(table, version=version))
            return

    def _export(self, table: ReplicaTable, examined: Examined, reason: str) -> None:
        quarantine = TableQuarantine(self.session, self.lake, _repair_id(table))
        own = self.lake / table.definition.name
        saved = quarantine.save_rows(table.definition, own, table.version, examined, reason)
        self._quarantined, self._quarantine_path = saved.rows, saved.path

    def _commit(self, table: ReplicaTable, examined: Examined) -> int:
        name = table.definition.name
        path = self.lake / name
        forget_log(self.session, path)
        recorded = read_log(self.session, path, table.version)
        own = OwnCommit(
            lineage=self.state.lineage,
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
            # What the newer protocol has more reads the same.
            return commit_files(
                self.session, path, recorded, own, examined.version, keep_protocol=True
            )

    def _replay(self, name: str) -> None:
        """Apply to one table what the log has for it up to the replica's position."""
        steps = TableSteps(
            self.session, self.lake, Path(self.info.payload_root), self.state.lineage
        )
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
                replace(segment, effects=tuple(e for e in segment.effects if e.table == name))
                for segment in found
            ],
            inline_extent(Path(self.info.payload_root), found[-1].last),
            position=table.position,
            known=() if table.version < 0 else (name,),
        )
        plan = batch.tables.get(name)
        progress = TableProgress(
            definition=table.definition,
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
                table, version=progress.version, signature=progress.signature, position=batch.last
            )
        )

    def _tell(self, table: ReplicaTable) -> None:
        """Tell the node that a full scan found the rows right: an earlier one may not have."""
        text = table.signature.to_text()
        recounted = RecountedTable(version=table.version, recorded=text, counted=text)
        found = self.state.recount(self.info.node_id, {table.definition.name: recounted})
        try:
            self.source.take_recount(found)
        except TxLogError as error:
            # The worker reports anyway, and any later recount says so too.
            _logger.warning("the node was not told of the recount: %s", error)


def _repair_id(table: ReplicaTable) -> str:
    """Name the repairs of a recorded version: a repeated one finds what it did before."""
    return f"repair-{table.version}"
