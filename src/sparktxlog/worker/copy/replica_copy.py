"""Replaces a replica by a copy of a donor's files: from the ticket to an IN_SYNC report.

    journal → back up → ticket → staging of all tables → rows to the attic → swap
            → state → report (must be IN_SYNC) → transfer record

Each table is examined for rows of others, which are exported, and is swapped at exactly the
examined version.  A process that resumes after a crash examines again.

The old state is not changed before all tables are fetched and recounted.  A failure until then
costs nothing but time, and the next attempt finds the fetched bytes.  Then tables are swapped one
after the other, in steps that may be repeated.  Until the last one is done, `copying` in the
replica's state forbids batches.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic, time_ns
from typing import TYPE_CHECKING

from sparktxlog.errors import ApplyError, CopyConflictError, DivergedError, StorageError, TxLogError
from sparktxlog.files.tasks import Fetched
from sparktxlog.model.copying import CatchUpKind, CopyTicket, Lease, Transfer
from sparktxlog.model.replicas import holds
from sparktxlog.worker.apply.steps import failures_named
from sparktxlog.worker.copy.copy_terms import CopyOptions, CopyOutcome
from sparktxlog.worker.copy.donor_fetcher import FetcherOf
from sparktxlog.worker.copy.layout import Way
from sparktxlog.worker.copy.staging import CopyStager
from sparktxlog.worker.copy.swap import SWAP_ATTEMPTS, StagedTable, swap_table
from sparktxlog.worker.repair.examining import Examined, examine, foreign_commits, placed_log
from sparktxlog.worker.repair.table_quarantine import TableQuarantine
from sparktxlog.worker.replica.source import Answer, HttpLogSource, NodeInfo
from sparktxlog.worker.replica.state import (
    PendingCopy,
    ReplicaHome,
    ReplicaState,
    ReplicaTable,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Longest wait for a node that has not reached the donor's position, seconds.
AHEAD_S = 30.0
#: Verdicts on a replica that may have rows that this log lacks.
_SUSPECT = ("AHEAD", "DIVERGED", "FOREIGN")


class ReplicaCopy:
    """One copy of a whole replica, in steps that may be repeated.

    Args:
        session: The worker's own.
        report: Reports a state to the node and returns its answer.
        open_fetcher: Opens what fetches the files.

    **After calling** `restart`: objects that keep tables open must open them again.
    """

    def __init__(
        self,
        session: SparkSession,
        source: HttpLogSource,
        directory: ReplicaHome,
        state: ReplicaState,
        info: NodeInfo,
        *,
        report: Callable[[ReplicaState], Answer],
        open_fetcher: FetcherOf,
        options: CopyOptions,
        verdict: str = "",
        contested: bool = False,
    ) -> None:
        self._session = session
        self._source = source
        self._directory = directory
        self._lake = directory.place
        self._info = info
        self._report = report
        self._options = options
        self._verdict = verdict
        self._contested = contested
        self._started_at, self._started = time_ns() // 1000, monotonic()
        self.state = self._journaled(state)
        assert self.state.copying is not None
        self._copy_id = self.state.copying.copy_id
        self._fetcher = open_fetcher(directory.disk, self._copy_id)
        self._quarantine = TableQuarantine(session, self._lake, directory.disk, self._copy_id)
        self.ticket: CopyTicket | None = None
        #: Donors of failed attempts.
        self._failed: list[str] = []
        self._from_position = state.position
        #: Of the present attempt, None before its ticket.
        self._staging: CopyStager | None = None
        self._quarantined: dict[str, int] = {}
        #: Table → newest version that was examined, with foreign rows exported.
        self._examined: dict[str, int] = {}

    def _journaled(self, state: ReplicaState) -> ReplicaState:
        """Begin a copy in the replica's state, or resume the unfinished one."""
        pending = state.copying
        if pending is None:
            marked = self._verdict == "DIVERGED" and bool(state.diverged)
            pending = PendingCopy(
                copy_id=uuid.uuid4().hex[:12],
                started_at=self._started_at,
                forced=self._options.forced,
                donor=self._options.donor,
                suspect=self._contested or (self._verdict in _SUSPECT and not marked),
            )
        elif self._options.forced:
            # The operator may have named a donor, or another one than before.
            pending = replace(pending, forced=True, donor=self._options.donor)
        state = replace(state, copying=pending)
        self._directory.save(state)
        return state

    @property
    def pending(self) -> PendingCopy:
        """The copy as journaled."""
        assert self.state.copying is not None
        return self.state.copying

    @property
    def in_place(self) -> bool:
        """Whether the replica's state records the copy as done; then it cannot be repeated."""
        return self.state.copying is None

    @property
    def lease(self) -> Lease:
        """The donor's lease."""
        assert self.ticket is not None
        return self.ticket.lease

    @property
    def staging(self) -> CopyStager:
        """The staged tables of the present attempt."""
        assert self._staging is not None
        return self._staging

    # --- before the swap ----------------------------------------------------------------------

    def back_up(self) -> None:
        """Keep the old files if a backup directory is configured.

        Raises:
            ApplyError: They cannot be kept: the copy ends (definite).
        """
        if not self._info.backup_dir:
            return
        attic, why = Path(self._info.backup_dir), "a copy replaces its files"
        for name in sorted(self.state.tables):
            try:
                if self._lake.has(name):
                    self._lake.back_up(name, self._copy_id, why, attic)
            except (OSError, StorageError) as error:
                raise ApplyError(
                    f"table {name!r} cannot be backed up to {attic}: {error}",
                    hint="No file was asked for yet.  Make room there, or unset backup-dir.",
                    table=name,
                    path=str(attic),
                ) from error

    def request(self) -> None:
        """Have a donor pin a snapshot: one that did not fail yet, if possible.

        Raises:
            ApplyError: No donor lends one (definite).
            DivergedError: The snapshot is of another log (definite).
        """
        self._staging, self._quarantined = None, {}
        self.ticket = self._source.copy_ticket(
            self.state.worker_id,
            forced=self.pending.forced,
            donor=self.pending.donor,
            failed=self._failed,
        )
        held = [t for t in self.lease.tables if holds(self.state.only, t.definition.name)]
        if len(held) < len(self.lease.tables):
            self.ticket = replace(self.ticket, lease=replace(self.lease, tables=tuple(held)))
        self._fetcher.hold(self.ticket)
        lease = self.lease
        self._staging = CopyStager(
            self._session, self._lake, self.state, self._fetcher, lease, self._options
        )
        if lease.log_id != self._info.log_id:
            raise DivergedError(
                f"donor {lease.node_id} has the log {lease.log_id!r}, "
                f"this node {self._info.log_id!r}"
            )

    def stage_tables(self) -> None:
        """As `CopyStager`."""
        self.staging.stage_tables()

    # --- the swap -----------------------------------------------------------------------------

    def restart(self) -> CopyOutcome:
        """Swap all staged tables in, record and report it; return what was done.

        Raises:
            ApplyError: A table could not be replaced; the copy may be repeated.
            DivergedError: The node's verdict on the result is neither IN_SYNC nor AHEAD.
            TransportError: The node cannot be reached; the copy itself is done (not definite).
        """
        tables: dict[str, ReplicaTable] = {}
        self._save_rows()
        for offered in self.lease.tables:
            name = offered.definition.name
            version = self.staging.standing.get(name)
            if version is None:
                staged = self.staging.staged[name]
                self._note_swap(staged)
                with failures_named(name):
                    version = self._swap(staged)
            tables[name] = ReplicaTable(
                definition=offered.definition, version=version, signature=offered.signature
            )
        self._put_aside({*self.state.tables} - tables.keys())
        outcome = self._outcome()
        self._record(tables)
        self._fetcher.release()
        self._fetcher.remove()
        answer = self._report_known()
        self._tell(outcome, "done")
        # AHEAD: the node itself has not reached the donor's position yet.
        if answer.verdict not in ("IN_SYNC", "AHEAD"):
            raise DivergedError(
                f"the copy from {outcome.donor} is {answer.verdict} for the node: {answer.reason}",
                hint="Compare the sites: sparktxlog status; jobs/verify.py.",
            )
        return outcome

    def _report_known(self) -> Answer:
        """Report; wait for the node if the donor was ahead of it."""
        answer, deadline = self._report(self.state), monotonic() + AHEAD_S
        while answer.verdict == "AHEAD" and monotonic() < deadline:
            self._source.segments(self.state.position - 1, wait_s=1.0, limit=1)
            answer = self._report(self.state)
        return answer

    def _save_rows(self) -> None:
        """Export the rows that the copy removes although no transaction removed them (P28)."""
        for _, staged in sorted(self.staging.staged.items()):
            self._save_rows_of(staged)

    def _save_rows_of(self, staged: StagedTable) -> None:
        """Examine a table, and export the rows that the swap removes; once for each version."""
        name = staged.name
        known = self.state.tables.get(name)
        if self._lake.is_begun(name, self._copy_id):
            # The old table is in the attic; a part of the new one is there.
            self._examined[name] = -1
            return
        examined = examine(
            self._lake.table(name),
            known,
            log_id=self.lease.log_id,
            name=name,
            copy_id=self._copy_id,
            placed=self.pending.renamed.get(name),
        )
        reason = self._suspicion(known, examined)
        if reason:
            with failures_named(name):
                saved = self._quarantine.save_rows(
                    staged.offered.definition,
                    staged.path,
                    staged.offered.version,
                    examined,
                    reason,
                    None if known is None else known.definition,
                )
            rows = saved.facts["rows"]
            self._quarantined[name] = -1 if rows is None else rows
            _logger.warning("table %s: %s; see %s", name, reason, saved.place)
        self._examined[name] = examined.version

    def _suspicion(self, known: ReplicaTable | None, examined: Examined) -> str:
        if examined.version < 0:
            return ""
        if examined.swapped is None and known is None:
            return "the replica's state does not know the table"
        if examined.swapped is None and known is not None and known.diverged:
            return known.diverged
        if examined.foreign:
            return "somebody else wrote to the table"
        if examined.swapped is not None:
            return ""
        if self.pending.suspect:
            return "the node does not know this replica's state"
        return examined.replaced

    def _swap(self, staged: StagedTable) -> int:
        for left in reversed(range(SWAP_ATTEMPTS)):
            try:
                version = swap_table(
                    self._session,
                    self._lake,
                    staged,
                    self.lease,
                    self._quarantine,
                    self._copy_id,
                    self._examined[staged.name],
                )
                break
            except CopyConflictError:
                if not left:
                    raise
                # Somebody committed in between: those rows are exported first.
                self._save_rows_of(staged)
        self.staging.ways[staged.name] = staged.way.value
        return version

    def _note_swap(self, staged: StagedTable) -> None:
        swapped = tuple(sorted({*self.pending.swapped, staged.name}))
        pending = replace(self.pending, swapped=swapped)
        placed = placed_log(staged.offered, staged.path)
        if staged.way is Way.RENAME and placed is not None:
            pending = replace(pending, renamed={**pending.renamed, staged.name: placed})
        self.state = replace(self.state, copying=pending)
        self._directory.save(self.state)

    def _put_aside(self, names: Iterable[str]) -> None:
        """Move tables that the donor's position does not have to the attic."""
        for name in sorted(names):
            if self._lake.has(name):
                known, table = self.state.tables[name], self._lake.table(name)
                foreign = foreign_commits(table, known.version, self.lease.log_id, name)
                reason = f"not there at position {self.lease.position}"
                self._quarantine.save_files(name, foreign, reason)
                self._quarantined[name] = -1

    def _record(self, tables: dict[str, ReplicaTable]) -> None:
        lease = self.lease
        self.state = replace(
            self.state,
            log_id=lease.log_id,
            epoch=lease.epoch,
            position=lease.position,
            chain_hash=lease.chain_hash,
            tables=tables,
            pending=None,
            copying=None,
            # With the copy's id: another copy of the same position makes other tables.
            copied_from=f"{lease.replica}@{lease.position}/{self._copy_id}",
        )
        self._directory.save(self.state)

    def close(self) -> None:
        """Release the lease of an interrupted attempt."""
        self._fetcher.release()

    # --- records ------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Release the lease and record the failed attempt at the node; the journal stays."""
        if self.ticket is not None:
            self._failed.append(self.lease.replica)
            self._fetcher.release()
            self._tell(self._outcome(), reason[:500])

    def _outcome(self) -> CopyOutcome:
        assert self.ticket is not None
        estimate, staging = self.ticket.decision.copy, self._staging
        fetched = staging.fetched if staging else Fetched()
        return CopyOutcome(
            copy_id=self._copy_id,
            donor=self.lease.replica,
            from_position=self._from_position,
            position=self.lease.position,
            tables=dict(sorted(staging.ways.items())) if staging else {},
            quarantined=dict(self._quarantined),
            seconds=round(monotonic() - self._started, 3),
            estimated_s=estimate.seconds if estimate else None,
            size_bytes=fetched.size_bytes,
            wire_bytes=fetched.wire_bytes,
            reused_bytes=fetched.reused_bytes,
            fetch_s=fetched.fetch_s,
        )

    def _tell(self, outcome: CopyOutcome, end: str) -> None:
        assert self.ticket is not None
        transfer = Transfer(
            transfer_id=self.ticket.copy_id,
            worker_id=self.state.worker_id,
            node_id=self._info.node_id,
            kind=CatchUpKind.COPY,
            donors=(self.lease.replica,),
            from_position=outcome.from_position,
            to_position=outcome.position if end == "done" else outcome.from_position,
            started_at=self._started_at,
            finished_at=time_ns() // 1000,
            estimated_s=outcome.estimated_s,
            actual_s=outcome.seconds,
            fetch_s=outcome.fetch_s,
            size_bytes=outcome.size_bytes,
            wire_bytes=outcome.wire_bytes,
            reused_bytes=outcome.reused_bytes,
            outcome=end,
            reason=self.ticket.decision.reason,
        )
        try:
            self._source.record_transfer(transfer)
        except TxLogError as error:
            # The record is for people and for the next estimate; the copy does not need it.
            _logger.warning("the node did not take the record of the copy: %s", error)
