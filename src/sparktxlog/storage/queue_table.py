"""`log/synchronized_queue`: the synchronized queue as a Delta table, each position exactly once.

Every commit records the position of its last row as Delta transaction version, atomically with
the rows.  So after a crash between the commit and `MarkPublished` the table itself says what it
holds, and publishing again skips those rows.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sparktxlog.errors import InvariantViolation
from sparktxlog.storage.delta_table import LogTable
from sparktxlog.storage.durability import storage_error, sync_directory
from sparktxlog.storage.schemas import SYNCHRONIZED_QUEUE

QUEUE_NAME = "synchronized_queue"
#: Beside the directory of the log tables: nothing in it is read by a node, an operator may drop it.
ASIDE = "set-aside"


def set_aside(log_root: Path, resets: int) -> Path | None:
    """Move the table of before a snapshot out of the way, so that a new one begins behind it.

    It may be a prefix of the queue or another history: its transaction version would be taken for
    ours, and rows behind the snapshot would be left out.  Done once for each reset, so a repeated
    call, also after a crash, leaves the new table alone.

    Args:
        log_root: Directory of the log tables.
        resets: How often the front's queue was replaced by a snapshot.

    Returns:
        Where it lies now; None if there was nothing to move.

    Raises:
        StorageError: Do it again.
    """
    table, aside = log_root / QUEUE_NAME, log_root.parent / ASIDE / f"{QUEUE_NAME}-{resets}"
    if aside.exists() or not any(table.glob("*.parquet")):
        return None
    try:
        aside.parent.mkdir(exist_ok=True)
        table.rename(aside)
        for directory in (aside.parent, log_root, log_root.parent):
            sync_directory(directory)
    except OSError as error:
        raise storage_error(error, table) from error
    return aside


class QueueTable:
    """Writer of `log/synchronized_queue`.

    Args:
        log_root: Directory of the log tables.
        lineage: Part of the name under which the table counts our transactions: a queue of
            another lineage never passes for this one.
        published_version: Delta version in the last `MarkPublished`: known to be fsynced.
        kept_after: Positions up to here are expired; a table that was lost begins behind them.

    Raises:
        CorruptLogError: A commit up to `published_version` is damaged.

    **After calling** compare `position` with the published position of the front: if it is
    smaller, the table was lost; append the rows between from the front
    (`publishing.restored_rows`).
    """

    def __init__(
        self, log_root: Path, lineage: str, *, published_version: int = -1, kept_after: int = 0
    ) -> None:
        self._table = LogTable(
            log_root / QUEUE_NAME,
            SYNCHRONIZED_QUEUE,
            app_id=f"sparktxlog:{lineage}:queue",
            safe_version=published_version,
        )
        self._kept_after = kept_after

    @property
    def position(self) -> int:
        """Last position that the table holds, 0 = none."""
        return self._table.transaction_version

    @property
    def version(self) -> int:
        """Delta version of the table."""
        return self._table.version

    def append(self, rows: pa.Table) -> int:
        """Append what the table does not hold yet, fsynced, and return its Delta version.

        Args:
            rows: Contiguous positions, ascending, as in `SYNCHRONIZED_QUEUE`.

        Raises:
            InvariantViolation: Positions between the table's end and the rows are missing.
            DiskFullError: No space left; call it again with the same rows.
            StorageError: Call it again with the same rows: it sees whether they are there.
        """
        held = self.position
        first, last = rows.column("position")[0].as_py(), rows.column("position")[-1].as_py()
        if first > max(held, self._kept_after) + 1:
            raise InvariantViolation(
                f"the queue table ends at {held}, rows from {first} cannot follow",
                held=held,
                first=first,
            )
        if last <= held:
            return self.version
        if first <= held:
            rows = rows.filter(pc.field("position") > held)
        return self._table.append(rows, transaction=last)

    def expire(self, position: int) -> int:
        """Remove the files whose rows all stand at or before a position; return how many rows.

        Raises:
            StorageError: Do it again: what was removed stays removed.
        """
        self._kept_after = max(self._kept_after, position)
        return self._table.expire("position", position)

    def maintain(self) -> None:
        """Merge small files, write a checkpoint, drop what has expired; done by itself too."""
        self._table.maintain()
