"""Commits of other sites to the tables that this site commits to, and whose turn it is (P36).

Each version of a table is one commit, and each needs a round of the log.  Writers at several sites
that go at full speed learn of a version at the same time, and all ask for the next one.  All but
one would lose, and each would have cost a round.  So:

- a commit of another site that came here, and has no place in the order yet, most likely comes
  first: what this site stamps later comes later.  An own commit waits until that is decided;
- where other sites committed to the table a moment ago, their turn comes before another one of the
  site that has the newest version, in the order of their names.  This site does not wait again for
  one that does not come in time.

All this is only likely, and only delays: no client gets a conflict before the order says that a
version is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sparktxlog.errors import VersionConflictError
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation, CommitTables
from sparktxlog.model.transactions.operation import RunFacts

#: Seconds that an own commit waits for a decision at most: the other site may be gone.
PATIENCE_S = 1.0
#: Longest turn, seconds; and how many turns ago a site may have committed that is waited for.
_LONGEST_S, _TURNS = 0.1, 8
#: With more tables than that, those without a commit within `PATIENCE_S` are forgotten.
_MANY = 64
#: Share of the last commit in the estimate of how long one takes.
_WEIGHT = 0.2


@dataclass(slots=True)
class _Rivalry:
    """What is known of one table."""

    #: The latest version that another site wants, and until when that is waited for.
    wanted: int = 0
    until: float = 0.0
    #: When the last commit came here.
    heard: float = 0.0
    #: Site → its last commit that came here, and when.
    last: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    #: Set when another commit comes.
    came: asyncio.Event = field(default_factory=asyncio.Event)


class RivalCommits:
    """What other sites commit; belongs to the event loop.

    Args:
        node_id: This site's node.
        tables: The commit tables at the end of the order.
        time: Seconds, steady.
    """

    def __init__(self, node_id: str, tables: CommitTables, time: Callable[[], float]) -> None:
        self._node_id = node_id
        self._tables = tables
        self._time = time
        self._rivalries: dict[str, _Rivalry] = {}
        self._most = _MANY
        #: Seconds that an own commit takes until it is ordered.
        self._turn_s = 0.02

    def note(self, origin: str, facts: RunFacts) -> None:
        """Note what a run of another site commits."""
        for index, commit in facts.commits:
            if commit.kind is CommitKind.COMMIT:
                now, rivalry = self._time(), self._rivalries.setdefault(commit.uuid, _Rivalry())
                rivalry.heard = now
                rivalry.last[origin] = (facts.ids[16 * index : 16 * index + 16], now)
                if commit.version > rivalry.wanted:
                    rivalry.wanted, rivalry.until = commit.version, now + PATIENCE_S
                rivalry.came.set()
        if len(self._rivalries) > self._most:
            self._forget()

    def _forget(self) -> None:
        """Forget what is too old to be waited for, also of tables that were dropped."""
        since = self._time() - PATIENCE_S
        kept = {uuid: one for uuid, one in self._rivalries.items() if one.heard > since}
        self._rivalries, self._most = kept, 2 * len(kept) + _MANY

    def took(self, seconds: float) -> None:
        """Note how long an own commit took until it was ordered."""
        self._turn_s += _WEIGHT * (min(seconds, _LONGEST_S) - self._turn_s)

    def is_awaited(self, uuid: str) -> bool:
        """Return whether another site's commit of a table is waited for."""
        rivalry, table = self._rivalries.get(uuid), self._tables.get(uuid)
        if rivalry is None or table is None:
            return False
        return rivalry.wanted > table.version and self._time() < rivalry.until

    async def await_turn(self, uuid: str) -> None:
        """Wait until this site may commit to a table, or another one's commit comes."""
        rivalry, table = self._rivalries.get(uuid), self._tables.get(uuid)
        if rivalry is None or table is None or self.is_awaited(uuid):
            return
        now = self._time()
        there = {
            site: identity
            for site, (identity, at) in rivalry.last.items()
            if now - at < _TURNS * self._turn_s
        }
        has_newest = (site for site, one in there.items() if one == table.transaction_id)
        newest = next(has_newest, self._node_id)
        sites = sorted({*there, self._node_id})
        # Those after the site with the newest version, then those before it, then that one.
        order = [*(s for s in sites if s > newest), *(s for s in sites if s <= newest)]
        earlier = order[: order.index(self._node_id)]
        if not earlier:
            return
        rivalry.came.clear()
        try:
            async with asyncio.timeout(len(earlier) * self._turn_s):
                await rivalry.came.wait()
        except TimeoutError:
            for site in earlier:
                rivalry.last.pop(site, None)

    def lost_to(self, commits: Sequence[CommitOperation]) -> VersionConflictError | None:
        """Return the error of commits of which one cannot take effect: its version is taken."""
        for commit in commits:
            table = self._tables.get(commit.uuid)
            if commit.kind is CommitKind.COMMIT and table and table.version >= commit.version:
                return VersionConflictError(
                    f"version {commit.version} of {table.name!r} is taken, the newest one is "
                    f"{table.version}",
                    table=table.name,
                    version=table.version,
                    winner=table.position,
                    winner_id=transaction_id_to_text(table.transaction_id),
                )
        return None
