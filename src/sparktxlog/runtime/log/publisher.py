"""The publisher: a thread that writes the ordered queue to Delta, a few times a second.

It takes ordered entries from the front, cut at signature boundaries (S2a), has `storage` write
the inline rows and the queue table, and marks them published in the front; then workers see them.
A publish starts at once if the last one began `publish-interval` ago or earlier, so a single
transaction is published without delay and a flood in batches.

A failure stops nothing else: it is told, shown in `ready`, and tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Protocol

import structlog

from sparktxlog.errors import (
    BusyError,
    CorruptLogError,
    ExpiredError,
    FrontLostError,
    NewerReleaseError,
    TxLogError,
)
from sparktxlog.model.copying import Transfer
from sparktxlog.model.report import WorkerReport
from sparktxlog.model.table import TableDefinition
from sparktxlog.runtime.log.epoch_history import EpochHistory
from sparktxlog.runtime.log.pruning import Maintenance, Pruning
from sparktxlog.runtime.process import trim_memory
from sparktxlog.storage.interfaces import StoredEntry, Write
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.history_tables import EpochTable, ReportTables, TransferTable
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME, QueueTable, set_aside
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.storage.segments.publishing import publish, restored_rows
from sparktxlog.supervision import Supervisor

_log = structlog.get_logger("sparktxlog.publisher")

#: Bounds of what is published with one commit.
_MAX_RUNS = 256
_MAX_TRANSACTIONS = 30_000
#: Least time between two commits to the tables of reports, seconds.
_REPORTS_INTERVAL_S = 5.0
_MAX_REPORTS = 4_096
_TRIM_S = 5.0
#: An epoch change that takes longer is no reason to publish nothing.
_HELD_MAX_S = 0.25

#: Names of what this thread does, where it fails.
_PUBLISHING, _REST = "publishing", "the publisher's rest"

#: Report, verdict, plan, reason.
JudgedReport = tuple[WorkerReport, str, str, str]


class PublishingNode(Protocol):
    """The node that publishes; called in the publisher's thread."""

    def tables(self) -> Mapping[str, TableDefinition]:
        """Return the catalog at or after the last ordered entry."""

    def write(self, writes: Sequence[Write]) -> None:
        """Make writes durable in the front's writer thread and return when they are."""

    def on_published(self, position: int, seconds: float) -> None:
        """Note that the queue is published up to a position; seconds it took."""

    def on_rest(self) -> None:
        """Note that the work that there was is done."""


class Publisher:
    """Publishes in its own thread.

    Args:
        log_root: Directory of the log's Delta tables, and the name of the log in them.
        interval_s: Least time between the starts of two publishes.
        signature_interval: Where segments end, positions.
        published: Position and Delta version where a former start stopped.
        pruning: Shortens the log in this thread; None = nothing does.
        joins: Whether this node joins a log: a table of before is another one's.
    """

    def __init__(
        self,
        node: PublishingNode,
        *,
        front: Journal,
        payloads: PayloadStore,
        log_root: Path,
        lineage: str,
        interval_s: float,
        signature_interval: int,
        published: tuple[int, int],
        epochs: EpochHistory,
        instance: str,
        pruning: Pruning | None = None,
        joins: bool = False,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._node = node
        self._supervisor = supervisor or Supervisor()
        self._front = front
        self._payloads = payloads
        self._log_root = log_root
        self._lineage = lineage
        self._interval_s = interval_s
        self._signature_interval = signature_interval
        self._published, self._version = published
        self._epochs = epochs
        self._instance = instance
        self._joins = joins
        self._queue: QueueTable | None = None
        self._reports: deque[JudgedReport] = deque(maxlen=_MAX_REPORTS)
        self._transfers: deque[Transfer] = deque(maxlen=_MAX_REPORTS)
        self._reported_at = float("-inf")
        #: Position and time of the last return of memory.
        self._trimmed_at = (self._published, monotonic())
        self._changed = threading.Condition()
        self._ordered = self._published
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._pruning = pruning
        #: True while it writes; it takes a good part of a processor then.
        self.working = False
        self._held = False

    def open(self) -> None:
        """Open the queue table and compare it with the front, before anything is told to anybody.

        Whatever else fails is left to the thread, which tries again.

        Raises:
            FrontLostError: The front lacks what the table holds: the node must not start.
            NewerReleaseError: A later release wrote the table (definite).
        """
        try:
            self._opened()
        except (FrontLostError, NewerReleaseError):
            raise
        except Exception as error:  # noqa: BLE001
            self._supervisor.note(_PUBLISHING, error)

    def start(self, ordered: int) -> None:
        """Start; `ordered` is the end of the synchronized queue."""
        self._ordered = ordered
        self._thread.start()

    @property
    def failure(self) -> TxLogError | None:
        """Why the last attempt failed; None after a success."""
        return self._supervisor.failure(_PUBLISHING)

    def ordered(self, position: int) -> None:
        """Tell that the queue has grown; from any thread."""
        with self._changed:
            self._ordered = position
            self._changed.notify()

    def hold(self, held: bool) -> None:
        """Begin no publish while all stand still for an epoch change; it lasts a moment."""
        with self._changed:
            self._held = held
            self._changed.notify()

    def note(self, report: JudgedReport) -> None:
        """Let a report be appended to the tables of reports; from any thread."""
        self._reports.append(report)

    def note_transfer(self, transfer: Transfer) -> None:
        """Let a finished or failed catch-up be appended to `log/transfers`; from any thread."""
        self._transfers.append(transfer)

    def maintain(self) -> Future[Maintenance]:
        """Ask for a round of shortening the log now; from any thread.

        Raises:
            StorageError: The node is stopping, or has nothing that shortens the log (definite).
        """
        if self._pruning is None or self._stopping:
            raise BusyError("the node is stopping", hint="Ask again when it is back.")
        asked = self._pruning.ask()
        with self._changed:
            self._changed.notify()
        return asked

    def stop(self) -> None:
        """Finish the publish under way and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if self._pruning is not None:
            self._pruning.close()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        attempt = self._supervisor.attempt
        working = True  # opens the tables before the first transaction waits for them
        while working:
            started = monotonic()
            self.working = True
            if pause_s := attempt(_PUBLISHING, self._work_off):
                self._queue = None
                self._pause(pause_s)
            attempt(_REST, self._shorten)
            self.working = False
            attempt(_REST, self._node.on_rest)
            working = self._wait(started)

    def _work_off(self) -> None:
        self._publish_all()
        self._append_reports()
        self._append_transfers()
        self._append_epochs()
        self._trim()

    def _wait(self, started: float) -> bool:
        """Wait until there is something to publish and the interval is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopping or self._ordered > self._published or self._is_shortening(),
                timeout=_REPORTS_INTERVAL_S,
            )
            rest = started + self._interval_s - monotonic()
            full = self._published + _MAX_TRANSACTIONS
            if rest > 0:
                self._changed.wait_for(
                    lambda: self._stopping or self._ordered >= full, timeout=rest
                )
            if self._held:
                self._changed.wait_for(
                    lambda: self._stopping or not self._held, timeout=_HELD_MAX_S
                )
            return not self._stopping

    def _shorten(self) -> None:
        """Shorten the log for as long as publishing can wait."""
        until = monotonic() + self._interval_s
        while self._pruning is not None and self._pruning.step(self._published, self):
            if self._stopping or monotonic() > until:
                return

    def _is_shortening(self) -> bool:
        return self._pruning is not None and self._pruning.asked

    def expire_tables(self, position: int, before: datetime) -> None:
        """Remove rows up to a position, and reports of before a time; in this thread.

        Raises:
            StorageError: Some of it may be done; do it again.
        """
        self._opened().expire(position)
        if (self._log_root / "signatures").exists():
            self._report_tables.expire(before)
        if (self._log_root / "transfers").exists():
            self._transfer_table.expire(before)
        if (self._log_root / "epochs").exists():
            self._epoch_table.expire(before)

    # Made by the first use: most nodes have no transfers, and opening a table reads it.

    @cached_property
    def _report_tables(self) -> ReportTables:
        return ReportTables(self._log_root)

    @cached_property
    def _transfer_table(self) -> TransferTable:
        return TransferTable(self._log_root)

    @cached_property
    def _epoch_table(self) -> EpochTable:
        return EpochTable(self._log_root, self._instance)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, timeout=seconds)

    def _publish_all(self) -> None:
        queue = self._opened()
        with self._changed:
            goal = self._ordered
        while self._published < goal and not self._stopping:
            began = monotonic()
            # How many runs first, then their payloads: a backlog is never read into memory.
            ahead = bounded(self._front.read_queue(self._published, _MAX_RUNS, payloads=False))
            if not ahead:
                return
            entries = self._front.read_queue(self._published, len(ahead), payloads=True)
            marks = publish(
                entries,
                signature_interval=self._signature_interval,
                tables=self._node.tables(),
                payloads=self._payloads,
                queue=queue,
                creations=self._front.read_created,
            )
            self._node.write(marks)
            self._published, self._version = marks[-1].position, marks[-1].version
            self._node.on_published(self._published, monotonic() - began)

    def _opened(self) -> QueueTable:
        """Return the queue table, repaired from the front if a crash took rows of it."""
        if self._queue is not None:
            return self._queue
        extent = self._front.read_extent()
        kept_after = extent.kept_after
        if self._version < 0 and (extent.resets or self._joins):
            aside = set_aside(self._log_root, extent.resets)
            if aside is not None:
                _log.warning("queue table of before the snapshot was set aside", path=str(aside))
        queue = QueueTable(
            self._log_root, self._lineage, published_version=self._version, kept_after=kept_after
        )
        self._compare(queue)
        if max(queue.position, kept_after) < self._published:
            _log.warning(
                "queue table was behind and is restored",
                held=queue.position,
                published=self._published,
            )
        while max(queue.position, kept_after) < self._published:
            # What is expired need not come back.
            stored = self._front.read_queue(
                max(queue.position, kept_after), _MAX_RUNS, payloads=False
            )
            lost = [item for item in stored if item.entry.end <= self._published]
            if not lost:
                raise CorruptLogError(
                    f"the queue table ends at {queue.position}, {self._published} was published, "
                    "and the front no longer holds what lies between",
                )
            queue.append(restored_rows(lost), previous_hash=lost[0].entry.previous_hash)
        self._queue = queue
        return queue

    def _compare(self, queue: QueueTable) -> None:
        """Refuse a front that lacks what was published: it is written before the table is.

        Raises:
            FrontLostError: The front is an older one, or was lost.
        """
        end = queue.end
        if not end.position:
            return
        try:
            known = self._front.read_hash_at(end.position)
        except ExpiredError:
            return  # the table is behind what the front remembers
        if known is None or (end.chain_hash is not None and end.chain_hash != known):
            raise end.contradicts(self._log_root / QUEUE_NAME, known)

    def _trim(self) -> None:
        """Give memory back now and then, if there was work (see `process`)."""
        if self._published > self._trimmed_at[0] and monotonic() - self._trimmed_at[1] > _TRIM_S:
            self._trimmed_at = (self._published, monotonic())
            trim_memory()

    def _append_reports(self) -> None:
        if not self._reports or monotonic() - self._reported_at < _REPORTS_INTERVAL_S:
            return
        taken = [self._reports.popleft() for _ in range(len(self._reports))]
        self._reported_at = monotonic()
        self._report_tables.append(taken)

    def _append_transfers(self) -> None:
        if not self._transfers:
            return
        taken = list(self._transfers)
        self._transfer_table.append(taken)
        for _ in taken:
            self._transfers.popleft()

    def _append_epochs(self) -> None:
        """Append the epochs that the table never held, whoever noted them (see `EpochHistory`)."""
        if not self._epochs.behind(0):
            return
        if new := self._epochs.behind(self._epoch_table.number):
            self._epoch_table.append(new)


def bounded(entries: Sequence[StoredEntry]) -> list[StoredEntry]:
    """Return the leading entries that are published with one commit, at least one."""
    taken: list[StoredEntry] = []
    transactions = 0
    for stored in entries:
        transactions += stored.entry.header.n
        if taken and transactions > _MAX_TRANSACTIONS:
            break
        taken.append(stored)
    return taken
