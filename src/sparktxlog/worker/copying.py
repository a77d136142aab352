"""A replica brought back by copying a donor's files: from the grant to a KNOWN state (R06–R10).

    journal → back up → ticket → per table: log, live files → recount → quarantine → swap
            → state → report (must be KNOWN) → transfer record

Nothing of the old state is touched before all tables are fetched and recounted; until then a
failure costs only the bytes fetched, and these are found again by the next attempt.  The swap then
goes table by table, each step repeatable; `copying` in the replica's state keeps batches away
until the last one is done.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.errors import ApplyError, CopyConflictError, DivergedError, TxLogError
from sparktxlog.model.copying import (
    CatchUpKind,
    CopyTicket,
    Grant,
    OfferedFile,
    OfferedTable,
    Transfer,
)
from sparktxlog.worker.backup import back_up
from sparktxlog.worker.deltalog import LogVersion, forget_log, read_log
from sparktxlog.worker.layout import LOG, Way, check_copyable, data_files, log_files, swap_way
from sparktxlog.worker.merging import read_newest, read_version, tagged
from sparktxlog.worker.quarantine import Quarantine, foreign_commits
from sparktxlog.worker.signatures import signature_of
from sparktxlog.worker.source import Answer, LogSource, NodeInfo
from sparktxlog.worker.state import PendingCopy, ReplicaDirectory, ReplicaState, ReplicaTable
from sparktxlog.worker.steps import failures_named
from sparktxlog.worker.swap import StagedTable, find_copy, is_renamed, swap_table
from sparktxlog.worker.tables import newest_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Attempts of one table's swap while others write to it.
SWAP_ATTEMPTS = 3
#: Seconds for the node to learn of a position that the donor had before it.
AHEAD_S = 30.0
#: Verdicts under which a replica may hold what this log does not.
_SUSPECT = ("AHEAD", "DIVERGED", "FOREIGN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What fetching some files of a table took."""

    size_bytes: int = 0
    #: Over the network, after compression.
    wire_bytes: int = 0
    #: Found in the replica or in the workspace.
    reused_bytes: int = 0
    #: Seconds in which bytes came.
    fetch_s: float = 0.0

    def __add__(self, other: Fetched) -> Fetched:
        return Fetched(
            size_bytes=self.size_bytes + other.size_bytes,
            wire_bytes=self.wire_bytes + other.wire_bytes,
            reused_bytes=self.reused_bytes + other.reused_bytes,
            fetch_s=self.fetch_s + other.fetch_s,
        )


class Fetcher(Protocol):
    """Gets a donor's files into the workspace of one copy; repeats nothing that is there."""

    def staged(self, table: str) -> Path:
        """Return the directory that a table's files are fetched to."""

    def fetch(
        self, grants: Sequence[Grant], offered: OfferedTable, files: Sequence[OfferedFile]
    ) -> Fetched:
        """Fetch files of a table, verified and durable; equal ones of the replica are linked.

        Raises:
            TxLogError: Not all could be had; what was had is kept.
        """

    def hold(self, ticket: CopyTicket) -> None:
        """Keep the leases of a ticket alive until `release`."""

    def release(self, grants: Sequence[Grant]) -> None:
        """Give held leases back; one that is gone already is no error."""

    def remove(self) -> None:
        """Remove the workspace."""


#: Opens the fetcher of a copy: lake, copy id.
FetcherOf = Callable[[Path, str], Fetcher]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How a copy is made."""

    #: Recount all rows before they replace anything.
    verify: bool = True
    #: Bring old versions too: the tables take over the donor's whole log.
    history: bool = False
    #: Asked for by somebody, whatever the node's plan is.
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """What a copy did."""

    copy_id: str
    donor: str
    from_position: int
    position: int
    #: Table → kept, rename or commit.
    tables: dict[str, str] = field(default_factory=dict)
    #: Table → rows in quarantine, -1 = its files.
    quarantined: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    wire_bytes: int = 0
    reused_bytes: int = 0
    fetch_s: float = 0.0
    seconds: float = 0.0
    estimated_s: float | None = None

    def describe(self) -> str:
        """Return one line for people."""
        estimated = "" if self.estimated_s is None else f", estimated {self.estimated_s:,.1f} s"
        lost = ", ".join(f"{name} ({rows} rows)" for name, rows in self.quarantined.items())
        return (
            f"copied position {self.position} from {self.donor} in {self.seconds:,.1f} s"
            f"{estimated}: {self.size_bytes:,} bytes, {self.wire_bytes:,} over the network, "
            f"{self.reused_bytes:,} found here" + (f"; in quarantine: {lost}" if lost else "")
        )


class ReplicaCopy:
    """One copy of a whole replica, in steps that may each be repeated.

    Args:
        session: The worker's own.
        report: Reports a state to the node and returns its answer.
        open_fetcher: Where files come from.

    **After calling** `restart`: what keeps tables open must open them anew.
    """

    def __init__(
        self,
        session: SparkSession,
        source: LogSource,
        directory: ReplicaDirectory,
        state: ReplicaState,
        info: NodeInfo,
        *,
        report: Callable[[ReplicaState], Answer],
        open_fetcher: FetcherOf,
        options: CopyOptions,
        verdict: str = "",
    ) -> None:
        self._session = session
        self._source = source
        self._directory = directory
        self._lake = directory.lake
        self._info = info
        self._report = report
        self._options = options
        self._verdict = verdict
        self._started_at, self._started = time_ns() // 1000, monotonic()
        self.state = self._journaled(state)
        assert self.state.copying is not None
        self._copy_id = self.state.copying.copy_id
        self._fetcher = open_fetcher(self._lake, self._copy_id)
        self._quarantine = Quarantine(session, self._lake, self._copy_id)
        self.ticket: CopyTicket | None = None
        self._from_position = state.position
        self._forget_staged()

    def _forget_staged(self) -> None:
        self._fetched = Fetched()
        self._staged: dict[str, StagedTable] = {}
        #: Table → version of what stays, or was swapped in by an attempt before.
        self._standing: dict[str, int] = {}
        self._ways: dict[str, str] = {}
        self._quarantined: dict[str, int] = {}

    def _journaled(self, state: ReplicaState) -> ReplicaState:
        """Begin a copy in the replica's state, or go on with the one begun."""
        if state.copying is not None:
            return state
        marked = bool(state.diverged)
        pending = PendingCopy(
            copy_id=uuid.uuid4().hex[:12],
            started_at=self._started_at,
            forced=self._options.forced,
            suspect=self._verdict in _SUSPECT and not (self._verdict == "DIVERGED" and marked),
        )
        state = replace(state, copying=pending)
        self._directory.save(state)
        return state

    @property
    def pending(self) -> PendingCopy:
        """The copy as journaled."""
        assert self.state.copying is not None
        return self.state.copying

    @property
    def grant(self) -> Grant:
        """What the donor granted."""
        assert self.ticket is not None
        return self.ticket.grants[0]

    # --- before the first file ----------------------------------------------------------------

    def back_up(self) -> None:
        """Keep the old files where a backup directory is configured (B31).

        Raises:
            ApplyError: They cannot be kept: there will be no copy (definite).
        """
        if self._info.backup_dir and self.state.tables:
            back_up(self._lake, Path(self._info.backup_dir), self._copy_id, self.state.tables)

    def request(self) -> int:
        """Have donors pin a snapshot (B10); return the number of its tables.

        Raises:
            ApplyError: Nobody lends, or the snapshot is of no use here (definite).
        """
        self._forget_staged()
        self.ticket = self._source.copy_ticket(self.state.worker_id, forced=self.pending.forced)
        if not self.ticket.grants:
            raise ApplyError("no donor granted a copy", hint="Start a worker at another site.")
        self._fetcher.hold(self.ticket)
        grant = self.grant
        if grant.lineage != self._info.lineage:
            raise DivergedError(
                f"donor {grant.node_id} is of lineage {grant.lineage!r}, "
                f"this node of {self._info.lineage!r}"
            )
        for offered in grant.tables:
            _check_paths(offered)
        return len(grant.tables)

    # --- files --------------------------------------------------------------------------------

    def fetch(self, index: int) -> None:
        """Fetch the table of that number into the workspace, unless it stands already.

        Raises:
            TransportError, StorageError: The donor failed; ask for a ticket anew (B34).
            ApplyError: The table cannot be copied by its files (definite).
        """
        offered = self.grant.tables[index]
        name = offered.definition.name
        with failures_named(name):
            standing = self._find_standing(offered)
            if standing is not None:
                self._standing[name] = standing
                return
            staged = self._stage(offered)
            if self._options.verify:
                self._recount(staged)
            self._staged[name] = staged

    def _stage(self, offered: OfferedTable) -> StagedTable:
        name, stage = offered.definition.name, self._fetcher.staged(offered.definition.name)
        old = self._readable_log(name)
        whole = old is None or self._options.history
        log = self._stage_log(offered, stage, whole=whole)
        check_copyable(name, log)
        way = Way.RENAME if whole else swap_way(old, log)
        wanted = log_files(offered, whole=way is Way.RENAME)
        if way is Way.RENAME and not whole:
            log = self._stage_log(offered, stage, whole=True)
        files = data_files(offered, log, history=self._options.history)
        self._fetched += self._fetcher.fetch(self.ticket_grants, offered, files)
        _prune(stage, {file.path for file in (*wanted, *files)})
        return StagedTable(offered=offered, path=stage, log=log, way=way)

    @property
    def ticket_grants(self) -> tuple[Grant, ...]:
        """All grants of the ticket, best donor first."""
        assert self.ticket is not None
        return self.ticket.grants

    def _stage_log(self, offered: OfferedTable, stage: Path, *, whole: bool) -> LogVersion:
        files = log_files(offered, whole=whole)
        self._fetched += self._fetcher.fetch(self.ticket_grants, offered, files)
        # Left by an attempt with another donor, its log would be read as part of this one.
        _prune(stage, {file.path for file in files}, LOG)
        forget_log(self._session, stage)
        return read_log(self._session, stage, offered.version)

    def _readable_log(self, name: str) -> LogVersion | None:
        """Return the newest version of the replica's table, None if its log cannot be read."""
        table = self._lake / name
        if not (table / LOG).is_dir():
            return None
        try:
            forget_log(self._session, table)
            log = read_log(self._session, table, files=False)
        except (PySparkException, Py4JError, ValueError) as error:
            _logger.warning("log of table %s cannot be read: %s", name, str(error)[:300])
            return None
        return log if log.version >= 0 else None

    def _find_standing(self, offered: OfferedTable) -> int | None:
        """Return the version of a table that is as offered already, proved by a recount."""
        definition = offered.definition
        table, known = self._lake / definition.name, self.state.tables.get(definition.name)
        version, way = find_copy(table, self._copy_id, self.grant), Way.COMMIT.value
        if version is None and definition.name in self.pending.swapped:
            version = offered.version if is_renamed(table, offered) else None
            way = Way.RENAME.value
        if version is None and self._options.verify and not self.pending.suspect:
            version, way = self._find_equal(offered, known), "kept"
        if version is None:
            return None
        try:
            forget_log(self._session, table)
            found = signature_of(read_version(self._session, str(table), version), definition)
        except (PySparkException, Py4JError):
            return None
        if found != offered.signature:
            return None
        self._ways[definition.name] = way
        return version

    def _find_equal(self, offered: OfferedTable, known: ReplicaTable | None) -> int | None:
        """Return the recorded version of a table that nothing happened to since the position."""
        if known is None or known.diverged or self.state.position > self.grant.position:
            return None
        if (known.signature, known.definition) != (offered.signature, offered.definition):
            return None
        newest = newest_version(self._lake / known.definition.name, known.version)
        return known.version if newest == known.version else None

    def _recount(self, staged: StagedTable) -> None:
        """Compare staged rows with what the donor reported, by a full scan.

        Raises:
            ApplyError: They differ; the replica is as before (definite).
        """
        definition, wanted = staged.offered.definition, staged.offered.signature
        with tagged(self._session, "recount", staged.name):
            found = signature_of(read_newest(self._session, str(staged.path)), definition)
        if found != wanted:
            raise ApplyError(
                f"table {staged.name!r} from {self.grant.node_id} counts {found.to_text()}, "
                f"its report says {wanted.to_text()}",
                hint="Nothing was changed here.  Verify the donor (jobs/verify.py), or copy from "
                "another one.",
                table=staged.name,
                donor=self.grant.node_id,
            )

    # --- the swap -----------------------------------------------------------------------------

    def restart(self) -> CopyOutcome:
        """Put everything fetched in place, record it, and report; return what was done.

        Raises:
            ApplyError: A table could not be replaced; the copy may be repeated.
            DivergedError: The node does not take the result for KNOWN.
            TransportError: The node is not reached; the copy itself is done (not definite).
        """
        tables: dict[str, ReplicaTable] = {}
        self._save_rows()
        for offered in self.grant.tables:
            name = offered.definition.name
            version = self._standing.get(name)
            if version is None:
                self._note_swap(name)
                with failures_named(name):
                    version = self._swap(self._staged[name])
            tables[name] = ReplicaTable(
                definition=offered.definition, version=version, signature=offered.signature
            )
        self._put_aside({*self.state.tables} - tables.keys())
        outcome = self._outcome()
        self._record(tables)
        self._fetcher.release(self.ticket_grants)
        self._fetcher.remove()
        answer = self._report_known()
        self._tell(outcome, "done")
        if answer.verdict != "KNOWN":
            raise DivergedError(
                f"the copy from {outcome.donor} is {answer.verdict} for the node: {answer.reason}",
                hint="Compare the sites: sparktxlog status; jobs/verify.py.",
            )
        return outcome

    def _report_known(self) -> Answer:
        """Report, and wait for the node where the donor was ahead of it."""
        answer, deadline = self._report(self.state), monotonic() + AHEAD_S
        while answer.verdict == "AHEAD" and monotonic() < deadline:
            self._source.segments(self.state.position - 1, wait_s=1.0, limit=1)
            answer = self._report(self.state)
        return answer

    def _save_rows(self) -> None:
        """Export the rows that a copy would make disappear though nobody ordered it (P28)."""
        for name, staged in sorted(self._staged.items()):
            known = self.state.tables.get(name)
            if not (self._lake / name / LOG).is_dir() or name in self.pending.swapped:
                continue
            recorded = known.version if known else -1
            foreign = foreign_commits(self._lake / name, recorded, self.grant.lineage, name)
            reason = self._suspicion(known, bool(foreign))
            if reason:
                with failures_named(name):
                    saved = self._quarantine.save_rows(
                        staged.offered.definition,
                        staged.path,
                        staged.offered.version,
                        foreign,
                        reason,
                    )
                self._quarantined[name] = -1 if saved.rows is None else saved.rows
                _logger.warning("table %s: %s; see %s", name, reason, saved.path)

    def _suspicion(self, known: ReplicaTable | None, foreign: bool) -> str:
        if known is None:
            return "the replica's state does not know the table"
        if known.diverged:
            return known.diverged
        if foreign:
            return "somebody else wrote to the table"
        return "the node does not know this replica's state" if self.pending.suspect else ""

    def _swap(self, staged: StagedTable) -> int:
        for attempt in range(1, SWAP_ATTEMPTS + 1):
            try:
                version = swap_table(
                    self._session, self._lake, staged, self.grant, self._quarantine, self._copy_id
                )
            except CopyConflictError:
                if attempt == SWAP_ATTEMPTS:
                    raise
            else:
                self._ways[staged.name] = staged.way.value
                return version
        raise AssertionError("unreachable")

    def _note_swap(self, name: str) -> None:
        swapped = tuple(sorted({*self.pending.swapped, name}))
        self.state = replace(self.state, copying=replace(self.pending, swapped=swapped))
        self._directory.save(self.state)

    def _put_aside(self, names: Iterable[str]) -> None:
        """Move tables that the donor's position does not have into quarantine."""
        for name in sorted(names):
            if (self._lake / name).exists():
                known = self.state.tables[name]
                foreign = foreign_commits(
                    self._lake / name, known.version, self.grant.lineage, name
                )
                reason = f"not there at position {self.grant.position}"
                self._quarantine.save_files(name, foreign, reason)
                self._quarantined[name] = -1

    def _record(self, tables: dict[str, ReplicaTable]) -> None:
        grant = self.grant
        if Way.RENAME.value in self._ways.values() or grant.position < self.state.position:
            # Versions of older positions were those of other logs, or of another history.
            self._directory.forget_snapshots()
        self._directory.record_snapshot(grant.position, tables)
        self.state = replace(
            self.state,
            lineage=grant.lineage,
            epoch=grant.epoch,
            position=grant.position,
            chain_hash=grant.chain_hash,
            tables=tables,
            pending=None,
            copying=None,
            copied_from=f"{grant.node_id}@{grant.position}",
        )
        self._directory.save(self.state)

    def close(self) -> None:
        """Give back what an interrupted attempt still holds."""
        if self.ticket is not None:
            self._fetcher.release(self.ticket_grants)

    # --- telling ------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Give leases back and tell the node that an attempt failed; the journal stays."""
        if self.ticket is not None:
            self._fetcher.release(self.ticket_grants)
            self._tell(self._outcome(), reason[:500])

    def _outcome(self) -> CopyOutcome:
        assert self.ticket is not None
        estimate = self.ticket.decision.copy
        return CopyOutcome(
            copy_id=self._copy_id,
            donor=self.grant.node_id,
            from_position=self._from_position,
            position=self.grant.position,
            tables=dict(sorted(self._ways.items())),
            quarantined=dict(self._quarantined),
            seconds=round(monotonic() - self._started, 3),
            estimated_s=estimate.seconds if estimate else None,
            **asdict(self._fetched),
        )

    def _tell(self, outcome: CopyOutcome, end: str) -> None:
        assert self.ticket is not None
        transfer = Transfer(
            transfer_id=self.ticket.copy_id,
            worker_id=self.state.worker_id,
            node_id=self._info.node_id,
            kind=CatchUpKind.COPY,
            donors=tuple(grant.node_id for grant in self.ticket_grants),
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
            # The record is for people and for the next estimate; the copy stands without it.
            _logger.warning("the node did not take the record of the copy: %s", error)


def _check_paths(offered: OfferedTable) -> None:
    """Refuse a listing that would write outside of the table's directory.

    Raises:
        ApplyError: With the path (definite).
    """
    for file in offered.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ApplyError(
                f"table {offered.definition.name!r}: a donor offers the path {file.path[:120]!r}",
                table=offered.definition.name,
                path=file.path,
            )


def _prune(root: Path, wanted: set[str], below: str = "") -> None:
    """Remove staged files that this attempt did not ask for."""
    start = root / below
    for path in [*start.rglob("*")] if start.is_dir() else []:
        if path.is_file() and str(path.relative_to(root)) not in wanted:
            path.unlink()
