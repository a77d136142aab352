"""Full scans on a schedule: a worker that follows recounts tables every `verify-interval` (S2b).

Signatures are sums of what commits claim; only a scan reads the rows, and finds a damaged file.
One table is scanned at a time: the one whose last scan is oldest.  A thread does it while batches
go on, and reads the version that the state records when the scan begins.

    lake/_sparktxlog/recounted.json    table → time of its last scan, or when it was first seen
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from sparktxlog.files.durability import write_at_once
from sparktxlog.model.report import Recount
from sparktxlog.worker.replica.state import ReplicaState

_logger = logging.getLogger(__name__)

_HOUR_US = 3_600_000_000
#: A scan that proved nothing is repeated after this part of the interval.
_AGAIN = 0.1

#: Recounts one table of a replica at its recorded version, in another thread.
Count = Callable[[ReplicaState, str], Recount]


class ScheduledRecounts:
    """Knows which table is due, and runs its scan.

    Args:
        own: Directory of the worker's own files.
        interval_h: Hours between two scans of a table, 0 = never.
        count: Scans a table.
        now_us: Wall clock, microseconds since 1970 UTC.
        is_open: Whether scans may begin now; asked when one is due.
    """

    def __init__(
        self,
        own: Path,
        interval_h: float,
        count: Count,
        now_us: Callable[[], int],
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_open = is_open
        self._path = own / "recounted.json"
        self._interval_us = int(interval_h * _HOUR_US)
        self._count = count
        self._now_us = now_us
        self._counted = self._load()
        self._thread: threading.Thread | None = None
        self._found: Recount | None = None
        self._table = ""

    def step(self, state: ReplicaState, tell: Callable[[Recount], None]) -> None:
        """Send the result of an ended scan, then begin the next one if it is due.

        Args:
            tell: Sends a result to the node.

        Raises:
            TxLogError: As `tell`; the next step sends it again.
        """
        if not self._interval_us or (self._thread is not None and self._thread.is_alive()):
            return
        if self._thread is not None:
            self._end(tell)
        due = self._due(state)
        if due is not None and self._is_open():
            self._table = due
            _logger.info("recounting table %s: verify-interval is over", due)
            self._thread = threading.Thread(
                target=self._run, args=(state, due), name="recount", daemon=True
            )
            self._thread.start()

    def _run(self, state: ReplicaState, table: str) -> None:
        try:
            self._found = self._count(state, table)
        except Exception:
            # Spark may end before the scan does.
            _logger.warning("table %s is not recounted", table, exc_info=True)

    def _end(self, tell: Callable[[Recount], None]) -> None:
        found = self._found
        counted = found is not None and self._table in found.tables
        if found is not None and counted:
            tell(found)
        again_us = 0 if counted else int(self._interval_us * (1 - _AGAIN))
        self._note({self._table: self._now_us() - again_us})
        self._thread = self._found = None

    def _due(self, state: ReplicaState) -> str | None:
        sound = sorted(name for name, table in state.tables.items() if not table.diverged)
        if new := {name: self._now_us() for name in sound if name not in self._counted}:
            self._note(new)
        before_us = self._now_us() - self._interval_us
        due = [name for name in sound if self._counted[name] <= before_us]
        return min(due, key=lambda name: self._counted[name], default=None)

    def _note(self, times: dict[str, int]) -> None:
        self._counted |= times
        try:
            write_at_once(self._path, msgspec.json.encode(self._counted))
        except OSError as error:
            # Without the file tables are scanned earlier than necessary, nothing more.
            _logger.warning("%s cannot be written: %s", self._path, error)

    def _load(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.MsgspecError):
            return {}
