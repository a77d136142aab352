"""Receipts: the state of a transaction or run, for its client."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from sparktxlog.model.shown import html_table, utc_text


class Level(str, Enum):
    """How far a transaction got, in rising order."""

    ACCEPTED = "accepted"
    ACQUIRED = "acquired"
    ORDERED = "ordered"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class Appliers:
    """Sites that shall have applied a transaction: so many, of each group that it has rows for.

    Raises:
        ValueError: Fewer than one.
    """

    #: From 1; 1 without groups: the own site.
    sites: int = 1
    #: The sites of each group (P41); empty = any sites.
    groups: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.sites < 1:
            raise ValueError(f"{self.sites} sites: a position is applied by one at least")

    @property
    def own(self) -> bool:
        """Whether only the own site counts."""
        return self.sites == 1 and not self.groups

    def reached(self, positions: Mapping[str, int]) -> int:
        """Return the position that they have reached, 0 = there are fewer.

        Args:
            positions: Of each site that counts.
        """
        least = list[int]()
        for group in self.groups or (tuple(positions),):
            found = sorted((positions[site] for site in group if site in positions), reverse=True)
            least.append(found[self.sites - 1] if len(found) >= self.sites else 0)
        return min(least)

    def suffice(self, sites: Collection[str]) -> bool:
        """Return whether these sites are enough."""
        counted = [sum(site in group for site in sites) for group in self.groups] or [len(sites)]
        return min(counted) >= self.sites


#: Rank of a level; a receipt of a higher level includes the lower ones.
LEVEL_RANK = {level: rank for rank, level in enumerate(Level, start=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunId:
    """A stamped run: the transactions `seq .. seq+n-1` of its origin."""

    origin: str
    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptRejection:
    """A transaction of the run that takes no effect; all sites reject it."""

    index: int
    code: str
    text: str
    #: Of a conflict: the table, position of the write that it lost to, and the node where that
    #: was committed; None = not known.
    table: str | None = None
    winner: int | None = None
    origin: str | None = None
    #: Of a commit that lost: the newest version of its table, and the id of the transaction that
    #: committed that.
    version: int | None = None
    winner_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """State of a submitted transaction (`n` = 1) or run of transactions."""

    #: UUID text; None for runs of more than one transaction.
    transaction_id: str | None
    n: int
    #: The reached level, None = refused as a whole.
    level: Level | None
    #: The transaction is ordered, but less than was asked for: the requested level was not reached
    #: in time, and `level` will rise; or it is synchronous, and `holders` says how many hold it.
    late: bool = False
    run: RunId | None = None
    #: Position of the first transaction; the i-th of the run is at `position + i`.
    position: int | None = None
    #: `committed`, `rejected`, `prepared` (undecided), or None: not ordered, or the answering node
    #: no longer keeps the outcome.  For runs it is None, and `rejections` lists the rejected ones.
    outcome: str | None = None
    rejections: tuple[ReceiptRejection, ...] = ()
    #: Wall clock, microseconds since 1970 UTC.
    ordered_at: int | None = None
    #: Rows of the submit; None if only an id was asked for.
    rows: int | None = None
    #: Ids that the node made, UUID texts in order; empty if the client gave them.
    ids: tuple[str, ...] = ()
    #: The log whose position it is; None = not known here.
    log_id: str | None = None
    #: Of a synchronous transaction that was ordered while members went away: how many members are
    #: known to hold it; fewer than it was to have.
    holders: int | None = None
    #: Of a prepared transaction: where it is ordered.  Once it is decided, `position` says where.
    prepared_at: int | None = None
    #: Why level applied is not reached by waiting: which table of which site stands still; None =
    #: none does.
    held_up: str | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._parts())

    def _repr_html_(self) -> str:
        return html_table(("receipt", ""), self._parts())

    def _parts(self) -> list[tuple[str, str]]:
        """Return what is known, in words."""
        what = self.transaction_id or f"{self.n:,} transactions"
        found = [("transaction" if self.transaction_id else "run of", what)]
        level = "refused" if self.level is None else self.level.value
        found.append(("level", f"{level} (late)" if self.late else level))
        if self.held_up is not None:
            found.append(("held up", self.held_up))
        if self.position is not None:
            found.append(("position", f"{self.position:,}"))
        if self.outcome is not None:
            found.append(("outcome", self.outcome))
        if self.rows is not None:
            found.append(("rows", f"{self.rows:,}"))
        if self.ordered_at is not None:
            found.append(("ordered at", utc_text(self.ordered_at)))
        found += [("rejected", f"{one.code}: {one.text}") for one in self.rejections]
        return found

    @classmethod
    def of_nothing(cls, level: Level) -> Receipt:
        """Return the receipt of a submit without rows and without an id: nothing was recorded."""
        return cls(transaction_id=None, n=0, level=level, outcome="committed", rows=0)
