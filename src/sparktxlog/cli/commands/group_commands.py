"""Commands `group`: which sites hold the rows of which tables."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, NodeApi, Url, app
from sparktxlog.cli.printing import Columns, print_json, say, show
from sparktxlog.errors import UnknownGroupError

group_app = typer.Typer(
    no_args_is_help=True, help="Let some sites only hold the rows of some tables."
)
app.add_typer(group_app, name="group")
GroupName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the group.")]
Schemas = Annotated[
    str | None,
    typer.Option(metavar="SCHEMAS", help="New tables of these belong to it, comma separated."),
]


@group_app.command("create", epilog="Example: sparktxlog group create eu --sites B,C --copies 2")
def group_create(
    name: GroupName,
    sites: Annotated[
        str, typer.Option(metavar="NODES", help="Nodes whose sites hold its tables; they stay.")
    ] = "",
    copies: Annotated[
        int, typer.Option(help="So many of them hold a transaction's rows before it is ordered.")
    ] = 1,
    schemas: Schemas = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a group of sites.  `sparktxlog table create --group` makes a table of it."""
    from sparktxlog.api.writing.group_definitions import create_group

    group = create_group(NodeApi(url), name, _names(sites), copies, _names(schemas or ""))
    _told(name, as_json, url, f"Group {name} is there: {', '.join(group.sites)}.")


@group_app.command("alter", epilog="Example: sparktxlog group alter eu --copies 1")
def group_alter(
    name: GroupName,
    copies: Annotated[int | None, typer.Option(help="Copies from now on.")] = None,
    schemas: Schemas = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change how many copies its transactions need from now on, or its schemas."""
    from sparktxlog.api.writing.group_definitions import alter_group

    of_it = None if schemas is None else _names(schemas)
    group = alter_group(NodeApi(url), name, copies=copies, schemas=of_it)
    _told(name, as_json, url, f"Group {name} needs {group.copies} of {len(group.sites)} copies.")


@group_app.command("list", epilog="Example: sparktxlog group list --json")
def group_list(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all groups, and which of their sites are away."""
    columns: Columns = {
        "name": "name",
        "sites": lambda one: ", ".join(one["sites"]),
        "copies": "copies",
        "tables": lambda one: len(one["tables"]),
        "away": lambda one: ", ".join(one["away"]),
        "takes writes": lambda one: "yes" if one["takes_writes"] else "no",
    }
    show(NodeApi(url).get("/v1/groups"), as_json, "groups", columns)


@group_app.command("show", epilog="Example: sparktxlog group show eu")
def group_show(name: GroupName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one group, with its tables."""
    found = _found(name, url)
    if as_json:
        print_json(found)
        return
    away, takes = ", ".join(found["away"]) or "none", "yes" if found["takes_writes"] else "no"
    say(f"Group {name}: {found['copies']} copies at sites {', '.join(found['sites'])}.")
    say(f"Sites that are away: {away}.  Takes writes: {takes}.")
    say(f"Schemas: {', '.join(found['schemas']) or 'none'}.")
    say(f"Tables: {', '.join(found['tables']) or 'none'}.")


def _found(name: str, url: str) -> dict[str, Any]:
    known: list[dict[str, Any]] = NodeApi(url).get("/v1/groups")
    for one in known:
        if one["name"] == name:
            return one
    raise UnknownGroupError(
        f"there is no group {name[:80]!r}",
        hint=f"Groups: {', '.join(one['name'] for one in known)[:1000] or 'none'}.",
        group=name[:80],
    )


def _told(name: str, as_json: bool, url: str, text: str) -> None:
    if as_json:
        print_json(_found(name, url))
    else:
        say(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
