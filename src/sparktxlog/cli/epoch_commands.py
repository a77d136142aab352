"""Commands about epoch decisions: their history, and a run that one of them voids."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparktxlog.cli.node_api import NodeApi
from sparktxlog.cli.output import Columns, print_json, show, time_text
from sparktxlog.cli.root import DEFAULT_URL, AsJson, Url, app

#: The node answers within 60 s, a decision that takes longer is told as unknown.
_TIMEOUT_S = 70.0


@app.command(epilog="Example: sparktxlog epochs --limit 5")
def epochs(
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Epochs to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the epochs that a node has taken part in, newest first: members, and what changed.

    Epochs that began and ended while the node was away are missing; ask another node.
    """
    columns: Columns = {
        "taken up (UTC)": lambda epoch: time_text(epoch["taken_up_at"]),
        **{name: name for name in ("lineage", "epoch", "members", "joined", "left", "changed")},
        "quorum": lambda epoch: f"{epoch['quorum']} ({epoch['quorum_rule']})",
        "begins after": lambda epoch: epoch["begins_after"]["position"],
        "phase": "phase",
    }
    show(NodeApi(url).get("/v1/epochs/history", limit=limit), as_json, "epochs", columns)


@app.command(epilog="Example: sparktxlog void 3f2a90c1d4e5b6a7 --yes --json")
def void(
    run: Annotated[
        str, typer.Argument(help="Digest of the run, or its first 8 digits or more; see `status`.")
    ],
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NODE",
            help="Give up a member that does not answer and may hold the run; may be repeated.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Declare a run void that nobody can deliver: its transactions are rejected at every site.

    Ask the node that stamped it.  All members look at their files first: if one of them holds the
    run, or has it in its queue, nothing is changed.
    """
    if not yes:
        text = f"The rows of run {run[:64]} are lost for ever then.  Go on?"
        typer.confirm(text, abort=True, err=True)
    body: dict[str, Any] = {"run": run} | ({"without": without} if without else {})
    found = NodeApi(url, timeout_s=_TIMEOUT_S).send("POST", "/v1/void", body)
    if as_json:
        print_json(found)
        return
    voided = found["voided"]
    typer.echo(
        f"Run {voided['digest'][:16]} of {voided['origin']} is void in epoch {found['epoch']}: "
        f"{voided['transactions']:,} transactions are rejected."
    )
