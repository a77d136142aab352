"""A worker's replica: its state, and how one batch is applied to its tables.

    segments → batch → plan for each table → steps, each one Delta commit → snapshot → state

Each batch is applied exactly once.  It is journaled before its first commit, and each commit
carries a rising `txn` version with the step's number.  After a crash the batch is repeated with the
same end: each table goes on after the last step in its own log.

A table that somebody else wrote to stands still as diverged; the others go on.  A table also stands
still if one of its steps fails when the batch is done again.  But if the fault is that of the whole
site (a full disk, Spark is gone, the lake cannot be written), the batch fails, and waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyarrow import ArrowException

from sparktxlog.errors import (
    ApplyError,
    DivergedError,
    ForeignLogError,
    InvariantViolation,
    PayloadLostError,
    StorageError,
    TransportError,
    TxLogError,
)
from sparktxlog.model.report import ReplayCost
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.transactions.operation import OP_COLUMN, POSITION_COLUMN
from sparktxlog.storage.interfaces import Segment, TableEffect
from sparktxlog.supervision import foreseen
from sparktxlog.tracing import traced_step
from sparktxlog.worker.apply.batches import (
    START,
    Batch,
    Extent,
    LogPlace,
    Piece,
    TablePlan,
    batch_segments,
    check_chain,
    plan_batch,
)
from sparktxlog.worker.apply.cutting import cut_segments
from sparktxlog.worker.apply.steps import Counted, TableProgress, TableSteps
from sparktxlog.worker.lakes.lake_places import payloads_at
from sparktxlog.worker.lakes.payload_files import PayloadFiles
from sparktxlog.worker.replica.batch_watch import BatchWatch
from sparktxlog.worker.replica.source import LogTail, NodeInfo
from sparktxlog.worker.replica.state import (
    ReplicaHome,
    ReplicaState,
    ReplicaTable,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

Tables = dict[str, ReplicaTable]
#: Failures that no table causes.
_OF_THE_SITE = (StorageError, TransportError, InvariantViolation)


class Replica:
    """The tables of a lake, and the state that records their versions.

    Args:
        session: The worker's own.
        directory: The lake, locked by this process.
        info: Of the node that serves the log.
        watch: Learns how far a batch is.
    """

    def __init__(
        self,
        session: SparkSession,
        directory: ReplicaHome,
        info: NodeInfo,
        watch: BatchWatch,
    ) -> None:
        self._watch = watch
        self.directory = directory
        self.state: ReplicaState = directory.load()
        self._session = session
        self._node_id = info.node_id
        self._payloads = payloads_at(info.payloads)
        self._signature_interval = info.signature_interval
        self._steps: TableSteps | None = None
        #: Table → end of the batch in which a step of it failed, and why.
        self._failed: dict[str, tuple[int, TxLogError]] = {}

    def check_log_id(self, log_id: str) -> None:
        """Refuse the log of another cluster (protocol P24).

        Raises:
            ForeignLogError: The replica belongs to another log (definite).
        """
        if self.state.log_id and log_id != self.state.log_id:
            raise ForeignLogError(
                f"FOREIGN: the node has the log {log_id!r}, "
                f"this replica is of {self.state.log_id!r}",
                hint="Give the worker an empty lake, or its own cluster's node.",
            )

    def range_of(self, tail: LogTail) -> tuple[int, int]:
        """Return first and last position of the next batch of a tail."""
        segments = self._next_segments(tail)
        return segments[0].first, segments[-1].last

    def _next_segments(self, tail: LogTail) -> Sequence[Segment]:
        pending, segments = self.state.pending, tail.segments
        if pending is not None and pending.cut is not None:
            # The worker that began it had to stop there: it ends there again.
            segments = cut_segments(segments, pending.cut)
        return batch_segments(
            segments, self._signature_interval, end=pending.last if pending else None
        )

    def take_over(self, state: ReplicaState) -> None:
        """Go on from the state that a copy or a repair left; tables are opened again."""
        self.state, self._steps = state, None

    # --- one batch ----------------------------------------------------------------------------

    def apply_batch(self, tail: LogTail) -> Batch:
        """Apply the next batch of a tail durably, and save the new state.

        Raises:
            DivergedError: The log does not continue this replica (protocol P24, definite).
            ApplyError: A table could not be changed; the next call repeats the batch.
        """
        pending, segments = self.state.pending, self._next_segments(tail)
        if self.state.copying is not None:
            raise ApplyError(
                f"copy {self.state.copying.copy_id} was begun and is not finished",
                hint="Run jobs/catch_up.py, which resumes it.",
                copy_id=self.state.copying.copy_id,
            )
        position, chain_hash = self.state.position, self.state.chain_hash
        inside = self.state.cut is not None and self.state.cut.position == position
        check_chain(segments, position, chain_hash, copied=inside or bool(self.state.copied_from))
        unread: dict[str, ApplyError] = {}
        batch = plan_batch(
            segments,
            _noting(inline_extent(self._payloads, segments[-1].last), unread),
            position=position,
            chain_hash=chain_hash,
            known=self.state.tables,
            only=self.state.only,
        )
        cut = tail.cut if pending is None else pending.cut
        if cut is not None and cut.position != batch.last:
            cut = None
        if batch.epoch < self.state.epoch:
            raise DivergedError(
                f"segment {batch.first}-{batch.last} is of epoch {batch.epoch}, "
                f"this replica of {self.state.epoch}"
            )
        if pending is not None and pending.to_hash != batch.to_hash:
            raise DivergedError(
                f"the batch up to {pending.last} was begun with hash {pending.to_hash}, "
                f"the log now has {batch.to_hash}",
                position=pending.last,
            )
        if pending is None and batch.tables:
            self.state = self.state.begin(batch, tail.log_id, cut)
            self.directory.save(self.state)
        self._watch.begin(batch)
        try:
            with traced_step("sparktxlog apply", _described(batch, self._node_id)):
                tables = self._apply_tables(
                    batch, tail.log_id, resumed=pending is not None, unread=unread
                )
        finally:
            self._watch.end()
        self._failed.clear()
        self.state = self.state.finish(batch, tail.log_id, tables, cut)
        self.directory.save(self.state)
        return batch

    def _apply_tables(
        self, batch: Batch, log_id: str, *, resumed: bool, unread: Mapping[str, ApplyError]
    ) -> Tables:
        """Apply a batch to all tables; return them as they are then.

        Args:
            unread: Tables for which a file of the batch cannot be read → why.

        Raises:
            ApplyError: A step failed for the first time; the other tables are done.
        """
        tables = dict(self.state.tables)
        failures: list[TxLogError] = []
        batch = self._drop_tables(batch, tables, log_id, resumed=resumed, unread=unread)
        before, steps = dict(tables), self._table_steps(log_id)

        @contextmanager
        def alone(name: str) -> Iterator[None]:
            """Let a table stand still by itself if the block fails, as it was before the batch."""
            try:
                yield
            except Exception as error:  # noqa: BLE001 - garbage in a log gives any error
                working.pop(name, None)
                failure = foreseen(error)
                if not isinstance(failure, DivergedError):
                    if not self._stays(name, batch, failure):
                        failures.append(failure)
                        return
                    failure = _of_table(name, self._failed[name][1])
                _logger.error("%s", failure)
                there = _progress_of(name, before.get(name), batch.tables.get(name))
                tables[name] = self._stands_still(there, failure)

        working: dict[str, TableProgress] = {}
        for name in sorted({*tables, *batch.tables}):
            known = tables.get(name)
            if known is not None and known.diverged:
                continue
            progress = _progress_of(name, known, batch.tables.get(name))
            with alone(name):
                if name in unread:
                    raise unread[name]
                steps.find_progress(progress, batch if resumed else None)
                working[name] = progress
        counted = self._counted(steps, batch, working, alone)
        for name, progress in dict(working).items():
            plan = batch.tables.get(name)
            with alone(name):
                if plan is not None:
                    steps.apply(batch, plan, progress, counted)
                tables[name] = _recorded(progress)
        if failures:
            raise failures[0]
        return tables

    @staticmethod
    def _counted(
        steps: TableSteps,
        batch: Batch,
        working: Mapping[str, TableProgress],
        alone: Callable[[str], AbstractContextManager[None]],
    ) -> Counted:
        """Count what carries no claim: all tables at once, or one by one if that fails."""
        try:
            return steps.count_unclaimed(batch, working)
        except ApplyError as error:
            _logger.warning("counting appended rows failed, once more by table: %s", error)
        found: dict[str, TableSignature] = {}
        for name, progress in dict(working).items():
            with alone(name):
                found |= steps.count_unclaimed(batch, {name: progress})
        return found

    def _stays(self, name: str, batch: Batch, failure: TxLogError) -> bool:
        """Return whether a failure is one of this table, which stays when it is tried again.

        Raises:
            TxLogError: The failure, if it is one of the whole site.
        """
        self._refuse_faults_of_the_site(failure)
        if name in self._failed and self._failed[name][0] == batch.last:
            return True
        self._failed[name] = (batch.last, failure)
        return False

    def _refuse_faults_of_the_site(self, failure: TxLogError) -> None:
        if isinstance(failure, _OF_THE_SITE) or not self._site_works():
            raise failure

    def _site_works(self) -> bool:
        """Return whether Spark runs, the lake is written, and the payload store is read."""
        try:
            self.directory.save(self.state)
            self._session.range(1).count()
            return self._payloads.is_there()
        except Exception:
            _logger.exception("the site does not work")
            return False

    def explain(self, name: str, failure: ApplyError) -> None:
        """Give a better reason why a table failed, for the case that it fails again."""
        if self.state.pending is not None:
            self._failed[name] = (self.state.pending.last, failure)

    def forget_failures(self) -> None:
        """Try each table twice again: what was in the way may be gone."""
        self._failed.clear()

    def _drop_tables(
        self,
        batch: Batch,
        tables: Tables,
        log_id: str,
        *,
        resumed: bool,
        unread: Mapping[str, ApplyError],
    ) -> Batch:
        """Drop the tables that a batch drops; return the batch without the drops."""
        plans = dict(batch.tables)
        for name, plan in batch.tables.items():
            if plan.dropped is None:
                continue
            known = tables.pop(name)
            before = _progress_of(name, known, plan)
            sound = not known.diverged and name not in unread
            steps = self._table_steps(log_id)
            try:
                steps.drop(batch, plan, before, resumed=resumed, sound=sound)
            except Exception as error:
                failure = foreseen(error)
                if not sound:
                    raise
                # Nobody asks for its rows any more: one failure is enough.
                self._refuse_faults_of_the_site(failure)
                _logger.warning("table %s is dropped as it is: %s", name, failure)
                steps.drop(batch, plan, before, resumed=resumed, sound=False)
            # What keeps tables open must not take the next one of that name for this one.
            self._steps = None
            del plans[name]
            if plan.successor is not None:
                plans[name] = plan.successor
        return replace(batch, tables=plans)

    def _stands_still(self, progress: TableProgress, error: TxLogError) -> ReplicaTable:
        """Return a table as it was before the batch, marked as diverged."""
        return ReplicaTable(
            definition=progress.definition,
            version=progress.recorded,
            signature=progress.signature,
            diverged=str(error),
            position=self.state.position,
        )

    def _table_steps(self, log_id: str) -> TableSteps:
        """Return what makes the commits; one object for all batches, as it keeps tables open."""
        if self._steps is None:
            self._steps = TableSteps(
                self._session, self.directory.place, self._payloads, log_id, self._watch.step
            )
        return self._steps


def _described(batch: Batch, node_id: str) -> dict[str, Any]:
    """Return what the span of a batch says."""
    return {
        "node": node_id,
        "epoch": batch.epoch,
        "first_position": batch.first,
        "last_position": batch.last,
        "transactions": batch.transactions,
        "tables": tuple(batch.tables),
    }


def cost_of(batch: Batch, seconds: float) -> ReplayCost:
    """Return what a batch consisted of and how long it took, for the node's estimates."""
    stages = [stage for plan in batch.tables.values() for stage in plan.stages]

    def size_of(pieces: Iterable[Piece]) -> int:
        return sum(file.size_bytes for piece in pieces for file in piece.effect.files)

    return ReplayCost(
        batches=1,
        merges=sum(1 for stage in stages if stage.keyed or stage.partial),
        transactions=batch.transactions,
        appended_bytes=sum(size_of(stage.whole) for stage in stages),
        merged_bytes=sum(size_of((*stage.keyed, *stage.partial)) for stage in stages),
        seconds=seconds,
    )


def _progress_of(name: str, known: ReplicaTable | None, plan: TablePlan | None) -> TableProgress:
    if known is not None:
        return TableProgress(
            definition=known.definition,
            recorded=known.version,
            version=known.version,
            signature=known.signature,
        )
    if plan is not None and plan.create is not None:
        return TableProgress(definition=plan.create)
    raise DivergedError(
        f"table {name!r} is written to before it is created",
        hint="The log begins after this replica's position; it needs a copy.",
        table=name,
    )


def _of_table(name: str, failure: TxLogError) -> ApplyError:
    """Return the failure of a table that stands still, with the way out."""
    way_out = f"Mend the cause, then: sparktxlog repair {name}"
    if isinstance(failure, PayloadLostError):
        way_out = f"{failure.hint}  {way_out}"
    message = failure.message
    if not message.startswith(f"table {name}"):
        message = f"table {name}: {message}"
    return ApplyError(message, hint=way_out, table=name)


def _recorded(progress: TableProgress) -> ReplicaTable:
    return ReplicaTable(
        definition=progress.definition,
        version=progress.version,
        signature=progress.signature,
    )


def _noting(read: Extent, unread: dict[str, ApplyError]) -> Extent:
    """Return a function that reads extents, and notes the tables for which that fails."""

    def noted(effect: TableEffect) -> tuple[LogPlace, LogPlace]:
        try:
            return read(effect)
        except ApplyError as error:
            unread.setdefault(effect.table, error)
            return START, START

    return noted


def inline_extent(payloads: PayloadFiles, last: int) -> Extent:
    """Return a function: effect → places of its first and last row up to a position.

    Its files say the places.
    """

    def read(effect: TableEffect) -> tuple[LogPlace, LogPlace]:
        places: list[LogPlace] = []
        left_out = frozenset(effect.left_out)
        for file in effect.files:
            try:
                rows = payloads.read(file, (POSITION_COLUMN, OP_COLUMN))
            except (OSError, ArrowException) as error:
                raise ApplyError(
                    f"file {file.path} of table {effect.table!r} cannot be read: {error}",
                    path=file.path,
                ) from error
            pairs = zip(
                rows.column(POSITION_COLUMN).to_pylist(),
                rows.column(OP_COLUMN).to_pylist(),
                strict=True,
            )
            found = (LogPlace(effect.run + position, op) for position, op in pairs)
            places += [
                place
                for place in found
                if place.position <= last and place.position not in left_out
            ]
        if not places:
            raise ApplyError(f"files of table {effect.table!r} hold no rows")
        return min(places), max(places)

    return read
