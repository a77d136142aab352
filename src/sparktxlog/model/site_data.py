"""What a site says that it holds of the log's data, for others that count on it.

A node that begins with a summary of the queue (P21) knows the order and lacks the rows before the
summary, and a log that was shortened lacks the rows before its beginning.  Only a replica of the
same site can have them.  Versions of commit tables are copied from other sites, one table after the
other.  Until that is done, the site is a member with all rights, and no copy of the data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparktxlog.model.ids import Int64, JournalNumber

#: Most commit tables that a site names.
_MOST_NAMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteData:
    """Where a site's rows begin, and which commit tables it does not have whole."""

    #: Its log has the rows of all positions after this one, up to the end of its queue.
    rows_after: JournalNumber
    #: How many commit tables lack a version, or files of one.
    lacks: Int64 = 0
    #: Their UUIDs, ascending; some of them if there are many.
    lacking: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows_after: int, lacking: Collection[str]) -> SiteData:
        """Return it of a site that lacks parts of some commit tables."""
        named = tuple(sorted(lacking)[:_MOST_NAMED])
        return cls(rows_after=rows_after, lacks=len(lacking), lacking=named)

    def has_table(self, uuid: str) -> bool:
        """Return whether the site certainly has all versions of a commit table."""
        return self.lacks == len(self.lacking) and uuid not in self.lacking


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePace:
    """How quick a node's disk is: the commits of all sites wait for each member's (P37)."""

    #: Microseconds of a write of its journal, the median of the last ones; None = too few of late.
    write_us: Int64 | None = None
    #: Whether it asks the others not to wait for it.
    aside: bool = False

    @property
    def write_s(self) -> float | None:
        """The same in seconds, for people."""
        return None if self.write_us is None else round(self.write_us / 1e6, 4)
