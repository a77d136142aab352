"""Would the log survive the loss of a site now: what only it has, and which nodes could go on.

`survival`, `drill`, the pages and the check `data` of a node's readiness all judge here.  A
site counts for what it said that it holds: its transactions, the rows, and the commit tables.  It
has *the rows* if its log begins at position 0, or a replica of it that is in sync has applied at
least what is before its log.  A site that does not answer has no rows and no tables that others
can count on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparktxlog.model.answers import Survival
from sparktxlog.model.site_data import SiteData

#: Most tables that a sentence names.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site with data, as the judging node knows it."""

    name: str
    #: Origin → last transaction that it holds.
    transactions: Mapping[str, int]
    #: What it holds of the data, None = it does not answer, or has not said it (yet).
    data: SiteData | None = None
    #: End of its queue: it holds what is up to there and after the beginning of its log.
    position: int = 0
    #: Position of its replica that is in sync and not contested, None = it has none.
    replica: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSites:
    """What the judging node knows of all sites."""

    #: End of the queue, and origin → the last transaction in it.
    position: int
    ordered: Mapping[str, int]
    #: Without witnesses.
    sites: Sequence[Site]
    #: Each node with a place, witnesses too → other nodes that answer, and if they are a majority.
    voters: Mapping[str, tuple[list[str], bool]]
    #: Whether there are row tables with rows.
    any_rows: bool
    #: UUID → name.
    commit_tables: Mapping[str, str]
    #: Row table of a group → the sites that hold its rows (P41).
    grouped: Mapping[str, Collection[str]] = field(default_factory=dict)


def survivals(cluster: KnownSites) -> list[Survival]:
    """Return what the loss of each node with a place would mean."""
    ends = [*(one.transactions for one in cluster.sites), cluster.ordered]
    known = {
        origin: max(end.get(origin, 0) for end in ends)
        for origin in {origin for end in ends for origin in end}
    }
    found: list[Survival] = []
    for site, (voters, goes_on) in cluster.voters.items():
        others = [one for one in cluster.sites if one.name != site]
        held = [one.transactions for one in _with_rows_before(others, cluster.any_rows)]
        ordered_lost = _missing(cluster.ordered, held)
        rows_at = [one.name for one in others if _has_rows(one, cluster.any_rows)]
        tables = [
            name
            for uuid, name in cluster.commit_tables.items()
            if not any(one.data is not None and one.data.has_table(uuid) for one in others)
        ]
        one: Survival = {
            "site": site,
            "survives": False,
            "ordered": cluster.position,
            "ordered_only_there": ordered_lost,
            "accepted_only_there": _missing(known, held) - ordered_lost,
            "held_by": sorted(one.name for one in others if _holds_all(one, cluster)),
            "rows_held_by": sorted(rows_at),
            "tables_only_there": sorted(tables),
            "grouped_only_there": sorted(_only_at(site, cluster.grouped, others)),
            "voters": voters,
            "goes_on": goes_on,
            "applied_elsewhere": max(
                (one.replica for one in others if one.replica is not None), default=None
            ),
            "sentence": "",
        }
        one["survives"] = goes_on and not losses(one)
        one["sentence"] = _sentence(one)
        found.append(one)
    return found


def _only_at(
    site: str, grouped: Mapping[str, Collection[str]], others: Sequence[Site]
) -> list[str]:
    """Return the tables of groups that a site holds, and no other one that answers."""
    answer = {one.name for one in others if one.data is not None}
    return [table for table, at in grouped.items() if site in at and answer.isdisjoint(at)]


def _holds_all(site: Site, cluster: KnownSites) -> bool:
    """Return whether a site has all that is ordered; only the order of a silent one is known."""
    silent = site.data is None
    return not _missing(cluster.ordered, [site.transactions]) and (
        silent or _has_rows(site, cluster.any_rows)
    )


def _with_rows_before(sites: Sequence[Site], any_rows: bool) -> list[Site]:
    """Return the sites whose logs begin where others have the rows before.

    A site that began with a summary knows of transactions whose rows it never had; what is after
    the last row that the others have would be lost.  Where no site has the rows, that is said alone
    (`rows_held_by`).  Only the order of a silent site is known.
    """
    ends = [one.position for one in sites if _has_rows(one, any_rows)]
    if not ends:
        return list(sites)
    found, reach = list[Site](), max(ends)
    for one in sorted(sites, key=lambda site: site.data.rows_after if site.data else 0):
        if one.data is None or _has_rows(one, any_rows):
            found.append(one)
        elif one.data.rows_after <= reach:
            found.append(one)
            reach = max(reach, one.position)
    return found


def _has_rows(site: Site, any_rows: bool) -> bool:
    """Return whether a site has all rows of the row tables.

    Args:
        any_rows: Whether there are any.
    """
    if site.data is None:
        return False
    rows_after = site.data.rows_after
    return not any_rows or not rows_after or (site.replica or 0) >= rows_after


def lacks(site: Site, any_rows: bool) -> list[str]:
    """Return what a site lacks of what the others count on it to have, a clause for each.

    Args:
        any_rows: Whether there are row tables with rows.
    """
    data = site.data
    if data is None:
        return ["it does not know the log yet"]
    found = []
    if not _has_rows(site, any_rows):
        has = "no replica" if site.replica is None else f"a replica at {site.replica:,}"
        found.append(
            f"the rows up to position {data.rows_after:,} are missing: the log begins after it, "
            f"and the site has {has} that is in sync: its worker has to copy one"
        )
    if data.lacks:
        found.append(f"{data.lacks:,} commit tables are not whole")
    return found


def losses(found: Mapping[str, Any]) -> list[str]:
    """Return what the loss of a site would lose for good, a clause for each; empty = nothing."""
    site, parts = found["site"], list[str]()
    if lost := found["ordered_only_there"]:
        parts.append(f"{lost:,} of {found['ordered']:,} ordered positions are only at {site}")
    if only := found["accepted_only_there"]:
        parts.append(f"{only:,} accepted transactions are only at {site}")
    return [*parts, *_data_losses(found)]


def worst_loss(said: Sequence[Mapping[str, Any]]) -> tuple[int, int, list[str]]:
    """Return what the loss of a site would lose: the largest loss that one of the others reports.

    Args:
        said: A `Survival` of each node that was asked; of an older release it says less.

    Returns:
        How many transactions, of how many, and which other data, a clause for each.
    """
    lost = max((one["ordered_only_there"] + one["accepted_only_there"] for one in said), default=0)
    ordered = max((one["ordered"] for one in said), default=0)
    of = ordered + max((one["accepted_only_there"] for one in said), default=0)
    return lost, of, max(map(_data_losses, said), key=len, default=[])


def _data_losses(found: Mapping[str, Any]) -> list[str]:
    site, parts = found["site"], list[str]()
    if not found.get("rows_held_by", [site]):
        parts.append("no other site that answers has all rows of the row tables")
    if tables := found.get("tables_only_there"):
        more = len(tables) - _MOST_NAMED
        named = ", ".join(tables[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        parts.append(
            f"no other site that answers has all of {len(tables):,} commit tables: {named}"
        )
    if grouped := found.get("grouped_only_there"):
        more = len(grouped) - _MOST_NAMED
        named = ", ".join(grouped[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        parts.append(f"no other site of their groups answers for {len(grouped):,} tables: {named}")
    return parts


def _missing(wanted: Mapping[str, int], held: Collection[Mapping[str, int]]) -> int:
    """Return how many transactions up to the wanted numbers none of some nodes holds."""
    return sum(
        max(0, last - max((have.get(origin, 0) for have in held), default=0))
        for origin, last in wanted.items()
    )


def _sentence(found: Survival) -> str:
    site, ordered, parts = found["site"], found["ordered"], losses(found)
    if not found["ordered_only_there"] and (found["held_by"] or found["rows_held_by"]):
        holders = " and ".join(found["held_by"]) or "the others together"
        parts.insert(0, f"all {ordered:,} ordered positions are stored at {holders}")
    if not found["accepted_only_there"]:
        parts.append("no accepted transaction that is known is only there")
    if not found["goes_on"]:
        listed = ", ".join(found["voters"]) or "nobody"
        parts.append(f"what is left ({listed}) has no majority of votes, so nothing is ordered")
    applied = found["applied_elsewhere"]
    if applied is None:
        parts.append("no other site has tables that are in sync")
    else:
        parts.append(f"tables elsewhere are in sync at position {applied:,}")
    verdict = "yes, it would be survived" if found["survives"] else "NO"
    return f"Loss of {site}: {verdict}: {'; '.join(parts)}."
