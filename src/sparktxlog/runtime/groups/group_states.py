"""How each group is, as this node sees it: which of its sites are there, and what that stops."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping

from sparktxlog.model.administration_answers import GroupLine
from sparktxlog.model.answers import OperatorWarning
from sparktxlog.model.tables.groups import Group, group_of, groups_of, sites_of
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import Segment


def elsewhere(base: Foundation, segments: Iterable[Segment]) -> dict[str, list[str]]:
    """Return the tables in segments whose rows this site does not hold, with the sites that do."""
    tables = Tables.of(base.master.tables)
    found: dict[str, list[str]] = {}
    for name in {effect.table for one in segments for effect in one.effects}:
        table = tables.known(name)
        sites = () if table is None else sites_of(table)
        if sites and base.config.node_id not in sites:
            found[name] = list(sites)
    return found


def group_lines(tables: Mapping[str, TableDefinition], members: Collection[str]) -> list[GroupLine]:
    """Return a line for each group: its definition, its tables, and which sites are away.

    Args:
        tables: Those of the log.
        members: Nodes that are there: members of the epoch that are not missing at the moment.
    """
    of_group: dict[str, list[str]] = {}
    dropped: dict[str, list[str]] = {}
    known = Tables.of(tables)
    for name in known.names_since(0, sys.maxsize):
        table = known.known(name)
        if table is not None and (group := group_of(table)):
            (dropped if table.is_dropped else of_group).setdefault(group, []).append(table.name)
    return [
        {
            "name": group.name,
            "sites": list(group.sites),
            "copies": group.copies,
            "schemas": list(group.schemas),
            "tables": sorted(of_group.get(group.name, ())),
            "dropped": sorted(dropped.get(group.name, ())),
            "away": _away(group, members),
            "takes_writes": len(group.sites) - len(_away(group, members)) >= group.copies,
        }
        for group in groups_of(tables)
    ]


def _away(group: Group, members: Collection[str]) -> list[str]:
    return [site for site in group.sites if site not in members]


def group_warnings(lines: Iterable[GroupLine]) -> list[OperatorWarning]:
    """Return warnings about groups whose sites are away, for the status."""
    found: list[OperatorWarning] = []
    for line in lines:
        if not line["away"] or not line["tables"]:
            continue
        away, copies = ", ".join(line["away"]), line["copies"]
        left = len(line["sites"]) - len(line["away"])
        name = f"group {line['name']!r}"
        if not left:
            text = (
                f"{name}: all of its sites are away ({away}): nobody can read or write its "
                f"{len(line['tables']):,} tables; other tables go on"
            )
        elif not line["takes_writes"]:
            text = (
                f"{name} needs {copies} copies, {left} of its sites are there; away: {away}.  "
                "Writes to it wait, and are refused in the end; other tables go on"
            )
        else:
            text = f"{name}: {away} is away; {left} of its sites are there, it needs {copies}"
        code = "group-degraded" if line["takes_writes"] else "group-away"
        found.append({"code": code, "text": text})
    return found
