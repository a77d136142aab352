"""Shortens the log as `retention` decides, in the publisher's thread.

The steps of a round; after a crash between two of them the next round repairs it, and the first
round runs right after the start:

1. journal: `ExpireLog`, one transaction; from now on readers get ExpiredError
2. payload store: remove the files of expired segments, a bounded number at a time, each time
   followed by `DropExpired`, which forgets those segments (until then they list what to remove)
3. Delta tables of `log/`: a commit removes the files that hold only expired rows, then VACUUM
4. payload store: remove old files that no transaction names
5. journal: shrink the file

Each call of `step` is bounded, so publishing goes on in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Protocol

import structlog

from sparktxlog.errors import DiskFullError, StorageError, TxLogError
from sparktxlog.files.durability import storage_error
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.retention import RetentionView, Shortening, decide
from sparktxlog.storage.interfaces import (
    DropExpired,
    DropPlaced,
    ExpireLog,
    MarkPublished,
    SegmentCut,
    ShrinkJournal,
    Write,
)
from sparktxlog.storage.payloads.bucket_expiry import upkeep_of
from sparktxlog.storage.payloads.payload_expiry import (
    inline_files,
    named_files,
    size_of,
    staged_files,
)
from sparktxlog.supervision import foreseen

_SHORTENING = "shortening the log"
_log = structlog.get_logger("sparktxlog.retention")

#: Seconds between two rounds.
INTERVAL_S = 60.0
_FILES_SEGMENTS = 64
_PAGE = 500
#: The journal shrinks if it has so many free bytes: in a periodic round, and in a requested one.
_FREE_BYTES = 8 << 20
_FREE_BYTES_ASKED = 64 << 10
#: Seconds between two searches for files that no transaction names, and their least age.
_UNNAMED_S = 3_600.0
#: Pause after counting the bytes of all files, as a multiple of the time that it took.
_COUNT_PAUSE = 200


#: Removes what expired from the log's tables: rows up to a position, files from before a time.
ExpireTables = Callable[[int, datetime], None]


class LogOwner(Protocol):
    """What the publisher's thread asks of the owner of the log, which is on the event loop."""

    def tables(self) -> Mapping[str, TableDefinition]:
        """Return the tables at or after the last ordered entry."""

    def write(self, writes: Sequence[Write]) -> None:
        """Make writes durable in the journal's writer thread and return when they are."""

    def mark(self, marks: Sequence[MarkPublished]) -> None:
        """Make durable that positions are published; as `write`."""

    def retention_view(self) -> RetentionView:
        """Return the inputs of `retention.decide`, read on the event loop."""

    def on_published(self, position: int, seconds: float) -> None:
        """Note that the queue is published up to a position, and how many seconds that took."""

    def on_rest(self) -> None:
        """Note that the publisher has nothing to do now."""

    def on_kept(self, position: int) -> None:
        """Note that the log has expired up to a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Result of a round."""

    #: Positions up to here are expired.
    pruned_to: int
    log_bytes_before: int
    log_bytes: int
    #: Removed transactions, and removed files of the payload store.
    transactions: int
    files: int
    #: The exceeded limits.
    limits: tuple[str, ...]
    #: Sites whose worker needs a copy from now on.
    overrun: tuple[str, ...]
    #: Workers, peers and copies that keep the log longer than the limits.
    held_by: tuple[str, ...]


class Pruning:
    """Rounds of shortening.  Call `step` in the publisher's thread, all else in any."""

    def __init__(self, base: Foundation, log: LogOwner) -> None:
        self._log = log
        self._supervisor = base.supervisor
        self._reserve = base.reserve
        self._journal = base.journal
        self._store = base.payloads
        self._payloads = upkeep_of(base.payloads)
        self._budgets, self._unfinished_s = base.budgets, base.config.upload_expiry
        self._log_root = base.config.data_dir / "log"
        #: The present round.
        self._round: Iterator[None] | None = None
        self._next_s = monotonic()
        self._unnamed_s = monotonic() + INTERVAL_S
        self._lock = threading.Lock()
        self._asked: list[Future[Maintenance]] = []
        self._published = 0
        #: Requests from before the present round.
        self._answering: list[Future[Maintenance]] = []
        #: Last count: bytes of the log's tables and the payload store, of the tables alone, and the
        #: published position.
        self._counted = 0
        self._tables_bytes = 0
        self._counted_at = -1
        #: Earliest time of the next count in a periodic round, monotonic seconds.
        self._count_s = 0.0
        #: Workers, peers and copies that kept the log longer than its limits in the last round.
        self.held_by: tuple[str, ...] = ()
        #: Endangered and overrun workers that were warned about.
        self._warned: set[str] = set()

    # -- any thread ------------------------------------------------------------------------------

    def ask(self) -> Future[Maintenance]:
        """Ask for a round now; the future has its result."""
        asked: Future[Maintenance] = Future()
        with self._lock:
            self._asked.append(asked)
        return asked

    @property
    def asked(self) -> bool:
        """Return whether a round is requested or unfinished."""
        return bool(self._asked) or self._round is not None

    def log_bytes(self) -> int:
        """Return the bytes on disk: journal now, tables and payload store as last counted."""
        return self._journal.size_bytes() + self._counted

    def close(self) -> None:
        """Fail all requests for a round: none will come."""
        with self._lock:
            waiting, self._asked = [*self._asked, *self._answering], []
            self._answering = []
        for asked in waiting:
            if not asked.done():
                asked.set_exception(StorageError("the node is stopping", hint="Ask again later."))

    # -- the publisher's thread ------------------------------------------------------------------

    def step(self, published: int, expire_tables: ExpireTables) -> bool:
        """Do a bounded piece of work; return whether the round goes on.

        Args:
            expire_tables: Called in the same thread.
        """
        if self._round is None:
            if not self._asked and monotonic() < self._next_s:
                return False
            self._round = self._shorten(expire_tables)
        self._published = published
        try:
            next(self._round)
        except StopIteration:
            return False
        except OSError as error:
            return self._fail(storage_error(error, self._store.place))
        except Exception as error:  # noqa: BLE001 - requests must not wait for ever
            return self._fail(foreseen(error))
        return True

    @property
    def failure(self) -> TxLogError | None:
        """Why the last round failed, None after a success."""
        return self._supervisor.failure(_SHORTENING)

    def _fail(self, error: TxLogError) -> bool:
        if isinstance(error, DiskFullError) and self._reserve.take():
            # Shortening makes space: it is begun again, with the reserve.
            self._round, self._next_s = None, monotonic()
            return True
        self._supervisor.note(_SHORTENING, error)
        self._end(error)
        return False

    def _shorten(self, expire_tables: ExpireTables) -> Iterator[None]:
        """Do one round, with a pause after each bounded piece of work."""
        with self._lock:
            asked, self._asked = self._asked, []
            self._answering += [one for one in asked if one.set_running_or_notify_cancel()]
        if self._answering or (
            self._published != self._counted_at and monotonic() >= self._count_s
        ):
            self._count()
        view = self._log.retention_view()
        extent = self._journal.read_extent()
        other = extent.live_bytes + self._tables_bytes
        found = decide(view, self._cuts(view.kept_after), extent.files_bytes + other, other)
        self.held_by = found.held_by
        self._tell(found, extent.files_bytes + other, view)
        kept_after = view.kept_after
        if found.cut is not None:
            kept_after = found.cut.last
            self._log.write([ExpireLog(position=kept_after, chain_hash=found.cut.chain_hash)])
            self._log.on_kept(kept_after)
            _log.info(
                "log shortened",
                kept_after=kept_after,
                removed=kept_after - view.kept_after,
                limits=[limit.value for limit in found.limits],
            )
        bytes_before = self.log_bytes()
        yield
        files, named, named_s = 0, None, 0.0
        while expired := self._journal.read_expired(_FILES_SEGMENTS):
            staged = {path for segment in expired for path in staged_files(segment)}
            if staged:
                # A later transaction may have the same file, also one that is submitted now.
                if named is None:
                    named_s, named = monotonic(), named_files(self._journal, kept_after)
                files += self._payloads.remove(sorted(staged - named), used_before=named_s)
            inline = {path for segment in expired for path in inline_files(segment)}
            files += self._payloads.remove(sorted(inline))
            self._log.write([DropExpired(position=expired[-1].last)])
            yield
        if done := self._journal.read_done_commits():
            # Their paths begin with their ids: no other transaction has them.
            paths = {file.path for commit in done for file in commit.files}
            files += self._payloads.remove(sorted(paths))
            self._log.write([DropPlaced(position=kept_after)])
        files += self._finish(expire_tables, view, kept_after)
        self._supervisor.clear(_SHORTENING)
        self._end(
            Maintenance(
                pruned_to=kept_after,
                log_bytes_before=bytes_before,
                log_bytes=self.log_bytes(),
                transactions=kept_after - view.kept_after,
                files=files,
                limits=tuple(limit.value for limit in found.limits),
                overrun=tuple(holder.replica for holder in found.overrun),
                held_by=found.held_by,
            )
        )

    def _finish(self, expire_tables: ExpireTables, view: RetentionView, kept_after: int) -> int:
        """Shorten the tables and the journal; return how many files no transaction named."""
        age_us, files = view.limits.age_us, 0
        before = datetime.fromtimestamp(max(view.now_us - age_us, 0) / 1e6, UTC)
        expire_tables(kept_after, before)
        if self._answering or monotonic() >= self._unnamed_s:
            self._unnamed_s = monotonic() + _UNNAMED_S
            self._payloads.remove_inline(kept_after)
            files = self._payloads.remove_unnamed(
                self._journal,
                kept_after,
                max(age_us / 1e6, _UNNAMED_S),
                unfinished_s=self._unfinished_s,
                given_up=self._budgets.take_given_up(),
            )
        least = _FREE_BYTES_ASKED if self._answering else _FREE_BYTES
        self._log.write([ShrinkJournal(least_free_bytes=least)])
        if self._answering or kept_after > view.kept_after:
            self._count()
        return files

    def _cuts(self, after: int) -> Iterator[SegmentCut]:
        while page := self._journal.read_cuts(after, _PAGE):
            yield from page
            after = page[-1].last

    def _end(self, outcome: Maintenance | TxLogError) -> None:
        self._round = None
        self._next_s = monotonic() + INTERVAL_S
        with self._lock:
            waiting, self._answering = self._answering, []
        for asked in waiting:
            if isinstance(outcome, TxLogError):
                asked.set_exception(outcome)
            else:
                asked.set_result(outcome)

    def _count(self) -> None:
        began = monotonic()
        self._tables_bytes = size_of(self._log_root)
        self._counted = self._tables_bytes + self._payloads.size_bytes()
        self._counted_at = self._published
        # Publishing waits for a count: a large store is counted less often.
        self._count_s = monotonic() + _COUNT_PAUSE * (monotonic() - began)

    def _tell(self, found: Shortening, log_bytes: int, view: RetentionView) -> None:
        """Warn once for each worker that will need a copy, and once when it needs one."""
        new = {f"overrun {h.replica}": h for h in found.overrun}
        new |= {f"endangered {h.replica}": h for h in found.endangered}
        for name, holder in sorted(new.items()):
            if name not in self._warned:
                overrun = name.startswith("overrun")
                _log.warning(
                    "worker needs a copy: the log outgrew tx-log-max-bytes"
                    if overrun
                    else "worker lags and will need a copy once the log outgrows tx-log-max-bytes",
                    site=holder.replica,
                    worker=holder.worker_id or "never reported",
                    position=holder.position,
                    published=view.published,
                    log_bytes=log_bytes,
                    limit_bytes=view.limits.size_bytes,
                )
        # There may be new warnings for a worker that moved on or got a copy.
        overrun_before = {
            f"overrun {h.replica}" for h in view.holders if h.position < view.kept_after
        }
        self._warned = set(new) | (self._warned & overrun_before)
