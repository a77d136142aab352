"""Command `peer quarantine`: a stopped node of another history gives way (protocol P28)."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparktxlog.cli.node_api import NodeApi
from sparktxlog.cli.output import print_json
from sparktxlog.cli.peer_commands import peer_app
from sparktxlog.cli.root import AsJson
from sparktxlog.errors import TransportError
from sparktxlog.http.tokens import TOKEN_VARIABLE

if TYPE_CHECKING:
    from sparktxlog.runtime.giving_way.quarantine import GaveWay


@peer_app.command(
    epilog="Example: sparktxlog peer quarantine --config conf/site-c.toml --from http://a:7070"
)
def quarantine(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="Configuration of the node that gives way.")
    ],
    follow: Annotated[
        str, typer.Option("--from", metavar="URL", help="A node of the side that goes on.")
    ],
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            help="Also if its queue does not differ: its clock was far ahead, and no member admits "
            "it with what it promised then.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a stopped node that cannot follow give way: keep what only it has, then let it join.

    After `peer force` the other side may have transactions that the log which goes on has not.
    They go to the Delta table log/quarantine, with their rows and ids; nothing is deleted.
    """
    from sparktxlog.config import load_config
    from sparktxlog.runtime.giving_way.quarantine import quarantine_node

    checked = load_config(config)
    api = NodeApi(follow, token=os.environ.get(TOKEN_VARIABLE) or checked.client_token)
    try:
        done = quarantine_node(checked, api, lambda text: typer.echo(text, err=True), rejoin=rejoin)
    except TransportError as error:
        if type(error) is not TransportError:
            raise
        hint = "Name another node of that side with --from; nothing was changed here."
        raise TransportError(error.message, hint=hint, **error.fields) from error
    if as_json:
        print_json(asdict(done) | {"next": _next_steps(done, config)})
    else:
        _print(done, config)


def _print(done: GaveWay, config: Path) -> None:
    least = "" if done.exact else " at least; not both sides keep what comes after"
    typer.echo(
        f"The queue here and that of {done.followed} are equal up to {done.common:,}{least}."
    )
    if done.pruned:
        typer.echo(f"{done.pruned:,} positions after it were already pruned here and are not kept.")
    typer.echo(
        f"Kept in {done.table}, quarantine_id {done.quarantine_id}: {done.ordered:,} ordered, "
        f"{done.accepted:,} accepted and {done.acquired:,} acquired transactions; "
        f"{done.surviving:,} of them are in {done.followed}'s queue too, {done.incomplete:,} lack "
        "something (column remark)."
    )
    typer.echo(f"Their rows, the front and the queue's table are in {done.directory}.")
    for step in _next_steps(done, config):
        typer.echo(f"Next: {step}")


def _next_steps(done: GaveWay, config: Path) -> list[str]:
    join = (
        f"sparktxlog serve --config {config}   (joins {done.lineage} as incarnation "
        f"{done.incarnation}; its worker copies the tables, or jobs/replicate.py if it is AHEAD)"
    )
    submit = f"submit again, under their ids, what shall count of {done.table} and does not survive"
    place = f"sparktxlog peer add {done.node_id} ITS-URL   ({done.followed} has no place for it)"
    return [join, submit] if done.has_place else [place, join, submit]
