"""The publisher: a thread that writes the ordered queue to Delta, a few times a second.

It reads ordered entries from the journal, cuts them at signature boundaries (S2a), writes inline
rows and the queue table, and marks the entries as published in the journal.  Then workers get them.
A single transaction is published without delay, many transactions in batches.  Between the starts
of two publishes are at most `publish-interval` seconds, for each costs the same whatever it holds;
fewer if a reader waits for what is ordered, or if so much is ordered that one publish is full.

A failure stops nothing else: it is logged, shown in `ready`, and tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pyarrow as pa
import structlog

from sparktxlog.errors import (
    BusyError,
    CorruptLogError,
    DiskFullError,
    ExpiredError,
    JournalLostError,
    NewerReleaseError,
    TxLogError,
)
from sparktxlog.model.report import WorkerReport
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.epoch_history import EpochHistory
from sparktxlog.runtime.log.pruning import LogOwner, Maintenance, Pruning
from sparktxlog.runtime.membership.standings import INSTANCE
from sparktxlog.runtime.process import trim_memory
from sparktxlog.storage.interfaces import StoredEntry
from sparktxlog.storage.log_tables.history_tables import HistoryTables
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME, QueueTable, set_aside
from sparktxlog.storage.segments.publishing import publish, restored_rows

_log = structlog.get_logger("sparktxlog.publisher")

#: Most runs and transactions in one commit.
_MAX_RUNS = 256
_MAX_TRANSACTIONS = 30_000
#: Files are merged after a publish, unless more transactions than so many wait for the next one.
_BEHIND = 10_000
#: Between the starts of two publishes for waiting readers: least time in seconds, and at least so
#: many times what the last one took, so that publishing leaves the processor to others.
_SOONEST_S, _TIMES_TAKEN = 0.02, 5.0
#: Least time between two commits to the tables of reports, seconds.
_REPORTS_INTERVAL_S = 5.0
_MAX_REPORTS = 4_096
_TRIM_S = 5.0
#: Publishing waits no longer for an epoch change, seconds.
_HELD_MAX_S = 0.25
#: How long a stop waits for the present publish, and for one that a bucket may hold up, seconds.
_LAST_S, _LAST_IN_BUCKET_S = 30.0, 5.0

#: Names of this thread's tasks in messages about failures.
_PUBLISHING, _REST = "publishing", "the publisher's rest"


class Publisher:
    """Publishes and shortens the log in its own thread."""

    def __init__(
        self, base: Foundation, log: LogOwner, epochs: EpochHistory, pruning: Pruning
    ) -> None:
        config, state = base.config, base.state
        self._log = log
        self._supervisor = base.supervisor
        self._journal = base.journal
        self._payloads = base.payloads
        self._log_root = config.data_dir / "log"
        self._log_id = config.log_id
        #: Time between the starts of two publishes, if no reader waits, seconds.
        self._interval_s = config.publish_interval
        #: Positions between two signature boundaries.
        self._signature_interval = config.signature_interval
        #: Last published position, and the Delta version with it.
        self._published, self._version = state.published, state.published_version
        self._epochs = epochs
        self._reserve = base.reserve
        self._checkpoint_every = config.log_checkpoint_interval
        instance = state.values[INSTANCE].decode()
        self._histories = HistoryTables(
            self._log_root, instance, checkpoint_every=self._checkpoint_every
        )
        #: Whether this node joins a log: an existing table is that of another log.
        self._joins = base.order is not None
        self._queue: QueueTable | None = None
        self._reports: deque[WorkerReport] = deque(maxlen=_MAX_REPORTS)
        #: Table below `log/`, and rows for it.
        self._rows: deque[tuple[str, Sequence[Mapping[str, Any]]]] = deque(maxlen=_MAX_REPORTS)
        self._has_lag = False
        self._lag_retention = timedelta(seconds=config.lag_retention)
        self._reported_at = float("-inf")
        #: Position and time when memory was last returned to the system.
        self._trimmed_at = (self._published, monotonic())
        self._changed = threading.Condition()
        self._ordered = self._published
        #: Positions for which readers wait.
        self._wanted: list[int] = []
        #: The thread waits for this position, among other things.
        self._awaited = self._published + 1
        self._stopping = False
        #: A stop waits no longer for the thread, which changes nothing from then on.
        self._given_up = False
        self._last_s = _LAST_S if config.payload_url is None else _LAST_IN_BUCKET_S
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._pruning = pruning
        #: True while it works, and uses much of a processor.
        self.working = False
        self._held = False

    def open(self) -> None:
        """Open the queue table and compare it with the journal, before the node speaks to anybody.

        The thread retries after any other failure.

        Raises:
            JournalLostError: The journal lacks what the table holds: the node must not start.
            NewerReleaseError: A later release wrote the table (definite).
        """
        try:
            self._opened()
        except (JournalLostError, NewerReleaseError):
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
        """Note the new end of the queue; from any thread."""
        with self._changed:
            self._ordered = position
            if position >= self._awaited:  # else it would wake up for nothing
                self._changed.notify()

    @contextmanager
    def wanted(self, position: int) -> Iterator[None]:
        """Publish a position soon once it is ordered: a reader waits for it; from any thread."""
        with self._changed:
            self._wanted.append(position)
            self._awaited = min(self._awaited, position)
            if position <= self._ordered:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._wanted.remove(position)

    def hold(self, held: bool) -> None:
        """Begin no publish during an epoch change, for a moment at most."""
        with self._changed:
            self._held = held
            self._changed.notify()

    def note(self, report: WorkerReport) -> None:
        """Have the signatures of a report appended to their table; from any thread."""
        self._reports.append(report)

    def note_rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Have rows appended to a history that nothing else keeps, soon; from any thread."""
        with self._changed:
            self._rows.append((table, rows))
            self._changed.notify()

    def maintain(self) -> Future[Maintenance]:
        """Ask for a round of shortening the log now; from any thread.

        Raises:
            BusyError: The node is stopping (definite).
        """
        if self._stopping:
            raise BusyError("the node is stopping", hint="Ask again after its start.")
        asked = self._pruning.ask()
        with self._changed:
            self._changed.notify()
        return asked

    def stop(self) -> None:
        """Finish the present publish and end the thread.

        A bucket that is away is not waited for: nothing of that publish counts, and the next start
        does it again.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=self._last_s)
            self._given_up = self._thread.is_alive()
        if self._given_up:
            _log.warning("the present publish is broken off", published=self._published)
        self._pruning.close()

    def _check_goes_on(self) -> None:
        """Check before this thread changes something on the node's own disk.

        Raises:
            BusyError: The node has stopped without this thread (definite).
        """
        if self._given_up:
            raise BusyError("the node has stopped", hint="Its next start publishes again.")

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        attempt = self._supervisor.attempt
        working = True  # opens the tables before the first transaction needs them
        while working:
            started = monotonic()
            self.working = True
            pause_s = attempt(_PUBLISHING, self._work_off)
            if self._given_up:
                return
            if pause_s:
                self._queue = None
                full = isinstance(self.failure, DiskFullError)
                if not (full and self._reserve.take()):
                    self._pause(pause_s)
            attempt(_REST, self._shorten)
            if self._given_up:
                return
            self.working = False
            attempt(_REST, self._log.on_rest)
            working = self._wait(started)

    def _work_off(self) -> None:
        try:
            self._publish_all()
        finally:  # a bucket that is away keeps nothing from the node's own disk
            self._check_goes_on()
            self._append_reports()
            self._append_rows()
            self._append_epochs()
        self._trim()

    def _wait(self, started: float) -> bool:
        """Wait until there is something to publish and its time has come.

        Args:
            started: When the last publish did.
        """
        ended = monotonic()
        with self._changed:
            self._awaited = self._published + 1
            self._changed.wait_for(
                lambda: bool(
                    self._stopping
                    or self._ordered > self._published
                    or self._pruning.asked
                    or self._rows
                ),
                timeout=_REPORTS_INTERVAL_S,
            )
            self._wait_for_more(started, ended)
            if self._held:
                self._changed.wait_for(
                    lambda: self._stopping or not self._held, timeout=_HELD_MAX_S
                )
            return not self._stopping

    def _wait_for_more(self, started: float, ended: float) -> None:
        """Wait until one publish is full, a reader waits, or the interval is over."""
        taken_s = min(max(_SOONEST_S, _TIMES_TAKEN * (ended - started)), self._interval_s)
        full = self._awaited = self._published + _MAX_TRANSACTIONS

        def is_wanted() -> bool:
            self._awaited = min([full, *self._wanted])
            return self._ordered >= self._awaited or self._stopping

        self._changed.wait_for(
            lambda: self._ordered >= full or self._stopping,
            timeout=max(0.0, started + taken_s - monotonic()),
        )
        self._changed.wait_for(
            is_wanted, timeout=max(0.0, started + self._interval_s - monotonic())
        )

    def _shorten(self) -> None:
        """Shorten the log, but only as long as publishing can wait."""
        until = monotonic() + self._interval_s
        while self._pruning.step(self._published, self._expire_tables):
            if self._stopping or monotonic() > until:
                return
        self._tidy()

    def _tidy(self) -> None:
        """Merge small files of the queue table, but while publishing is behind as few as it may."""
        while (queue := self._queue) is not None and not self._stopping:
            if not queue.tidy(late=self._is_behind()) or self._ordered > self._published:
                return

    def _expire_tables(self, position: int, before: datetime) -> None:
        """Remove rows up to a position, and reports from before a time; in this thread.

        Raises:
            StorageError: Some of it may be done; repeat it.
        """
        self._check_goes_on()
        self._opened().expire(position)
        self._histories.expire(before, datetime.now(UTC) - self._lag_retention)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, timeout=seconds)

    def _publish_all(self) -> None:
        queue = self._opened()
        with self._changed:
            goal = self._ordered
        while self._published < goal and not self._stopping:
            began = monotonic()
            # Count runs first, then read their payloads: a backlog never gets into memory.
            ahead = bounded(self._journal.read_queue(self._published, _MAX_RUNS, payloads=False))
            if not ahead:
                return
            entries = self._journal.read_queue(self._published, len(ahead), payloads=True)
            marks = publish(
                entries,
                signature_interval=self._signature_interval,
                tables=self._log.tables(),
                payloads=self._payloads,
                queue=queue,
                creations=self._journal.read_created,
                older=self._journal.read_definition,
                prepared=self._journal.read_prepared,
                goes_on=self._check_goes_on,
            )
            self._log.mark(marks)
            self._published, self._version = marks[-1].position, marks[-1].version
            self._log.on_published(self._published, monotonic() - began)
        if not self._is_behind():
            # Arrow's pool keeps freed memory, 50 MB after a burst (measured).  To get it back for
            # the next publish costs page faults, so it is kept while there are many.
            pa.default_memory_pool().release_unused()

    def _is_behind(self) -> bool:
        return self._ordered - self._published > _BEHIND

    def _opened(self) -> QueueTable:
        """Return the queue table; restore rows that a crash took from the journal."""
        if self._queue is not None:
            return self._queue
        extent = self._journal.read_extent()
        kept_after = extent.kept_after
        if self._version < 0 and (extent.resets or self._joins):
            aside = set_aside(self._log_root, extent.resets)
            if aside is not None:
                _log.warning("queue table from before the summary was moved", path=str(aside))
        queue = QueueTable(
            self._log_root,
            self._log_id,
            published_version=self._version,
            kept_after=kept_after,
            checkpoint_every=self._checkpoint_every,
        )
        self._compare(queue)
        if max(queue.position, kept_after) < self._published:
            _log.warning(
                "queue table is behind the journal and is restored",
                held=queue.position,
                published=self._published,
            )
        while max(queue.position, kept_after) < self._published:
            # Expired rows are not restored.
            stored = self._journal.read_queue(
                max(queue.position, kept_after), _MAX_RUNS, payloads=False
            )
            lost = [item for item in stored if item.entry.end <= self._published]
            if not lost:
                raise CorruptLogError(
                    f"the queue table ends at {queue.position}, {self._published} was published, "
                    "and the journal no longer holds the positions in between",
                )
            queue.append(restored_rows(lost), previous_hash=lost[0].entry.previous_hash)
        self._queue = queue
        return queue

    def _compare(self, queue: QueueTable) -> None:
        """Refuse a journal that lacks published entries: it is always written before the table.

        Raises:
            JournalLostError: The journal is an older one, or was lost.
        """
        end = queue.end
        if not end.position:
            return
        try:
            known = self._journal.read_hash_at(end.position)
        except ExpiredError:
            return  # the table ends before the kept part of the journal
        if known is None or (end.chain_hash is not None and end.chain_hash != known):
            raise end.contradicts(self._log_root / QUEUE_NAME, known)

    def _trim(self) -> None:
        """Return memory to the system from time to time, if there was work (see `process`)."""
        if self._published > self._trimmed_at[0] and monotonic() - self._trimmed_at[1] > _TRIM_S:
            self._trimmed_at = (self._published, monotonic())
            trim_memory()

    def _append_reports(self) -> None:
        if not self._reports or monotonic() - self._reported_at < _REPORTS_INTERVAL_S:
            return
        taken = [self._reports.popleft() for _ in range(len(self._reports))]
        self._reported_at = monotonic()
        self._histories.append_reports(taken)

    def _append_rows(self) -> None:
        if not self._has_lag:  # readers find a table, before anything is behind
            self._histories.make("lag")
            self._has_lag = True
        while self._rows:
            self._histories.append_rows(*self._rows[0])
            self._rows.popleft()

    def _append_epochs(self) -> None:
        """Append the epochs that the table lacks (see `EpochHistory`)."""
        if not self._epochs.after(0):
            return
        if new := self._epochs.after(self._histories.last_epoch):
            self._histories.append_epochs(new)


def bounded(entries: Sequence[StoredEntry]) -> list[StoredEntry]:
    """Return the first entries, as many as one commit publishes, at least one."""
    taken: list[StoredEntry] = []
    transactions = 0
    for stored in entries:
        transactions += stored.entry.header.n
        if taken and transactions > _MAX_TRANSACTIONS:
            break
        taken.append(stored)
    return taken
