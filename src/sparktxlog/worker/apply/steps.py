"""The Delta commits of one table in one batch, each done exactly once, even if it is retried.

A step's commit carries its number and the table's signature after it.  After a crash the batch's
last commit in the table's log says with which step and signature to continue.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.delta.commit_files import read_actions
from sparktxlog.delta.log_files import TablePlace, has_commit, last_number, newest_version
from sparktxlog.errors import (
    STORE_AWAY,
    ApplyError,
    DiskFullError,
    DivergedError,
    LockedError,
    StorageError,
    first_lines,
)
from sparktxlog.files.stores.store_failures import says_full
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.worker.apply.altering import alter_table
from sparktxlog.worker.apply.batches import Batch, Clear, Step, StepKind, TablePlan, TableStage
from sparktxlog.worker.apply.deltalog import forget_log, write_checkpoint
from sparktxlog.worker.apply.fold import rows_of, signatures_of
from sparktxlog.worker.apply.merging import StageRows, remove_matching
from sparktxlog.worker.apply.placing import Placer, is_checkpoint_due
from sparktxlog.worker.apply.signatures import signature_of
from sparktxlog.worker.apply.tables import (
    OwnCommit,
    check_recorded,
    create_table,
    own_progress,
    read_commit,
)
from sparktxlog.worker.apply.worker_session import marked, read_newest, tagged
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.lakes.leftovers import Leftovers
from sparktxlog.worker.lakes.payload_files import PayloadFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: System errors of a full disk, and of a full quota.
_FULL = (errno.ENOSPC, errno.EDQUOT)

#: What is wrong with the whole lake, and with no table.
_OF_THE_LAKE = (DiskFullError, LockedError, *STORE_AWAY)

#: Signatures of appended rows that carry no claim, by `<table>/<index of the stage>`.
Counted = Mapping[str, TableSignature]


@dataclass(slots=True, kw_only=True)
class TableProgress:
    """A table while a batch is applied to it."""

    definition: TableDefinition
    #: Version in the replica's state; -1 = the table does not exist yet.
    recorded: int = -1
    #: Newest version.
    version: int = -1
    signature: TableSignature = EMPTY_SIGNATURE
    #: Number of the batch's last step done, -1 = none.
    done: int = -1

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.definition.name


class TableSteps:
    """Executes the plan of a batch on the tables of one lake.

    Args:
        session: The worker's separate session.
        lake: Of the replica's tables.
        payloads: The files that the log names.
        log_id: Of the log; names the worker's commits.
        tell: Called before each step of a table.
    """

    def __init__(
        self,
        session: SparkSession,
        lake: Lake,
        payloads: PayloadFiles,
        log_id: str,
        tell: Callable[[str, Step], None] = lambda table, step: None,
    ) -> None:
        self._session = session
        self._lake = lake
        self._payloads = payloads
        self._log_id = log_id
        self._tell = tell
        self._placer = Placer(lake, payloads)
        self._leftovers = Leftovers()
        #: Table → what distinguishes the newest commit that was examined.
        self._examined: dict[str, Hashable] = {}
        #: Tables that were checked for torn commits; a living process leaves none.
        self._looked_at: set[str] = set()

    def find_progress(self, progress: TableProgress, batch: Batch | None) -> None:
        """Examine commits after the recorded version: own ones of `batch`, or foreign ones.

        Torn commits are undone; the rest of the batch is durable afterwards.

        Raises:
            DivergedError: Somebody else wrote to the table (definite).
        """
        name, recorded = progress.name, progress.recorded
        if name not in self._looked_at:
            with failures_named(name):
                if self._lake.undo_torn(name, recorded, self._log_id, batch):
                    forget_log(self._session, self._lake.url_of(name))
            self._looked_at.add(name)
        progress.version, own = self._examine(progress, batch)
        if progress.version > recorded:
            with failures_named(name):
                self._lake.settle(name, recorded + 1, progress.version, found=True)
        if own is not None:
            progress.done = own.step
            progress.signature = TableSignature.from_text(own.signature)

    def drop(
        self, batch: Batch, plan: TablePlan, progress: TableProgress, *, resumed: bool, sound: bool
    ) -> None:
        """Do what a batch does to a table that it drops, and move it to the attic, durably.

        A table that stands still is moved as it is: nobody asks for its rows any more.

        Args:
            resumed: The batch was begun before; perhaps the table is dropped already.
            sound: It holds what the log says up to the batch.

        Raises:
            ApplyError: A step failed; the next call goes on there.
        """
        name, table = plan.table, self._lake.table(plan.table)
        assert plan.dropped is not None
        if not self._lake.has(name) or (resumed and not _is_former(table, batch, self._log_id)):
            return
        if sound:
            try:
                self.find_progress(progress, batch if resumed else None)
                counted = self.count_unclaimed(
                    replace(batch, tables={name: plan}), {name: progress}
                )
                self.apply(batch, plan, progress, counted)
            except DivergedError as error:
                _logger.warning("%s; it is dropped as it is", error)
        with failures_named(name):
            why = f"the log drops it at position {plan.dropped}"
            aside = self._lake.set_aside(name, str(plan.dropped), why)
            forget_log(self._session, self._lake.url_of(name))
        _logger.info("table %s is dropped at %d; its files: %s", name, plan.dropped, aside)

    def count_unclaimed(self, batch: Batch, working: Mapping[str, TableProgress]) -> Counted:
        """Count appended rows for which no submitter gave a claim; at most one Spark job."""
        frames = []
        # Spark looks for the files as soon as they are named.
        with failures_named(", ".join(working)), tagged(self._session, "count", "appends"):
            for name, progress in working.items():
                for stage, definition in _stages_left(batch.tables.get(name), progress):
                    pieces = [piece for piece in stage.whole if not piece.claimed]
                    if pieces:
                        columns = definition.columns
                        rows = rows_of(self._session, self._payloads.url, columns, pieces)
                        frames.append((f"{name}/{stage.index}", rows, definition))
            return signatures_of(frames)

    def apply(
        self, batch: Batch, plan: TablePlan, progress: TableProgress, counted: Counted
    ) -> None:
        """Do the remaining steps of a table, durably.

        Raises:
            DivergedError: Somebody else wrote to the table meanwhile (definite).
            ApplyError: A step failed; those before it stand, and are not done again.
        """
        name = plan.table
        place, version = self._lake.table(name), lambda: progress.version
        with self._leftovers.removed(name, place, version), failures_named(name):
            self._apply(batch, plan, progress, counted)

    def _apply(
        self, batch: Batch, plan: TablePlan, progress: TableProgress, counted: Counted
    ) -> None:
        name = plan.table
        for stage, group in groupby(plan.steps(), key=lambda step: step.stage):
            steps = [step for step in group if step.number > progress.done]
            self._check_payloads(steps)
            appended = _appended(stage, counted.get(f"{name}/{stage.index}"))
            with StageRows(
                self._session, self._payloads.url, self._lake, progress.definition, stage
            ) as rows:
                for step in steps:
                    if step.number <= progress.done:
                        continue
                    self._tell(name, step)
                    if step.kind is StepKind.MERGE:
                        if not rows.has_merge():
                            continue
                        if stage.whole and not rows.untouched_files():
                            # It takes all appended rows: it stands for the placing as well.
                            step = replace(steps[-1], kind=StepKind.MERGE)
                    places = step.number == steps[-1].number and bool(stage.whole)
                    self.run_step(
                        batch, step, progress, rows, appended if places else EMPTY_SIGNATURE
                    )
            if stage.change is not None:
                progress.definition = stage.change.applied_to(progress.definition)
        # Others may have written between the examination and a step's commit.
        self._examine(progress, batch)

    def _check_payloads(self, steps: Iterable[Step]) -> None:
        """Check the files that a MERGE reads: Spark takes garbage for rows where it can."""
        for step in steps:
            if step.kind is StepKind.MERGE:
                for piece in (*step.stage.keyed, *step.stage.partial, *step.stage.removable):
                    for file in piece.effect.files:
                        self._payloads.check(file)

    def _examine(
        self, progress: TableProgress, batch: Batch | None
    ) -> tuple[int, OwnCommit | None]:
        name, recorded = progress.name, progress.recorded
        table = self._lake.table(name)
        if self._examined.get(name) != self._lake.identity(name, recorded):
            check_recorded(table, recorded, self._log_id, name)
        newest, own = own_progress(table, recorded, self._log_id, batch, name)
        self._examined[name] = self._lake.identity(name, newest)
        return newest, own

    def run_step(
        self,
        batch: Batch,
        step: Step,
        progress: TableProgress,
        rows: StageRows,
        appended: TableSignature,
    ) -> None:
        """Make one Delta commit, durably, and note the table's progress.

        Args:
            rows: Of the step's stage.
            appended: Signature of appended files that the step takes in as a whole.
        """
        table, url = self._lake.table(progress.name), self._lake.url_of(progress.name)
        version, before = progress.version, progress.signature + appended

        def own(after: TableSignature) -> OwnCommit:
            return OwnCommit.of(batch, self._log_id, progress.name, step, after)

        with tagged(self._session, step.kind.value, progress.name):
            if step.kind is StepKind.CREATE:
                after = EMPTY_SIGNATURE
                created = own(after)
                txn = {"appId": created.app_id, "version": created.txn_version}
                create_table(table, progress.definition, created.to_text(), txn)
            elif step.kind is StepKind.ALTER:
                change = step.stage.change
                assert change is not None
                after = before
                if change.changes_hashes:
                    after = self._recounted(url, progress.definition, change)
                alter_table(table, version, progress.definition, change, own(after))
            elif step.kind is StepKind.CLEAR:
                after, predicate = EMPTY_SIGNATURE, None
                if step.stage.clear is Clear.MATCHING:
                    predicate = step.stage.predicate
                    gone = read_newest(self._session, url).where(predicate)
                    after = before - signature_of(gone, progress.definition)
                self._clear(progress.definition, predicate, own(after))
            elif step.kind is StepKind.MERGE:
                after = before + rows.commit(lambda change: own(before + change))
            else:
                after = before
                files = rows.untouched_files()
                self._placer.place(progress.definition, files, own(after), version)
        progress.version = newest_version(table, version)
        # The next step must not be durable before this one.
        self._lake.settle(progress.name, version + 1, progress.version)
        progress.signature, progress.done = after, step.number
        if not isinstance(table, Path) and is_checkpoint_due(progress.definition, progress.version):
            # On a disk delta-rs writes those of placed files, and Delta those of its own commits.
            write_checkpoint(self._session, url)

    def _clear(self, definition: TableDefinition, predicate: str | None, own: OwnCommit) -> None:
        name = definition.name
        if not isinstance(self._lake.table(name), Path):
            remove_matching(self._session, self._lake, definition, predicate, own)
            return
        with marked(self._session, own):
            DeltaTable.forPath(self._session, self._lake.url_of(name)).delete(predicate)

    def _recounted(self, url: str, before: TableDefinition, change: TableChange) -> TableSignature:
        """Count the rows of a table as they are after a change, by a full scan."""
        after, renamed = change.applied_to(before), dict(change.rename)
        kept = [column.name for column in before.columns if column.name not in change.drop]
        rows = read_newest(self._session, url).select(
            *[F.col(quoted_name(name)).alias(renamed.get(name, name)) for name in kept],
            *[F.lit(None).alias(column.name) for column in change.add],
        )
        return signature_of(rows, after)


def _is_former(table: TablePlace, batch: Batch, log_id: str) -> bool:
    """Return whether a directory is not that of a table which the batch itself created."""
    actions = read_actions(table, 0) if has_commit(table, 0) else None
    if actions is None:
        # Delta removes old commits; of a table that is about to be created there is none.
        return last_number(table) >= 0
    # Its name may be written in another case, where the file system ignores that.
    own = read_commit(table, 0).own
    return own is None or (own.log_id, own.last_position) != (log_id, batch.last)


@contextmanager
def failures_named(table: str) -> Iterator[None]:
    """Convert errors of Spark, delta-rs and the disk into one that names the table.

    Raises:
        DiskFullError: No space is left (definite); nothing of the table has to be repaired.
        LockedError: Another worker has the lake (definite).
        StoreUnavailableError, StoreForbiddenError, BucketMissingError: The bucket of all tables.
        ApplyError: All else.
    """
    try:
        yield
    except _OF_THE_LAKE:
        raise
    except (PySparkException, Py4JError, DeltaError, StorageError, OSError) as error:
        text = first_lines(error)
        if _is_full(error):
            raise DiskFullError(
                f"table {table}: no space left for the lake: {text}",
                hint="Free space on its disk, or in its bucket; the worker goes on from the last "
                "whole state.",
                table=table,
            ) from error
        raise ApplyError(
            f"table {table}: {type(error).__name__}: {text}",
            hint="Tables keep their last whole state; the worker may be started again.",
            table=table,
        ) from error


def _is_full(error: Exception) -> bool:
    # Spark and delta-rs only pass on the system's text, and that of a bucket.
    if isinstance(error, OSError):
        return error.errno in _FULL
    return says_full(str(error)) or any(os.strerror(number) in str(error) for number in _FULL)


def _stages_left(
    plan: TablePlan | None, progress: TableProgress
) -> list[tuple[TableStage, TableDefinition]]:
    """Return the stages that have steps left, each with the table as it is before it."""
    if plan is None:
        return []
    left = {step.stage.index for step in plan.steps() if step.number > progress.done}
    return [
        (stage, table) for stage, table in plan.defined(progress.definition) if stage.index in left
    ]


def _appended(stage: TableStage, counted: TableSignature | None) -> TableSignature:
    """Add up the signatures of a stage's whole appended pieces, as claimed or as counted."""
    total = counted or EMPTY_SIGNATURE
    for piece in stage.whole:
        if piece.claimed:
            total += TableSignature.from_text(piece.effect.claim)
    return total
