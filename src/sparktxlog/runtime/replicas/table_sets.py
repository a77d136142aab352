"""Which row tables no replica of a site holds, if each has a set of them.

Asked with each report and status, so what was found is kept, and only new names are looked at.  A
name that a table ever had stays among them: nothing is looked at again when a table is dropped or
made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sparktxlog.model.replicas import holds
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.tables.groups import GROUPS, sites_of
from sparktxlog.model.tables.table import Tables

#: Sets of one replica, or of all replicas of a site.
Sets = frozenset[tuple[str, ...]]


#: Names that are looked at in one step.
_PAGE = 1 << 20
#: Sets of which it is kept what they leave out.
_MOST = 64


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
        #: Name → sites, of tables of groups: a name keeps them for ever (P41).
        self._grouped: dict[str, tuple[str, ...]] = {}
        #: The sites of each group that has a table; each report asks them.
        self._groups: set[tuple[str, ...]] = set()

    def left_out(self, sets: Iterable[tuple[str, ...]], site: str = "") -> list[str]:
        """Return the tables that none of the sets of a site's replicas has, in lower case.

        Those count whose rows the site holds; of no site, all.
        """
        return [name for name in self._existing(sets) if self._is_at(site, name)]

    def leave_out(self, sets: Iterable[tuple[str, ...]], site: str = "") -> bool:
        """Return whether there is such a table, which is asked at each step of a replica."""
        names = self._existing(sets)
        return any(self._is_at(site, name) for name in names)

    def idle_patterns(self, only: tuple[str, ...]) -> list[str]:
        """Return the patterns that match no name that a table has, or had."""
        self._look()
        if only not in self._idle:
            self._idle[only] = _idle(only, self._names)
        return self._idle[only]

    def lacks(
        self,
        donor: tuple[str, ...],
        target: tuple[str, ...],
        *,
        at: str = "",
        site: str = "",
    ) -> bool:
        """Return whether a replica with one set lacks a table that another one holds.

        Args:
            at: Site of the donor; empty = one that holds no table of a group.
            site: That of the target; empty = one that holds the tables of all groups.
        """
        if donor and donor != target:
            names = self._existing([donor])
            if any(holds(target, name) and self._is_at(site, name) for name in names):
                return True
        tables = self._look()
        return any(
            holds(target, name) and at not in sites and self._is_at(site, name)
            for name, sites in self._grouped.items()
            if tables.alike(name) is not None
        )

    def _is_at(self, site: str, table: str) -> bool:
        return not site or self.may_have(site, table)

    # -- sites of groups ---------------------------------------------------------------------------

    def sites(self, table: str) -> tuple[str, ...]:
        """Return the sites that hold the rows of a table, empty = all do, or it is not known."""
        self._look()
        return self._grouped.get(table.lower(), ())

    def holds_all(self, site: str) -> bool:
        """Return whether a site holds the rows of all tables of groups."""
        self._look()
        return all(site in sites for sites in self._groups)

    def may_have(self, site: str, table: str) -> bool:
        """Return whether a site holds the rows of a table; of one that is not known it does."""
        sites = self.sites(table)
        return not sites or site in sites

    def _existing(self, sets: Iterable[tuple[str, ...]]) -> Iterator[str]:
        wanted = frozenset(sets)
        if () in wanted:
            return
        tables = self._look()
        if wanted not in self._left_out:
            self._left_out[wanted] = _not_held(wanted, self._names)
        for name in self._left_out[wanted]:
            if tables.alike(name) is not None:
                yield name

    def _look(self) -> Tables:
        tables = self._tables()
        is_other = tables is not self._known  # of another history
        if is_other or len(self._left_out) + len(self._idle) > _MOST:
            self._left_out.clear()
            self._idle.clear()
        if is_other:
            self._known, self._names = tables, []
            self._grouped.clear()
            self._groups.clear()
        if new := tables.names_since(len(self._names), _PAGE):
            self._names += new
            for name in new:
                table = tables.known(name)
                if table is not None and (sites := sites_of(table)):
                    self._grouped[name] = sites
                    self._groups.add(sites)
            for wanted, names in self._left_out.items():
                names += _not_held(wanted, new)
            self._idle = {only: _idle(idle, new) for only, idle in self._idle.items()}
        return tables


def _not_held(sets: Sets, names: Iterable[str]) -> list[str]:
    return [
        name
        for name in names
        if name not in (RESTORE_POINTS, GROUPS) and not any(holds(one, name) for one in sets)
    ]


def _idle(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    return [one for one in patterns if not any(holds((one,), name) for name in names)]
