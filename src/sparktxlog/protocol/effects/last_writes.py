"""The last writes to each table, and the conditions that they break (protocol P27).

Part of the effects: what is known here follows from the queue alone, so every site rejects
the same transactions.  A run costs O(tables that it touches); its transactions are counted, not
looked at, but for those with conditions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sparktxlog.errors import ConflictError
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import RunFacts, Touch
from sparktxlog.protocol.messages.posts import Rejection

#: Table and what was written to it, at the end of the run that wrote.
Written = tuple[tuple[str, TableWrites], ...]
#: Takes a condition, the start of its run and its index; returns why it does not hold.
Broken = Callable[[Condition, int, int], Rejection | None]
_Touched = dict[str, tuple[int, ...] | None]


class LastWrites:
    """Writes to the tables of the queue, as far as they count.

    Args:
        writes: By table, at the end of the queue.
        window: Positions for which a read counts.
    """

    __slots__ = ("_by_table", "_fresh", "_window", "last")

    def __init__(self, writes: Mapping[str, TableWrites], window: int) -> None:
        self._by_table = dict(writes)
        self._window = window
        #: The last position at which a table was written to; restore points have no rows.
        self.last = max((w.position for t, w in writes.items() if t != RESTORE_POINTS), default=0)
        self._fresh: list[tuple[str, TableWrites]] = []

    def of(self, table: str) -> TableWrites:
        """Return what is known of a table; of one that nobody wrote to, all is 0."""
        return self._by_table.get(table) or TableWrites(version=0, position=0)

    def winner(self, table: str) -> int | None:
        """Return the position of the last write to a table, None if there is none."""
        found = self._by_table.get(table)
        return None if found is None else found.position

    def take(self) -> Written:
        """Return what changed since the last call: one item for each run and table it wrote to."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh

    # -- writes ------------------------------------------------------------------------------------

    def apply(
        self, position: int, facts: RunFacts, rejected: dict[int, Rejection], broken: Broken
    ) -> None:
        """Judge the conditions of a run that creates no table, and note what takes effect.

        Args:
            rejected: By index; what loses is added.
            broken: Takes a condition, the start of its run and its index; returns why it does not
                hold, None if it does.
        """
        touched = _touched(facts.touches)
        start, changed = 0, set[str]()
        for index, condition in facts.conditions:
            if index in rejected:
                continue
            changed |= self._note_part(position, touched, start, index, rejected)
            start, reason = index, broken(condition, position, index)
            if reason is not None:
                rejected[index] = reason
        self.keep(changed | self._note_part(position, touched, start, facts.n, rejected))

    def _note_part(
        self, position: int, touched: _Touched, start: int, stop: int, rejected: Collection[int]
    ) -> set[str]:
        """Note what a run's transactions `start … stop - 1` wrote; return the tables."""
        changed = set[str]()
        for table, txs in touched.items() if start < stop else ():
            chosen: Sequence[int] = range(start, stop)
            if txs is not None:
                chosen = txs[bisect_left(txs, start) : bisect_left(txs, stop)]
            if rejected:
                chosen = [index for index in chosen if index not in rejected]
            if chosen:
                self._put(table, self.of(table).version + len(chosen), position + chosen[-1])
                changed.add(table)
        return changed

    def note(self, position: int, created: Iterable[str], touches: Iterable[Touch]) -> set[str]:
        """Note what one transaction did that takes effect at a position; return the tables.

        After calling: `keep` once for the whole run.
        """
        tables = {touch.table for touch in touches}
        for table in created:
            # Of one that was dropped the version goes on: what rests on it never holds again.
            former = self._by_table.get(table)
            self._put(table, 0 if former is None else former.version + 1, position)
        for table in tables:
            self._put(table, self.of(table).version + 1, position)
        return tables.union(created)

    def keep(self, tables: Iterable[str]) -> None:
        """Let `take` return these tables, as a run left them."""
        self._fresh.extend((table, self._by_table[table]) for table in sorted(tables))

    def _put(self, table: str, version: int, position: int) -> None:
        self._by_table[table] = TableWrites(version=version, position=position)
        if table != RESTORE_POINTS:
            self.last = position

    # -- conditions --------------------------------------------------------------------------------

    def conflict(self, condition: Condition, position: int, index: int) -> Rejection | None:
        """Return why a transaction at a position does not take effect, None if it does.

        Args:
            position: Of the transaction; all that takes effect before it has been noted.
            index: Its index in the run.
        """
        read = condition.read_position
        if read is not None and position - self._window > read:
            return _conflict(
                index,
                f"position {read} was read, which at position {position} lies more than the "
                f"condition-window of {self._window} positions back",
            )
        for table in condition.reads:
            found = self.of(table)
            if read is not None and found.position > read:
                text = f"table {table!r} was read at position {read}, and {self._said(table)}"
                return self._lost_to(table, index, text)
        for table, version in condition.versions:
            found = self.of(table)
            if found.version != version:
                text = (
                    f"table {table!r} was expected at version {version}, and has version "
                    f"{found.version}: {self._said(table)}"
                )
                return self._lost_to(table, index, text)
        return None

    def _said(self, table: str) -> str:
        found = self._by_table.get(table)
        if found is None:
            return "it was never written to"
        return f"{'written last' if found.version else 'created'} at position {found.position}"

    def _lost_to(self, table: str, index: int, text: str) -> Rejection:
        return _conflict(index, text, table, self.winner(table))


def _conflict(
    index: int, text: str, table: str | None = None, winner: int | None = None
) -> Rejection:
    return Rejection(index=index, code=ConflictError.code, text=text, table=table, winner=winner)


def _touched(touches: Sequence[Touch]) -> _Touched:
    """Return for each table the transactions that touch it, ascending; None = all of the run."""
    touched: _Touched = {}
    for touch in touches:
        table, txs = touch.table, touch.txs
        if table in touched and txs is not None:
            others = touched[table]
            txs = None if others is None else tuple(sorted({*others, *txs}))
        touched[table] = txs
    return touched
