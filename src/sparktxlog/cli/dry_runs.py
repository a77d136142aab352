"""`--dry-run` of commands that remove, reject or move something: what would go, from answers only.

Nothing is changed, and no decision is asked for; what is refused otherwise is refused here too, as
far as the answers show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from sparktxlog.cli.printing import print_json, say
from sparktxlog.errors import NotFoundError
from sparktxlog.model.tables.groups import check_places
from sparktxlog.model.tables.table_kind import TableDescription, TableKind

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go; change nothing.")]


def print_plan(as_json: bool, document: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print what a command would do: as JSON with `dry_run`, or as sentences."""
    if as_json:
        print_json({**document, "dry_run": True})
        return
    for line in lines:
        say(line)
    say("Nothing was changed.")


def removal_plan(
    epochs: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], node: str
) -> tuple[dict[str, Any], list[str]]:
    """Return what `peer remove` would do, as a document and in sentences.

    Args:
        epochs: Answer of `/v1/epochs`.
        groups: Answer of `/v1/groups`.
        node: The node that would go.

    Raises:
        NotFoundError: It has no place (definite).
        InvalidRequestError: It alone has the rows of a group (definite).
    """
    seat = next((one for one in epochs["roster"] if one["id"] == node), None)
    if seat is None:
        names = ", ".join(one["id"] for one in epochs["roster"])
        raise NotFoundError(f"node {node!r} has no place", hint=f"Places: {names}.", node=node)
    left = [one for one in epochs["roster"] if one["id"] != node]
    check_places(groups, {one["id"] for one in left if not (one["witness"] or one["follower"])})
    members = [one["id"] for one in left if one["member"]]
    losses = [one for one in epochs["force"]["may_be_lost"] if one["node_id"] == node]
    linked = epochs["force"]["linked_voters"]
    document = {
        "removed": seat,
        "linked_voters": linked,
        "members": members,
        "votes": sum(one["weight"] for one in left),
        "may_be_lost": losses,
    }
    lines = [
        f"Node {node} ({seat['url']}) would lose its place and {seat['weight']:,} votes.",
        f"Members after it: {', '.join(members) or 'none'}; {document['votes']:,} votes are left.",
        f"A majority of votes decides it.  Linked now, with a vote: {', '.join(linked) or 'none'}.",
        "What it accepted and no member holds would be lost to the log.",
    ]
    lines += [
        f"It reported that it accepted {one['last_shown'] or 0:,} transactions; "
        f"{one['held_here']:,} are here."
        for one in losses
    ]
    return document, lines


def void_plan(
    incoming: Sequence[Mapping[str, Any]], digest: str
) -> tuple[dict[str, Any], list[str]]:
    """Return what `void` would do; as `removal_plan`.

    Args:
        incoming: Answer of `/v1/incoming`.
        digest: Of the run, or its beginning.

    Raises:
        NotFoundError: No run, or several, that wait have it (definite).
    """
    found = [one for one in incoming if one["digest"].startswith(digest.lower())]
    if len(found) != 1:
        raise NotFoundError(
            f"{len(found) or 'no'} runs {digest[:64]!r} wait to be ordered here",
            hint="`sparktxlog status` names the runs that cannot be delivered.",
        )
    (run,) = found
    waits = ", ".join(sorted({one["peer"] for one in run["waits"]}))
    lines = [
        f"Run {run['digest'][:16]} of node {run['origin']} would take no effect at any site.",
        f"Its {run['n']:,} transactions would be rejected.",
        f"{run['size_bytes'] + run['staged_bytes']:,} bytes of rows would be lost for ever.",
        f"The run waits for {waits}." if waits else "The run waits for no node.",
    ]
    return {"run": dict(run)}, lines


def release_plan(
    table: TableDescription, path: str | None, *, drop: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return what `table release` would do; as `removal_plan`.

    Args:
        table: That would be given back.
        path: Directory that it would be given back into.
        drop: Whether a commit table would leave the log.
    """
    is_rows, name = table.kind is TableKind.ROW_TABLE, table.name
    document = {"table": name, "path": path, "leaves_the_log": is_rows or drop}
    goes = f"{name} would leave the log at all sites: jobs that write it fail."
    if not is_rows:
        lines = [f"{path} would get the files and versions of commit table {name}."]
        stays = f"{name} would stay in the log; add --drop to drop it there."
        return document, [*lines, f"Commit table {goes if drop else stays}"]
    written = table.last_write or table.position
    lines = [
        f"Row table {goes}",
        f"Its last write is at position {written:,}; what is ordered until then comes along.",
        "Each site's worker would move its files to the attic of the lake.",
    ]
    if path is not None:
        lines.append(f"{path} would get this site's files under second names.")
    return document, lines
