"""Which row tables no replica of a site holds, if each has a set of them.

Asked with each report and status, so what was found is kept until a set or the names of tables
change.  A name that a table ever had stays among those that are looked at: nothing is looked at
again when a table is dropped or made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparktxlog.model.replicas import holds
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.tables.table import Tables

#: Sets of one replica, or of all replicas of a site.
Sets = frozenset[tuple[str, ...]]


#: Names that are looked at in one step.
_PAGE = 1 << 20


class TableSets:
    """Compares sets with the tables of the log.

    Args:
        tables: Returns the row tables, in which names come and stay.
    """

    def __init__(self, tables: Callable[[], Tables]) -> None:
        self._tables = tables
        self._known: Tables | None = None
        self._names: list[str] = []
        self._left_out: dict[Sets, list[str]] = {}
        self._idle: dict[tuple[str, ...], list[str]] = {}

    def left_out(self, sets: Iterable[tuple[str, ...]]) -> list[str]:
        """Return the tables that none of the sets of a site's replicas has, in lower case."""
        wanted = frozenset(sets)
        if () in wanted:
            return []
        tables = self._look()
        if wanted not in self._left_out:
            self._left_out[wanted] = [
                name
                for name in self._names
                if name != RESTORE_POINTS and not any(holds(one, name) for one in wanted)
            ]
        return [name for name in self._left_out[wanted] if tables.alike(name) is not None]

    def idle_patterns(self, only: tuple[str, ...]) -> list[str]:
        """Return the patterns that match no name that a table has, or had."""
        self._look()
        if only not in self._idle:
            self._idle[only] = [
                one for one in only if not any(holds((one,), name) for name in self._names)
            ]
        return self._idle[only]

    def lacks(self, donor: tuple[str, ...], target: tuple[str, ...]) -> bool:
        """Return whether a replica with one set lacks a table that another one holds."""
        if not donor or donor == target:
            return False
        return any(holds(target, name) for name in self.left_out([donor]))

    def _look(self) -> Tables:
        tables = self._tables()
        if tables is not self._known:  # of another history
            self._known, self._names = tables, []
        if new := tables.names_since(len(self._names), _PAGE):
            self._names += new
            self._left_out.clear()
            self._idle.clear()
        return tables
