"""A worker's replica: its state, and how one batch is applied to its tables.

    segments → batch → plan for each table → steps, each one Delta commit → snapshot → state

Each batch is applied exactly once.  It is journaled before its first commit, and each commit
carries a rising `txn` version with the step's number.  After a crash the batch is repeated with the
same end: each table goes on after the last step in its own log.  A table that somebody else wrote
to stands still as diverged; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyarrow import ArrowException

from sparktxlog.errors import ApplyError, DivergedError, ForeignLogError
from sparktxlog.model.operation import OP_COLUMN, POSITION_COLUMN
from sparktxlog.model.report import ReplayCost
from sparktxlog.storage.interfaces import Segment, TableEffect
from sparktxlog.tracing import traced_step
from sparktxlog.worker.apply.batches import (
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
from sparktxlog.worker.apply.steps import TableProgress, TableSteps
from sparktxlog.worker.replica.batch_watch import BatchWatch
from sparktxlog.worker.replica.source import LogTail, NodeInfo
from sparktxlog.worker.replica.state import (
    ReplicaDirectory,
    ReplicaState,
    ReplicaTable,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

Tables = dict[str, ReplicaTable]


class Replica:
    """The tables of a lake, and the state that records their versions.

    Args:
        session: The worker's own.
        directory: The lake, locked by this process.
        info: Of the node that serves the log.
        watch: Is told how far a batch is.
    """

    def __init__(
        self,
        session: SparkSession,
        directory: ReplicaDirectory,
        info: NodeInfo,
        watch: BatchWatch,
    ) -> None:
        self._watch = watch
        self.directory = directory
        self.lake = directory.lake
        self.state: ReplicaState = directory.load()
        self._session = session
        self._node_id = info.node_id
        self._payload_root = Path(info.payload_root)
        self._signature_interval = info.signature_interval
        self._steps: TableSteps | None = None

    def check_lineage(self, lineage: str) -> None:
        """Refuse the log of another cluster (protocol P24).

        Raises:
            ForeignLogError: The replica belongs to another log (definite).
        """
        if self.state.lineage and lineage != self.state.lineage:
            raise ForeignLogError(
                f"FOREIGN: the node's log is of lineage {lineage!r}, this replica of "
                f"{self.state.lineage!r}",
                hint="Give the worker an empty lake, or its own cluster's node.",
            )

    def range_of(self, tail: LogTail) -> tuple[int, int]:
        """Return first and last position of the next batch of a tail."""
        segments = self._next_segments(tail)
        return segments[0].first, segments[-1].last

    def _next_segments(self, tail: LogTail) -> Sequence[Segment]:
        pending, segments = self.state.pending, tail.segments
        if pending is not None and pending.cut is not None:
            # The worker that began it was told to stop there: it ends there again.
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
        batch = plan_batch(
            segments,
            inline_extent(self._payload_root, segments[-1].last),
            position=position,
            chain_hash=chain_hash,
            known=self.state.tables,
            folds=pending is None or pending.folds,
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
            self.state = self.state.begin(batch, tail.lineage, cut)
            self.directory.save(self.state)
        self._watch.begin(batch)
        try:
            with traced_step("sparktxlog apply", _described(batch, self._node_id)):
                tables = self._apply_tables(batch, tail.lineage, resumed=pending is not None)
        finally:
            self._watch.end()
        self.directory.record_snapshot(batch.last, tables)
        self.state = self.state.finish(batch, tail.lineage, tables, cut)
        self.directory.save(self.state)
        return batch

    def _apply_tables(self, batch: Batch, lineage: str, *, resumed: bool) -> Tables:
        tables = dict(self.state.tables)
        batch = self._drop_tables(batch, tables, lineage, resumed=resumed)
        steps = self._table_steps(lineage)
        working: dict[str, TableProgress] = {}
        for name in sorted({*tables, *batch.tables}):
            known = tables.get(name)
            if known is not None and known.diverged:
                continue
            progress = _progress_of(name, known, batch.tables.get(name))
            try:
                steps.find_progress(progress, batch if resumed else None)
            except DivergedError as error:
                _logger.error("%s", error)
                tables[name] = self._stands_still(progress, error)
            else:
                working[name] = progress
        counted = steps.count_unclaimed(batch, working)
        for name, progress in working.items():
            plan = batch.tables.get(name)
            if plan is not None:
                try:
                    steps.apply(batch, plan, progress, counted)
                except DivergedError as error:
                    _logger.error("%s", error)
                    tables[name] = self._stands_still(
                        _progress_of(name, tables.get(name), plan), error
                    )
                    continue
            tables[name] = _recorded(progress)
        return tables

    def _drop_tables(self, batch: Batch, tables: Tables, lineage: str, *, resumed: bool) -> Batch:
        """Drop the tables of which a batch says so; return the batch without that."""
        plans = dict(batch.tables)
        for name, plan in batch.tables.items():
            if plan.dropped is None:
                continue
            known = tables.pop(name)
            self._table_steps(lineage).drop(
                batch,
                plan,
                _progress_of(name, known, plan),
                resumed=resumed,
                sound=not known.diverged,
            )
            # What keeps tables open must not take the next one of that name for this one.
            self._steps = None
            del plans[name]
            if plan.successor is not None:
                plans[name] = plan.successor
        return replace(batch, tables=plans)

    def _stands_still(self, progress: TableProgress, error: DivergedError) -> ReplicaTable:
        """Return a table as it was before the batch, marked as diverged."""
        return ReplicaTable(
            definition=progress.definition,
            version=progress.recorded,
            signature=progress.signature,
            diverged=str(error),
            position=self.state.position,
        )

    def _table_steps(self, lineage: str) -> TableSteps:
        """Return what makes the commits; one object for all batches, as it keeps tables open."""
        if self._steps is None:
            self._steps = TableSteps(
                self._session, self.lake, self._payload_root, lineage, self._watch.step
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


def _recorded(progress: TableProgress) -> ReplicaTable:
    return ReplicaTable(
        definition=progress.definition,
        version=progress.version,
        signature=progress.signature,
    )


def inline_extent(payload_root: Path, last: int) -> Extent:
    """Return a function: inline effect → places of its first and last row up to a position."""

    def read(effect: TableEffect) -> tuple[LogPlace, LogPlace]:
        places: list[LogPlace] = []
        for file in effect.files:
            try:
                rows = pq.read_table(payload_root / file.path, columns=[POSITION_COLUMN, OP_COLUMN])
            except (OSError, ArrowException) as error:
                raise ApplyError(
                    f"inline file {file.path} of table {effect.table!r} cannot be read: {error}",
                    path=file.path,
                ) from error
            pairs = zip(
                rows.column(POSITION_COLUMN).to_pylist(),
                rows.column(OP_COLUMN).to_pylist(),
                strict=True,
            )
            places += [LogPlace(position, op) for position, op in pairs if position <= last]
        if not places:
            raise ApplyError(f"inline files of table {effect.table!r} hold no rows")
        return min(places), max(places)

    return read
