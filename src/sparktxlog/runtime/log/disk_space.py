"""Whether the disk has room for more transactions, and what holds the space if it has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparktxlog.errors import DiskFullError
from sparktxlog.runtime.foundation import Foundation


class DiskSpace:
    """Judges the disk of the data directory; used on the event loop.

    What is accepted takes its space up to three times for a while: in the payload log, or in the
    write-ahead log of the journal and in the journal; and as published files.  So a node takes no
    more before that is gone.

    Args:
        failed: Returns whether a write just failed because the disk was full.
        log_bytes: Returns the bytes of the log: of the journal, and of all.
        held_by: Returns what keeps the log longer than its limits.
    """

    def __init__(
        self,
        base: Foundation,
        *,
        failed: Callable[[], bool],
        log_bytes: Callable[[], tuple[int, int]],
        held_by: Callable[[], tuple[str, ...]],
    ) -> None:
        self._base = base
        self._failed = failed
        self._log_bytes = log_bytes
        self._held_by = held_by

    @property
    def is_full(self) -> bool:
        """Whether the node takes no transactions because of its disk."""
        if self._failed() or not self._base.reserve.is_whole():
            return True
        # Some is left for what comes from peers, and for the histories of the log.
        needed = self._base.journal.unfolded_bytes() + self._base.reserve.size
        return self._base.reserve.free_bytes() < needed

    def held_by(self) -> list[str]:
        """Return what holds the space, in words; empty = the disk is not full."""
        if not self.is_full:
            return []
        journal, whole = self._log_bytes()
        limits = self._base.settings.in_force
        sizes = f"the log has {whole:,} bytes, {journal:,} of them in the journal"
        allowed = (
            f"its limits allow that: tx-log-max-size {limits.tx_log_max_size:,}, tx-log-max-depth "
            f"{limits.tx_log_max_depth:g} h, tx-log-max-bytes {limits.tx_log_max_bytes:,}"
        )
        return [sizes, *([f"it is kept for {name}" for name in self._held_by()] or [allowed])]

    def shown(self) -> dict[str, Any]:
        """Return what the status says of the disk."""
        held = self.held_by()
        return {"disk_full": bool(held), "disk_held_by": held}

    def check(self) -> None:
        """Refuse a new transaction while the disk is full.

        Raises:
            DiskFullError: It is; `held_by` says what holds the space (definite).
        """
        if held := self.held_by():
            raise DiskFullError(
                f"the node's disk is full: {'; '.join(held)}",
                hint="Free space; then the node continues: docs/monitoring.md (A full disk).",
                held_by=held,
            )

    def check_writes(self) -> None:
        """Refuse an act of an operator while it would wait for space; errors as `check`.

        While the reserve is there it has space.
        """
        if self._failed() and not self._base.reserve.is_whole():
            self.check()
