"""The worker: applies what its node publishes, once or continuously, and obeys its answers.

    report → plan → segments → driver → batch, range or copy → report

`local_replica` applies batches and `copy` copies.  `replica_driver` decides which comes next and
retries after failures.  A worker reports before it applies anything: the node may tell it to copy
or to stop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from time import monotonic, time_ns
from typing import TYPE_CHECKING

from sparktxlog.errors import (
    ApplyError,
    DivergedError,
    ExpiredError,
    InvariantViolation,
    PayloadLostError,
    TransportError,
    TxLogError,
)
from sparktxlog.files.workspace import remove_workspaces
from sparktxlog.model.report import Recount, ReplayCost, ReplicaVerdict
from sparktxlog.supervision import beating
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.copy.copy_terms import CopyOptions, CopyOutcome
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher, FetcherOf
from sparktxlog.worker.copy.replica_copy import ReplicaCopy
from sparktxlog.worker.repair.repairing import RepairOutcome, RepairWay, TableRepair
from sparktxlog.worker.repair.stopped_tables import repair_stopped
from sparktxlog.worker.replica.batch_watch import BatchWatch
from sparktxlog.worker.replica.driver_lock import lock_by_driver
from sparktxlog.worker.replica.local_replica import Replica, cost_of
from sparktxlog.worker.replica.replays import ReplayRecords
from sparktxlog.worker.replica.replica_driver import POLL_S, ReplicaDriver
from sparktxlog.worker.replica.reports import Reporter
from sparktxlog.worker.replica.source import HttpLogSource, LogTail
from sparktxlog.worker.replica.state import ReplicaHome, ReplicaState
from sparktxlog.worker.verify.recount_schedule import ScheduledRecounts
from sparktxlog.worker.verify.verify import recount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

#: Segments asked for at once.
SEGMENTS_LIMIT = 500
#: Seconds after a failed copy for single tables until the next one; the other tables go on.
COPY_PAUSE_S = 600.0
#: Verdicts after which a replay may go on even if the node prefers a copy.
_REPLAYABLE = ("IN_SYNC", "EMPTY")
_NEEDS_COPY = "Nothing changed here.  `sparktxlog plan` says when it can copy; then repeat this."


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOutcome:
    """What a worker did."""

    #: Applied position after it.
    position: int
    #: Last published position it knows of.
    published: int
    batches: int = 0
    transactions: int = 0
    seconds: float = 0.0
    #: Tables that stand still → why.
    diverged: dict[str, str] = field(default_factory=dict)
    #: The node's verdict on the last report, empty if it was not reached.
    verdict: str = ""
    #: Why the node wants the worker to stop, empty if it does not.
    stopped: str = ""
    #: What was copied, oldest first.
    copies: tuple[CopyOutcome, ...] = ()
    #: Tables that others wrote to, as they were repaired without a copy, oldest first.
    repairs: tuple[RepairOutcome, ...] = ()


class Applier:
    """Applies the log to one replica.

    Args:
        spark: A session with Delta; the applier works in a session of its own.
        source: The log; used by this thread only.
        directory: The replica, locked by this process.
        reporting: A second connection, which the heartbeat's thread uses too; None = reports go
            through `source`, without a heartbeat.
        copies: How to copy when the node asks for it; None = the worker stops instead.
        replays_anyway: Replay an IN_SYNC or EMPTY replica even if the node prefers a copy.
        takes_lake: The replica may have been that of another site, or another one of this site.
        name: Name of the replica at its site; None = the one that it has.
        tables: Patterns of the tables that it holds; empty = those that it has.
        open_fetcher: Opens the source of a copy's files.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: HttpLogSource,
        directory: ReplicaHome,
        *,
        reporting: HttpLogSource | None = None,
        copies: CopyOptions | None = None,
        replays_anyway: bool = False,
        takes_lake: bool = False,
        name: str | None = None,
        tables: Sequence[str] = (),
        open_fetcher: FetcherOf = DonorFetcher,
    ) -> None:
        self.source = source
        self.directory = directory
        self.info = source.info()
        self.published = self.info.published
        self._session = applier_session(spark)
        watch = BatchWatch()
        self._replica = Replica(self._session, directory, self.info, watch)
        lake = directory.place.url
        here = self.state.named(name, tables, lake, takes=takes_lake)
        here = here.of_site(self.info.node_id, lake, takes=takes_lake)
        if here != self.state:
            directory.save(here)
            self._replica.state = here
        self._reporter = Reporter(
            reporting or source, self.info.node_id, watch.now, lake, directory.check_owner
        )
        self._beats = reporting is not None
        self._batches = 0
        self._transactions = 0
        self._started = monotonic()
        self._copies = copies
        self._replays_anyway = replays_anyway
        self._open_fetcher = open_fetcher
        self._copied: list[CopyOutcome] = []
        self._repaired: list[RepairOutcome] = []
        #: Steady time before which no copy is begun for the sake of single tables.
        self._no_copy_before = 0.0
        #: Position and tables of the last recount.
        self._recounted: tuple[int, tuple[str, ...]] = (-1, ())
        self._scheduled = ScheduledRecounts(
            directory.own,
            self.info.verify_interval,
            self._count_aside,
            lambda: time_ns() // 1000,
            lambda: source.info().maintenance_open,
        )
        self._replays = ReplayRecords(source, self.info.node_id)
        self._driver = ReplicaDriver(self, threading.Event())
        #: The node's last answer, and the cost of the last batch.
        self._at_hand = LogTail(position=0, log_id="", epoch=0)
        self._pace: ReplayCost | None = None
        # A copy that an operator asked for may replace a replica of another log.
        replaces = self._copies is not None and self._copies.forced and bool(self.state.log_id)
        if self.state.copying is None and not replaces:
            self._replica.check_log_id(self.info.log_id)
            self._replica.state = replace(self.state, log_id=self.info.log_id)
        directory.on_close(lock_by_driver(spark, directory.own / "lock.driver"))

    @property
    def state(self) -> ReplicaState:
        """Where the replica stands."""
        return self._replica.state

    # --- the loop -----------------------------------------------------------------------------

    def run_once(self, at_least: int = 0, timeout_s: float = 0.0) -> ApplyOutcome:
        """Apply what is published now; wait for what is ordered and not published yet.

        Args:
            at_least: Position to reach; never less than the node's last ordered position.
            timeout_s: Longest wait for what is not published yet, seconds.

        Raises:
            TransportError: The node cannot be reached.  A repeated run goes on where this one
                stopped.
            ApplyError: A batch cannot be applied; its tables keep their last whole state.
        """
        with self._heartbeat():
            self._apply_published(at_least, timeout_s)
        return self._ended()

    def _apply_published(self, at_least: int, timeout_s: float) -> None:
        self._driver.reset()
        deadline = monotonic() + timeout_s
        # First: the node may answer with stop or copy.
        self.report()
        self._recount_and_copy()
        tail = self._first_tail()
        at_least = max(at_least, self.info.position)
        target = max(tail.position, at_least)
        while not self.obstacle():
            wait_s = 0.0
            if tail.segments:
                self._apply_tail(tail)
            else:
                wait_s = min(POLL_S, deadline - monotonic())
                if self.state.position >= at_least or wait_s <= 0:
                    return
            self._recount_and_copy()
            if self.state.position >= target:
                return
            tail = self._tail(wait_s=wait_s)

    def _first_tail(self) -> LogTail:
        """Return what is published after the replica.

        Raises:
            ExpiredError: The log begins after that, and nothing was copied, for the reason that the
                node gave (definite).
        """
        try:
            return self._tail(wait_s=0.0)
        except ExpiredError as error:
            if not (obstacle := self.obstacle()):
                raise
            position = self.state.position
            raise ExpiredError(obstacle, hint=_NEEDS_COPY, position=position) from error

    def catch_up(self, timeout_s: float = 0.0) -> ApplyOutcome:
        """Replay or copy until the replica holds what is ordered now, or the timeout.

        Raises:
            TxLogError: As `run_once`, and the last failure of a copy.
        """
        with self._heartbeat():
            self.report()
            if self._copies is not None and self._copies.forced:
                self._driver.reset()
                self._copy("a copy was asked for")
            self._apply_published(0, timeout_s)
        return self._ended()

    def follow(self, stop: threading.Event) -> ApplyOutcome:
        """Apply new transactions until `stop` is set; retry transient failures (`replica_driver`).

        Raises:
            DivergedError: The replica is of another log or history (definite).
            UnauthorizedError: The node refuses the token (definite).
            TxLogError: Node and worker are of releases that do not fit, or a batch cannot be
                applied and this worker must not copy.
        """
        self._reporter.follow()
        with self._heartbeat():
            self._driver = ReplicaDriver(self, stop)
            self._driver.follow(self._reporter.changed)
        return self._ended()

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Send heartbeats while the block runs; tell the node how it ended."""
        self._reporter.fail("")
        beat, interval_s = self._reporter.beat, self.info.worker_heartbeat
        try:
            with beating("heartbeat", beat, interval_s) if self._beats else nullcontext():
                yield
        except Exception as error:
            self._reporter.end(str(error) or type(error).__name__)
            raise
        else:
            self._reporter.end()

    def _ended(self) -> ApplyOutcome:
        self._replays.end("the worker ended first", self.state.position, self._transactions)
        return self.outcome()

    def outcome(self) -> ApplyOutcome:
        """Return what was done so far."""
        return ApplyOutcome(
            position=self.state.position,
            published=max(self.published, self.state.position),
            batches=self._batches,
            transactions=self._transactions,
            seconds=round(monotonic() - self._started, 3),
            diverged=self.state.diverged,
            verdict=self._reporter.answer.verdict,
            stopped=self.obstacle(),
            copies=tuple(self._copied),
            repairs=tuple(self._repaired),
        )

    def _tail(self, *, wait_s: float) -> LogTail:
        tail = self.source.segments(self.state.position, wait_s=wait_s, limit=SEGMENTS_LIMIT)
        self._replica.check_log_id(tail.log_id)
        self.published = tail.position
        return tail

    def _apply_tail(self, tail: LogTail) -> None:
        if self.state.copying is not None and not self.state.copying.swapped:
            # No table was replaced yet, and the node prefers a replay now.
            self._replica.state = replace(self.state, copying=None)
            remove_workspaces(self.directory.disk)
        self._at_hand, self._pace = tail, None
        self._replays.begin(tail, self.state.worker_id, self.state.position, self._transactions)
        try:
            self._driver.take(*self._replica.range_of(tail))
        except TxLogError as error:
            self._end_replay(error)
            raise
        self.report(self._pace)
        self._replays.applied(self.state.position, self._transactions)

    def _end_replay(self, error: TxLogError) -> None:
        # While the node cannot be reached the replay goes on later, and cannot be reported.
        if not isinstance(error, TransportError):
            self._replays.end(str(error), self.state.position, self._transactions)

    def repair(self, name: str, *, local: bool) -> RepairOutcome:
        """Repair a table that somebody else wrote to: its rows are those of the log again.

        Args:
            local: Use this site's own files, even if another site could lend a copy.

        Raises:
            TxLogError: As `TableRepair`.
        """
        repair = self._table_repair()
        found = repair.diagnose(name)
        if found.way is RepairWay.NOTHING:
            return RepairOutcome(found=found)
        repair.begin(found)
        self._replica.take_over(repair.state)
        # With this report the node knows that the table is wrong, and looks for a donor.
        self.report()
        found = replace(found, copy=repair.copy_offered())
        if found.copy and not local:
            return RepairOutcome(found=found)
        with self._heartbeat():
            try:
                return repair.run(found)
            finally:
                self._replica.take_over(repair.state)
                self.report()

    def _table_repair(self) -> TableRepair:
        return TableRepair(
            session=self._session,
            source=self.source,
            lake=self.directory.place,
            disk=self.directory.disk,
            state=self.state,
            info=self.info,
            directory=self.directory,
        )

    # --- what the driver calls ------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Applied position."""
        return self.state.position

    @property
    def may_copy(self) -> bool:
        """Whether this worker may replace its replica by a copy."""
        return self._copies is not None

    def apply_to(self, last: int) -> None:
        """Apply batches up to a position; errors as `Replica.apply_batch`."""
        while self.state.position < last:
            tail = self._at_hand
            if not tail.segments or not _continues(tail, self.state.position):
                tail = self._at_hand = self._tail(wait_s=0.0)
            began = monotonic()
            batch = self._apply_batch(tail)
            self._batches += 1
            self._transactions += batch.transactions
            self._pace = cost_of(batch, monotonic() - began)

    def _apply_batch(self, tail: LogTail) -> Batch:
        """Apply the next batch; after a failure fetch its damaged files and apply it once more."""
        try:
            return self._replica.apply_batch(tail)
        except DivergedError:
            raise
        except ApplyError as error:
            if not self._repair_files(tail, error):
                raise
        return self._replica.apply_batch(tail)

    def _repair_files(self, tail: LogTail, error: ApplyError) -> bool:
        """Have the node check the batch's files; return whether it fetched some again.

        Raises:
            PayloadLostError: No site has an undamaged copy of a file (definite).
        """
        try:
            found = self.source.repair_files(*self._replica.range_of(tail))
        except TxLogError as failure:
            _logger.warning("the node did not check the files of the batch: %s", failure)
            return False
        if found["fetched"]:
            self._replica.forget_failures()
        if not found["lost"]:
            return bool(found["fetched"])
        lost = found["lost"][0]
        asked = "; ".join(f"{site}: {why}" for site, why in lost["asked"].items())
        refusal = PayloadLostError(
            f"position {lost['position']:,} of table {lost['table']!r} "
            f"(run {lost['run'] or 'not known any more'}) needs the file {lost['path']}, and no "
            f"site has it whole.  {self.info.node_id}: {lost['reason']}"
            + (f"; {asked}" if asked else "; each site writes such files for itself"),
            hint="Put a good copy of the file from a backup into the payload store, or bring this "
            "replica past the position: copy it from another site (sparktxlog catch-up), or "
            "restore an image (sparktxlog restore).  Until then the table stands still here.",
            path=lost["path"],
            position=lost["position"],
            sites=[self.info.node_id, *lost["asked"]],
        )
        self._replica.explain(lost["table"], refusal)
        raise refusal from error

    def request(self, first: int, last: int) -> tuple[int, int]:
        """Ask the node for a missing range.

        Raises:
            ExpiredError: Its log no longer has it (definite).
            TransportError: It is not published there yet, or the node cannot be reached.
        """
        tail = self._tail(wait_s=POLL_S)
        if not tail.segments:
            raise TransportError(f"the node has not published position {first} to {last} yet")
        if not _continues(tail, self.state.position):
            raise ExpiredError(f"the log no longer holds position {first}")
        self._at_hand = tail
        return self._replica.range_of(tail)

    def give_up(self, reason: str) -> None:
        """Tell the node that a batch keeps failing: only a copy helps."""
        self._reporter.report(self.state, irreparable=reason)

    def open_copy(self) -> ReplicaCopy:
        """Begin a copy, or resume the unfinished one.

        Raises:
            ApplyError: This worker must not copy (definite).
        """
        if self._copies is None:
            raise ApplyError("this worker was started without copying", hint="Drop --no-copy.")
        self._replays.end("given up for a copy", self.state.position, self._transactions)
        answer = self._reporter.answer
        return ReplicaCopy(
            self._session,
            self.source,
            self.directory,
            self.state,
            self.info,
            report=self._reporter.report,
            open_fetcher=self._open_fetcher,
            options=self._copies,
            verdict=answer.verdict,
            contested=answer.contested,
        )

    def close_copy(self, copy: ReplicaCopy, outcome: CopyOutcome | None) -> None:
        """Take over the state that a copy left."""
        copy.close()
        self._replica.take_over(copy.state)
        if outcome is not None:
            self._copied.append(outcome)

    def report(self, pace: ReplayCost | None = None) -> None:
        """Report the replica's state, and keep the node's answer."""
        half = self.state.copying is not None and self.state.copying.swapped
        self._reporter.report(
            self.state,
            pace=pace,
            irreparable="a copy was begun and is not finished" if half else "",
        )

    def obstacle(self) -> str:
        """Return why this worker has to stop, empty = it goes on."""
        answer = self._reporter.answer
        if self._wants_copy() or answer.plan not in ("copy", "stop") or answer.of_tables:
            return ""
        if answer.plan == "copy" and self._replays_anyway and answer.verdict in _REPLAYABLE:
            return ""
        how = "" if answer.plan != "copy" else "  Run jobs/catch_up.py, or apply without --no-copy."
        return f"the node says {answer.verdict}: {answer.reason or answer.plan}.{how}"

    # --- following ----------------------------------------------------------------------------

    def spark_runs(self) -> bool:
        """Return whether Spark still runs."""
        try:
            return not self._session.sparkContext._jsc.sc().isStopped()
        except Exception:  # noqa: BLE001 - its JVM is gone
            return False

    def is_foreign(self) -> bool:
        """Return whether the node's verdict is that the replica belongs to another log."""
        return self._reporter.answer.verdict == ReplicaVerdict.FOREIGN.value

    def note_error(self, text: str) -> None:
        """Set why the worker stands still, for its reports; empty = it goes on."""
        self._reporter.fail(text)

    def go_on(self) -> None:
        """Recount or copy if the node asks for it, else wait for segments and apply them."""
        self._recount()
        self._scheduled.step(self.state, self._tell_recount)
        if self._wants_copy():
            self._recount_and_copy()
            return
        tail = self._tail(wait_s=POLL_S)
        if tail.segments:
            self._apply_tail(tail)

    # --- a copy -------------------------------------------------------------------------------

    def _wants_copy(self) -> bool:
        answer = self._reporter.answer
        waits = answer.of_tables and monotonic() < self._no_copy_before
        return self._copies is not None and answer.plan == "copy" and not waits

    def _recount(self) -> None:
        """Recount the tables that the node asks for: other sites report others (S3), or people."""
        tables = self._reporter.answer.recount
        if not tables:
            self._recounted = (-1, ())  # what is asked for from now on is another request
        if tables and (self.state.position, tables) != self._recounted:
            # Once for each position: a scan that fails is not repeated endlessly.
            self._recounted = (self.state.position, tables)
            self._tell_recount(self._count(self._session, self.state, tables))

    def _tell_recount(self, found: Recount) -> None:
        self._reporter.answer = self.source.take_recount(found)

    def _count_aside(self, state: ReplicaState, table: str) -> Recount:
        """Recount a table, in a thread and a session of its own."""
        return self._count(applier_session(self._session), state, [table])

    def _count(self, session: SparkSession, state: ReplicaState, tables: Iterable[str]) -> Recount:
        return recount(session, self.directory.place, state, self.info.node_id, tables)

    def _recount_and_copy(self) -> None:
        """Recount and copy if the node's last answer asks for it."""
        self._recount()
        if self._wants_copy():
            self._repair_stopped()
        if not self._wants_copy():
            return
        try:
            self._copy(self._reporter.answer.reason)
        except TxLogError as error:
            begun = self.state.copying is not None and self.state.copying.swapped
            final = isinstance(error, (DivergedError, InvariantViolation))
            if begun or final or not self._reporter.answer.of_tables:
                raise
            _logger.error("the tables that stand still are not copied, the others go on: %s", error)
            self._no_copy_before = monotonic() + COPY_PAUSE_S
            self._driver.reset()

    def _repair_stopped(self) -> None:
        """Spare a copy if tables that others wrote to are all that is wrong."""
        diverged = self._reporter.answer.verdict == ReplicaVerdict.DIVERGED.value
        if not diverged or not self.state.diverged or self.state.copying is not None:
            return
        repair = self._table_repair()
        try:
            done = repair_stopped(repair)
        finally:
            self._replica.take_over(repair.state)
        self._repaired += done
        if done:
            self.report()

    def _copy(self, reason: str) -> None:
        """Copy a donor's replica, or resume an unfinished copy, until this one is IN_SYNC.

        Raises:
            TxLogError: As `ReplicaDriver.copy`.
        """
        self._pace = None
        self._driver.copy(reason)
        if self._pace is not None:
            # The donor was behind this replica: the rest was requested and applied at once.
            self.report(self._pace)


def _continues(tail: LogTail, position: int) -> bool:
    return tail.segments[0].first <= position + 1 <= tail.segments[-1].last
