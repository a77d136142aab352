"""What a recount and a comparison of sites found, as lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparktxlog.worker.verify.comparing import PairFinding, SiteComparison, SiteDifference, Suspect

if TYPE_CHECKING:
    from sparktxlog.worker.verify.verify import Verification


def recount_lines(found: Verification) -> list[str]:
    """Return a recount, one line for each table and one for each thing wrong with it."""
    sites = ", ".join(found.compared_sites) or "no other site at this position"
    lines = [f"site {found.node_id}, position {found.position}; compared: {sites}"]
    for table in found.tables:
        verdict = "sound" if table.sound else "DIFFERS"
        lines.append(f"{verdict:8}{table.table} version {table.version}: {table.counted}")
        if table.counted != table.recorded:
            lines.append(f"        recorded: {table.recorded}")
        lines += [f"        site {node}: {text}" for node, text in table.differing_sites.items()]
        lines += [f"        {cause}" for cause in table.causes]
    if not found.sound and found.verdict:
        lines.append(f"the node takes the replica for {found.verdict}; plan: {found.plan}")
    return lines


def comparison_lines(found: SiteComparison, said: list[str]) -> list[str]:
    """Return a comparison: a line for each pair of sites, its differences, the conclusions."""
    lines = []
    for pair in found.pairs:
        lines.append(_pair_line(pair))
        for difference in pair.differences:
            lines += _difference_lines(difference)
    lines += [f"site {site} was not asked: {reason}" for site, reason in found.absent.items()]
    return [*lines, *said]


def _pair_line(pair: PairFinding) -> str:
    sites = f"{pair.left} and {pair.right}"
    if not pair.compared:
        return f"unknown {sites}: no position that both reported"
    if not pair.differences:
        return f"equal   {sites}: up to position {pair.compared:,}"
    return f"DIFFER  {sites}: equal up to position {pair.equal_to:,}"


def _difference_lines(found: SiteDifference) -> list[str]:
    what = f"table {found.table}" if found.table else "order of transactions"
    interval = f"({found.last_equal:,}, {found.first_differing:,}]"
    lines = [f"        {what}: first difference in {interval}"]
    for site, text in found.signatures.items():
        against = "  against the majority" if site in found.disagreeing else ""
        lines.append(f"          site {site}: {text or 'no such table'}{against}")
    lines += [f"          {suspect_text(suspect)}" for suspect in found.suspects]
    return lines


def suspect_text(found: Suspect) -> str:
    """Return a transaction that touched the table, in one line."""
    where = f"{found.first}" if found.first == found.last else f"{found.first} to {found.last}"
    name = f" {found.transaction_id}" if found.transaction_id else ""
    return f"position {where}: {found.kind}{name} of {found.origin or 'unknown origin'}"
