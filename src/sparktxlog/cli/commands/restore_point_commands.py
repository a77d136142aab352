"""Commands `restore-point`: named positions of the log, the same at all sites."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, NodeApi, Url, app
from sparktxlog.cli.printing import Columns, print_json, say, show
from sparktxlog.model.shown import time_text

restore_point_app = typer.Typer(
    no_args_is_help=True, help="Name positions of the log, to read and restore tables at them."
)
app.add_typer(restore_point_app, name="restore-point")
PointName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the point.")]


@restore_point_app.command(
    "create", epilog="Example: sparktxlog restore-point create before-migration"
)
def point_create(
    name: PointName,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Name a position after all that any site has reported as ordered until now.

    Each site's worker ends a batch there, so that its tables can be read at the point.
    """
    from sparktxlog.api.reading.restore_points import create_point

    point = create_point(NodeApi(url), name, note)
    if as_json:
        print_json(asdict(point))
    else:
        say(f"Restore point {name} is position {point.position:,} of the log, at all sites.")


@restore_point_app.command("list", epilog="Example: sparktxlog restore-point list --json")
def point_list(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all restore points, by position."""
    from sparktxlog.api.reading.restore_points import known_points

    found = [asdict(point) for point in known_points(NodeApi(url).get)]
    columns: Columns = {
        "name": "name",
        "position": lambda point: point["position"] or "unfinished: delete it",
        "made (UTC)": lambda point: time_text(point["made_at"]),
        "note": "note",
    }
    show(found, as_json, "restore points", columns)


@restore_point_app.command(
    "delete", epilog="Example: sparktxlog restore-point delete before-migration"
)
def point_delete(name: PointName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a restore point; old versions that only it held back may then be removed."""
    from sparktxlog.api.reading.restore_points import delete_point

    delete_point(NodeApi(url), name)
    if as_json:
        print_json({"deleted": name})
    else:
        say(f"Restore point {name} is deleted.")
