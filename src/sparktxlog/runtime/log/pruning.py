"""Shortening the log: carries out in the publisher's thread what `retention` decides.

Order of work; a kill between any two steps is repaired by the next round, the first of which runs
right after the start:

1. front: `ExpireLog`: one transaction; from here on readers get ExpiredError;
2. payload store: the files of the expired segments go, a bounded number at a time, each time
   followed by `DropExpired`, which forgets those segments (until then they are the list of what is
   to be removed);
3. Delta tables of `log/`: whole files below the horizon are removed by a commit, then vacuumed;
4. payload store: old files that no transaction names;
5. front: the file shrinks.

Each call of `step` is bounded, so publishing goes on in between.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

import structlog

from sparktxlog.errors import StorageError, TxLogError
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.retention import RetentionView, Shortening, decide
from sparktxlog.storage.durability import storage_error
from sparktxlog.storage.interfaces import DropExpired, ExpireLog, SegmentCut, ShrinkJournal
from sparktxlog.storage.payloads.payload_expiry import (
    PayloadExpiry,
    inline_files,
    named_files,
    size_of,
    staged_files,
)
from sparktxlog.supervision import foreseen

if TYPE_CHECKING:
    from sparktxlog.runtime.log.published_log import PublishedLog
    from sparktxlog.runtime.log.publisher import Publisher

_SHORTENING = "shortening the log"
_log = structlog.get_logger("sparktxlog.retention")

#: Seconds between two rounds.
INTERVAL_S = 60.0
_FILES_SEGMENTS = 64
_PAGE = 500
#: Free bytes of the front that are given back in a round of its own accord, and when asked.
_FREE_BYTES = 8 << 20
_FREE_BYTES_ASKED = 64 << 10
#: Files that no transaction names are looked for so often, and are at least so old, seconds.
_UNNAMED_S = 3_600.0
#: Counting the bytes of all files takes at most this part of the time: one in so many.
_COUNT_PAUSE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """What a round did."""

    #: Positions up to here are expired.
    pruned_to: int
    log_bytes_before: int
    log_bytes: int
    #: Transactions, and files of the payload store, that were removed.
    transactions: int
    files: int
    #: Limits that asked for it.
    limits: tuple[str, ...]
    #: Sites whose worker needs a copy from now on.
    overrun: tuple[str, ...]
    #: Who keeps the log longer than the limits ask for.
    held_by: tuple[str, ...]


class _Phase(Enum):
    IDLE = "idle"
    FILES = "files"
    TABLES = "tables"


class Pruning:
    """Rounds of shortening; `step` belongs to one thread, all else to any."""

    def __init__(self, base: Foundation, log: PublishedLog) -> None:
        self._log = log
        self._supervisor = base.supervisor
        self._front = base.front
        self._store = base.payloads
        self._payloads = PayloadExpiry(base.payloads)
        self._log_root = base.config.data_dir / "log"
        self._phase = _Phase.IDLE
        self._next_s = monotonic()
        self._unnamed_s = monotonic() + INTERVAL_S
        self._lock = threading.Lock()
        self._asked: list[Future[Maintenance]] = []
        #: Who asked before the round under way began.
        self._answering: list[Future[Maintenance]] = []
        #: Bytes of the log's tables and of the payload store when they were last counted.
        self._counted = 0
        self._tables_bytes = 0
        self._counted_at = -1
        #: Not counted of its own accord before, monotonic seconds.
        self._count_s = 0.0
        #: Staged files that unexpired transactions name, as of this round; None = not asked yet.
        self._named: set[str] | None = None
        self._begun = _Round()
        #: Who was told about already: endangered and overrun workers.
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
        """Return whether somebody waits for a round, or one is under way."""
        return bool(self._asked) or self._phase is not _Phase.IDLE

    def log_bytes(self) -> int:
        """Return the bytes on disk: front now, tables and payload store as last counted."""
        return self._front.size_bytes() + self._counted

    def close(self) -> None:
        """Let nobody wait for a round that never comes."""
        with self._lock:
            waiting, self._asked = [*self._asked, *self._answering], []
            self._answering = []
        for asked in waiting:
            if not asked.done():
                asked.set_exception(StorageError("the node is stopping", hint="Ask again later."))

    # -- the publisher's thread ------------------------------------------------------------------

    def step(self, published: int, tables: Publisher) -> bool:
        """Do a bounded piece of work; return whether there is more to do at once.

        Args:
            tables: The log's tables, in the same thread.
        """
        try:
            match self._phase:
                case _Phase.IDLE:
                    if not self._asked and monotonic() < self._next_s:
                        return False
                    self._begin(published)
                case _Phase.FILES:
                    self._remove_files()
                case _Phase.TABLES:
                    self._finish(published, tables)
        except OSError as error:
            return self._fail(storage_error(error, self._store.root))
        except Exception as error:  # noqa: BLE001 - who asked must not wait for ever
            return self._fail(foreseen(error))
        return self._phase is not _Phase.IDLE

    @property
    def failure(self) -> TxLogError | None:
        """Why the last round failed, None after a success."""
        return self._supervisor.failure(_SHORTENING)

    def _fail(self, error: TxLogError) -> bool:
        self._supervisor.note(_SHORTENING, error)
        self._end(error)
        return False

    def _begin(self, published: int) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
            self._answering = [one for one in asked if one.set_running_or_notify_cancel()]
        self._named = None
        if self._answering or (published != self._counted_at and monotonic() >= self._count_s):
            self._count(published)
        view = self._log.retention_view()
        extent = self._front.read_extent()
        other = extent.live_bytes + self._tables_bytes
        found = decide(view, self._cuts(view.kept_after), extent.files_bytes + other, other)
        self._tell(found, extent.files_bytes + other, view)
        kept_after = view.kept_after
        if found.cut is not None:
            kept_after = found.cut.last
            self._log.write([ExpireLog(position=kept_after, chain_hash=found.cut.chain_hash)])
            self._log.on_kept(kept_after)
            _log.info(
                "log shortened", kept_after=kept_after, removed=kept_after - view.kept_after,
                limits=[limit.value for limit in found.limits],
            )  # fmt: skip
        self._begun = _Round(
            bytes_before=self.log_bytes(), kept_before=view.kept_after, kept_after=kept_after,
            found=found, age_us=view.limits.age_us, now_us=view.now_us,
        )  # fmt: skip
        self._phase = _Phase.FILES

    def _cuts(self, after: int) -> Iterator[SegmentCut]:
        while page := self._front.read_cuts(after, _PAGE):
            yield from page
            after = page[-1].last

    def _remove_files(self) -> None:
        expired = self._front.read_expired(_FILES_SEGMENTS)
        if not expired:
            self._phase = _Phase.TABLES
            return
        files = {path for segment in expired for path in inline_files(segment)}
        staged = {path for segment in expired for path in staged_files(segment)}
        if staged:
            # The same file may have been submitted once more.
            if self._named is None:
                self._named = named_files(self._front, self._begun.kept_after)
            staged -= self._named
        self._begun.files += self._payloads.remove(sorted(files | staged))
        self._log.write([DropExpired(position=expired[-1].last)])

    def _finish(self, published: int, tables: Publisher) -> None:
        begun = self._begun
        before = datetime.fromtimestamp(max(begun.now_us - begun.age_us, 0) / 1e6, UTC)
        tables.expire_tables(begun.kept_after, before)
        if self._answering or monotonic() >= self._unnamed_s:
            self._unnamed_s = monotonic() + _UNNAMED_S
            self._payloads.remove_inline(begun.kept_after)
            begun.files += self._payloads.remove_unnamed(
                self._front, begun.kept_after, max(begun.age_us / 1e6, _UNNAMED_S)
            )
        least = _FREE_BYTES_ASKED if self._answering else _FREE_BYTES
        self._log.write([ShrinkJournal(least_free_bytes=least)])
        if self._answering or begun.kept_after > begun.kept_before:
            self._count(published)
        self._supervisor.clear(_SHORTENING)
        self._end(None)

    def _end(self, error: TxLogError | None) -> None:
        self._phase = _Phase.IDLE
        self._next_s = monotonic() + INTERVAL_S
        with self._lock:
            waiting, self._answering = self._answering, []
        for asked in waiting:
            if error is not None:
                asked.set_exception(error)
            else:
                asked.set_result(self._begun.result(self.log_bytes()))

    def _count(self, published: int) -> None:
        began = monotonic()
        self._tables_bytes = size_of(self._log_root)
        self._counted = self._tables_bytes + size_of(self._store.root)
        self._counted_at = published
        # Publishing waits meanwhile: a large store is counted more seldom.
        self._count_s = monotonic() + _COUNT_PAUSE * (monotonic() - began)

    def _tell(self, found: Shortening, log_bytes: int, view: RetentionView) -> None:
        """Warn once of each worker that will need a copy, and once when it does."""
        new = {f"overrun {h.node_id}": h for h in found.overrun}
        new |= {f"endangered {h.node_id}": h for h in found.endangered}
        for name, holder in sorted(new.items()):
            if name not in self._warned:
                overrun = name.startswith("overrun")
                _log.warning(
                    "worker needs a copy: the log outgrew tx-log-max-bytes" if overrun
                    else "worker lags and will need a copy once the log outgrows tx-log-max-bytes",
                    site=holder.node_id, worker=holder.worker_id or "never reported",
                    position=holder.position, published=view.published, log_bytes=log_bytes,
                    limit_bytes=view.limits.size_bytes,
                )  # fmt: skip
        # Who came on, or has a copy, is warned of anew.
        overrun_before = {
            f"overrun {h.node_id}" for h in view.holders if h.position < view.kept_after
        }
        self._warned = set(new) | (self._warned & overrun_before)


@dataclass(slots=True, kw_only=True)
class _Round:
    """The round under way."""

    bytes_before: int = 0
    kept_before: int = 0
    kept_after: int = 0
    found: Shortening = field(default_factory=lambda: Shortening(cut=None))
    age_us: int = 0
    now_us: int = 0
    files: int = 0

    def result(self, log_bytes: int) -> Maintenance:
        """Return what is told of it."""
        return Maintenance(
            pruned_to=self.kept_after,
            log_bytes_before=self.bytes_before,
            log_bytes=log_bytes,
            transactions=self.kept_after - self.kept_before,
            files=self.files,
            limits=tuple(limit.value for limit in self.found.limits),
            overrun=tuple(holder.node_id for holder in self.found.overrun),
            held_by=self.found.held_by,
        )
