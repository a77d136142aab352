"""Names of row tables in order, for lists in pages.

A node may have 10,000 tables, and sorting them takes milliseconds.  So their names are kept in
order, and each step takes in a bounded number of those that came since.
"""

from __future__ import annotations

from bisect import bisect_right, insort

from sparktxlog.model.ids import full_table_name
from sparktxlog.model.tables.table import Tables

#: New names that a step takes in.
STEP = 512


class SortedNames:
    """Full lower-case names (`default.orders`), ascending; those of dropped tables stay."""

    def __init__(self) -> None:
        self._of: Tables | None = None
        self._names: list[str] = []

    def catch_up(self, tables: Tables) -> bool:
        """Take in up to `STEP` names that came since the last call; return whether these are all.

        Args:
            tables: Those of the log; after a change of the epoch they may be another object.
        """
        if tables is not self._of:
            self._of, self._names = tables, []
        fresh = tables.names_since(len(self._names), STEP)
        for name in fresh:
            insort(self._names, full_table_name(name))
        return len(fresh) < STEP

    def after(self, name: str, most: int) -> list[str]:
        """Return the next names, as far as they were taken in.

        Args:
            name: Full and lower-case; empty = from the first one on.
            most: Names at most.
        """
        start = bisect_right(self._names, name)
        return self._names[start : start + most]
