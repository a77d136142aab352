"""`log/synchronized_queue`: the synchronized queue as a Delta table, each position exactly once.

Every commit records the position of its last row as Delta transaction version, atomically with
the rows.  So after a crash between the commit and `MarkPublished` the table knows its last row, and
a repeated publish skips those rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import InvariantViolation, JournalLostError
from sparktxlog.files.durability import storing
from sparktxlog.storage.log_tables.log_schemas import SYNCHRONIZED_QUEUE
from sparktxlog.storage.log_tables.log_table import CHECKPOINT_EVERY, LogTable

QUEUE_NAME = "synchronized_queue"


def set_aside(log_root: Path, resets: int) -> Path | None:
    """Move the table from before a summary to the attic, so that a new one begins after it.

    The old table may be a prefix of the queue or another history: its transaction version would be
    taken for ours, and rows after the summary would be skipped.  Done once for each reset, so a
    repeated call, also after a crash, does not touch the new table.

    Args:
        log_root: Directory of the log tables.
        resets: How often the journal's queue was replaced by a summary.

    Returns:
        Its new path; None if there was nothing to move.

    Raises:
        StorageError: Do it again.
    """
    table, attic = log_root / QUEUE_NAME, Attic.of_node(log_root.parent)
    done = attic.newest(Kind.QUEUE, "", str(resets))
    if done is not None or not any(table.glob("*.parquet")):
        return None
    with storing(table):
        why = "a summary of a peer's queue replaced it"
        return attic.put(table, kind=Kind.QUEUE, mark=str(resets), why=why).path


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEnd:
    """The last row of the queue table."""

    position: int
    #: None: the row is expired.
    chain_hash: bytes | None

    def contradicts(self, table: Path, known: bytes | None) -> JournalLostError:
        """Return the error of a journal that does not have the table's end.

        Args:
            table: Directory of the table.
            known: The journal's chain hash at this position, None = no run of it ends there.
        """
        return JournalLostError(
            f"{table} ends at position {self.position:,}, which the journal "
            + ("does not hold" if known is None else "holds with another chain hash")
            + ": the journal is an older one, or another node's, and acknowledged transactions "
            "would be forgotten",
            hint="Put journal.sqlite back with its -wal file, both of the same moment.  If they "
            "are lost: remove journal.sqlite* if peers have the log, then the node joins it again; "
            "without peers move data-dir, lake-dir and payload-dir away.  If the table is wrong, "
            "move it away: it is written again from the journal.",
            path=str(table),
            position=self.position,
        )


class QueueTable:
    """Writer of `log/synchronized_queue`.

    Args:
        log_root: Directory of the log tables.
        log_id: Part of the name under which the table counts our transactions: a queue of
            another log id never passes for this one.
        published_version: Delta version in the last `MarkPublished`: known to be fsynced.
        kept_after: Positions up to here are expired; a table that was lost begins after them.
        checkpoint_every: Commits between two checkpoints.

    Raises:
        CorruptLogError: A commit up to `published_version` is damaged.

    **After calling** compare `position` with the published position of the journal: if it is
    smaller, the table was lost; append the rows between from the journal
    (`publishing.restored_rows`).
    """

    def __init__(
        self,
        log_root: Path,
        log_id: str,
        *,
        published_version: int = -1,
        kept_after: int = 0,
        checkpoint_every: int = CHECKPOINT_EVERY,
    ) -> None:
        self._table = LogTable(
            log_root / QUEUE_NAME,
            SYNCHRONIZED_QUEUE,
            app_id=f"sparktxlog:{log_id}:queue",
            safe_version=published_version,
            checkpoint_every=checkpoint_every,
        )
        self._kept_after = kept_after
        self._end = self._read_end()

    def _read_end(self) -> TableEnd:
        last = self._table.last_values("position", "chain_hash")
        position = self._table.transaction_version
        if last is None or last[0] < position:
            # Its last rows are expired.
            return TableEnd(position=position, chain_hash=None)
        return TableEnd(position=last[0], chain_hash=bytes.fromhex(last[1]))

    @property
    def end(self) -> TableEnd:
        """Where its rows end, no matter which log they are of."""
        if self._end.position < self.position:
            self._end = self._read_end()
        return self._end

    @property
    def position(self) -> int:
        """Last position that the table holds, 0 = none."""
        return self._table.transaction_version

    @property
    def version(self) -> int:
        """Delta version of the table."""
        return self._table.version

    def append(self, rows: pa.Table, *, previous_hash: bytes | None = None) -> int:
        """Append what the table does not hold yet, fsynced, and return its Delta version.

        Args:
            rows: Contiguous positions, ascending, as in `SYNCHRONIZED_QUEUE`; whole runs.
            previous_hash: Chain hash before them; None = unknown.

        Raises:
            JournalLostError: The rows do not continue or repeat the table's last row.
            InvariantViolation: Positions between the table's end and the rows are missing.
            DiskFullError: No space left; call it again with the same rows.
            StorageError: Call it again with the same rows: it checks whether they are there.
        """
        held = self.position
        first, last = rows.column("position")[0].as_py(), rows.column("position")[-1].as_py()
        if first > max(held, self._kept_after) + 1:
            raise InvariantViolation(
                f"the queue table ends at {held}, rows from {first} cannot follow",
                held=held,
                first=first,
            )
        self._check_continues(rows, first, previous_hash)
        if last <= held:
            return self.version
        if first <= held:
            rows = rows.filter(pc.field("position") > held)
        version = self._table.append(rows, transaction=last)
        chain_hash = bytes.fromhex(rows.column("chain_hash")[-1].as_py())
        self._end = TableEnd(position=last, chain_hash=chain_hash)
        return version

    def _check_continues(self, rows: pa.Table, first: int, previous_hash: bytes | None) -> None:
        end = self.end
        known: bytes | None = None
        if end.position == first - 1:
            known = previous_hash
        elif 0 <= end.position - first < rows.num_rows:
            known = bytes.fromhex(rows.column("chain_hash")[end.position - first].as_py())
        if known is not None and end.chain_hash is not None and known != end.chain_hash:
            raise end.contradicts(self._table.directory, known)

    def expire(self, position: int) -> int:
        """Remove the files whose rows all stand at or before a position; return how many rows.

        Raises:
            StorageError: Try again: removed files stay removed.
        """
        self._kept_after = max(self._kept_after, position)
        return self._table.expire("position", position)

    def tidy(self, *, late: bool = False) -> bool:
        """Merge a piece of the small files, as `LogTable.tidy`; return if any was."""
        return self._table.tidy(late=late)

    def maintain(self) -> None:
        """Merge all small files, write a checkpoint, drop what has expired."""
        self._table.maintain()
