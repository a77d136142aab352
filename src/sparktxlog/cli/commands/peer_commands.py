"""Commands of operators: members of the cluster and epoch decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, NodeApi, Url, app
from sparktxlog.cli.dry_runs import DryRun, print_plan, removal_plan, void_plan
from sparktxlog.cli.printing import print_json, print_rows
from sparktxlog.errors import (
    InvalidRequestError,
    PeerTimeoutError,
    TransportError,
    UnreachableError,
)
from sparktxlog.http.tokens import TOKEN_VARIABLE, token_in

if TYPE_CHECKING:
    from sparktxlog.runtime.leaving_fork.node_quarantine import GaveWay

peer_app = typer.Typer(
    help="Show and change the nodes of the cluster; its nodes vote on each change.",
    no_args_is_help=True,
)
app.add_typer(peer_app, name="peer")
Node = Annotated[str, typer.Argument(help="Node id.")]


class PlaceRole(StrEnum):
    """The role of a node."""

    MASTER = "master"
    WITNESS = "witness"
    FOLLOWER = "follower"


#: The node answers within 60 s; it reports a longer decision as unknown.
_TIMEOUT_S = 70.0


def _api(url: str) -> NodeApi:
    return NodeApi(url, timeout_s=_TIMEOUT_S)


def _send(url: str, as_json: bool, method: str, path: str, body: dict[str, Any]) -> None:
    """Ask for a decision, and print the members after it."""
    _print(_api(url).send(method, path, body), as_json)


def _path(node: str, act: str = "") -> str:
    return f"/v1/peers/{quote(node, safe='')}{act}"


@peer_app.command("list", epilog="Example: sparktxlog peer list --json")
def peer_list(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all nodes of the cluster in precedence order, and which of them are linked."""
    _print(_api(url).get("/v1/epochs"), as_json)


@peer_app.command("add", epilog="Example: sparktxlog peer add D http://10.0.0.4:7070")
def peer_add(
    node: Node,
    address: Annotated[str, typer.Argument(help="Its master-url; further addresses after commas.")],
    weight: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Its votes; default: 1, of a follower 0.")
    ] = None,
    witness: Annotated[bool, typer.Option("--witness", help="It only votes.")] = False,
    follower: Annotated[
        bool, typer.Option("--follower", help="It follows without a vote; nobody waits for it.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a node to the cluster.  Start it with the others as its peers, and it joins.

    A follower never becomes a member by itself: `sparktxlog peer set D --role master` makes it one.
    """
    body: dict[str, Any] = {"id": node, "url": address, "witness": witness}
    if follower:
        body["follower"] = True
    if weight is not None:
        body["weight"] = weight
    _send(url, as_json, "POST", "/v1/peers", body)


@peer_app.command("remove", epilog="Example: sparktxlog peer remove D")
def peer_remove(
    node: Node, dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Remove a node from the cluster; the other nodes no longer talk to it."""
    if dry_run:
        api = _api(url)
        epochs = api.get("/v1/epochs")
        # A witness knows no tables, and no groups.
        groups = [] if epochs["phase"] == "WITNESS" else api.get("/v1/groups")
        print_plan(as_json, *removal_plan(epochs, groups, node))
        return
    _send(url, as_json, "DELETE", _path(node), {})


@peer_app.command("replace", epilog="Example: sparktxlog peer replace C D http://10.0.0.4:7070")
def peer_replace(
    old: Annotated[str, typer.Argument(help="Id of the node that leaves.")],
    new: Annotated[str, typer.Argument(help="Id of the node that takes its place.")],
    address: Annotated[str, typer.Argument(help="Its master-url; further addresses after commas.")],
    weight: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Its votes; default: those of OLD.")
    ] = None,
    role: Annotated[PlaceRole | None, typer.Option(help="Its role; default: that of OLD.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Replace a node by another one, which gets its precedence and votes, in one decision.

    Start the new node with the others as its peers.  It fetches the queue and is then admitted by a
    second decision.
    """
    body: dict[str, Any] = {"id": new, "url": address}
    if weight is not None:
        body["weight"] = weight
    if role is not None:
        body["witness"] = role is PlaceRole.WITNESS
        body["follower"] = role is PlaceRole.FOLLOWER
    _send(url, as_json, "POST", _path(old, "/replace"), body)


@peer_app.command("set", epilog="Example: sparktxlog peer set B --weight 2")
def peer_set(
    node: Node,
    address: Annotated[str | None, typer.Option(help="Its new address, or several.")] = None,
    weight: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Its new number of votes.")
    ] = None,
    role: Annotated[
        PlaceRole | None,
        typer.Option(help="master: a follower becomes a member; follower: and back."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change a node's address, votes or role.

    A follower that becomes a member gets one vote, and is admitted once it is at the end of the
    queue; a member that becomes a follower loses its votes.  `--weight` says otherwise.
    """
    if role is PlaceRole.WITNESS:
        raise InvalidRequestError(
            f"{node} cannot become a witness, which keeps no data",
            hint="Remove it, and add a witness with another data directory.",
            field="role",
        )
    follower = None if role is None else role is PlaceRole.FOLLOWER
    body = {"url": address, "weight": weight, "follower": follower}
    given = {name: value for name, value in body.items() if value is not None}
    if not given:
        raise InvalidRequestError("nothing to change", hint="Add --address, --weight or --role.")
    _send(url, as_json, "PATCH", _path(node), given)


@peer_app.command("set-quorum", epilog="Example: sparktxlog peer set-quorum majority")
def peer_set_quorum(
    rule: Annotated[str, typer.Argument(help="all, majority, default or a number.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change how many members must hold a transaction before it is acquired.

    The nodes vote on the change.  The setting `acquisition-quorum` applies to the first epoch only.
    """
    _send(url, as_json, "POST", "/v1/quorum", {"rule": rule})


@peer_app.command("set-synchro-quorum", epilog="Example: sparktxlog peer set-synchro-quorum N/2+1")
def peer_set_synchro_quorum(
    rule: Annotated[str, typer.Argument(help="A number, or an expression over N.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change how many members must hold a synchronous transaction before it is ordered.

    N is the number of nodes with data.  The nodes vote on the change.  The setting
    `synchro-quorum` applies to the first epoch only.
    """
    _send(url, as_json, "POST", "/v1/quorum", {"synchro_rule": rule})


@peer_app.command("promote", epilog="Example: sparktxlog peer promote C")
def peer_promote(node: Node, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Move a node up by one in precedence: the first member is the master on duty."""
    _send(url, as_json, "POST", _path(node, "/promote"), {})


@peer_app.command("demote", epilog="Example: sparktxlog peer demote A")
def peer_demote(node: Node, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Move a node down by one in precedence."""
    _send(url, as_json, "POST", _path(node, "/demote"), {})


@peer_app.command("force", epilog="Example: sparktxlog peer force --confirm 'A 3'")
def peer_force(
    confirm: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The node's id and epoch, instead of typing them."),
    ] = None,
    though_linked: Annotated[
        bool,
        typer.Option(
            "--though-linked", help="Go on although other voters are linked, so they are alive."
        ),
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let the asked node go on alone.  Use it only if all other members are certainly dead.

    If one of them is alive, the log forks, and transactions that it ordered meanwhile are missing
    here.  The command is refused while another voter is linked.
    """
    api = _api(url)
    if confirm is None:
        shown = api.get("/v1/epochs")["force"]
        for name in shown.get("linked_voters") or []:
            typer.echo(f"{name} is a voter and linked: it is not dead.", err=True)
        typer.echo(
            "Go on only if all other members are certainly dead. Otherwise the log forks.", err=True
        )
        _print_losses(shown["may_be_lost"], err=True)
        confirm = typer.prompt(f"Type {shown['confirm']!r} to go on", err=True)
    body: dict[str, Any] = {"confirm": confirm}
    if though_linked:
        body["though_linked"] = True
    _print(api.send("POST", "/v1/force", body), as_json)


def _print(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_rows(
        f"{found['log_id']}, epoch {found['epoch']}: this node is {found['phase']}"
        + (f", the quorum is {found['quorum_rule']}" if found.get("quorum_rule") else ""),
        ("node", "address", "votes", "member", "role", "incarnation", "on duty", "missed"),
        [
            [
                seat["id"],
                seat["url"],
                seat["weight"],
                seat["member"],
                "witness" if seat["witness"] else "follower" if seat["follower"] else "master",
                seat["incarnation"],
                seat["id"] == found["duty"],
                seat["id"] in found["suspects"],
            ]
            for seat in found["roster"]
        ],
    )
    linked = found.get("reachability", {}).get("linked")
    if linked:
        _print_matrix(linked, found["reachability"]["differing"])
        _print_addresses(found["reachability"])
    if found.get("may_be_lost") is not None:
        _print_losses(found["may_be_lost"])


def _print_matrix(linked: Mapping[str, Mapping[str, bool]], differing: list[str]) -> None:
    names = sorted({*linked, *(other for row in linked.values() for other in row)})
    print_rows(
        "which nodes are linked",
        ("node", *names),
        [[node, *(row.get(name, "-") for name in names)] for node, row in linked.items()],
    )
    _print_differing(differing)


def _print_addresses(reachability: Mapping[str, Any]) -> None:
    """Print which of several addresses answer which node, if a node has several."""
    matrix = reachability.get("addresses")
    if not matrix:
        return
    found = ((node, url) for row in matrix.values() for node in row for url in row[node])
    lines = sorted(dict.fromkeys(found), key=lambda line: line[0])
    print_rows(
        "which addresses answer",
        ("node", "address", *matrix),
        [
            [node, address, *(row.get(node, {}).get(address) for row in matrix.values())]
            for node, address in lines
        ],
    )
    _print_differing(
        [name for names in reachability["differing_addresses"].values() for name in names]
    )


def _print_differing(differing: list[str]) -> None:
    if differing:
        typer.echo(f"Nodes disagree about {', '.join(differing)}: check the network.")


def _print_losses(losses: list[Mapping[str, Any]], *, err: bool = False) -> None:
    for loss in losses:
        unheard = loss["unheard_s"]
        since = "never heard" if unheard is None else f"last heard {unheard:,.1f} s ago"
        if loss["missing"] is None:
            held = f"{loss['held_here']:,} transactions that it accepted"
            shown = f"{held} are here; what else it accepted"
        else:
            shown = (
                f"it reported that it accepted {loss['last_shown']:,} transactions: "
                f"{loss['held_here']:,} are here, {loss['missing']:,} are missing; what it "
                "accepted afterwards"
            )
        typer.echo(f"{loss['node_id']}, {since}: {shown} is unknown here.", err=err)


# -- a run that no node can deliver ---


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
            help="Do not wait for this member, although it may hold the run; may be repeated.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Declare a run void that no node can deliver: its transactions are rejected at every site.

    Ask the node that accepted it.  All members look for the run first: if one of them holds it,
    or has it in its queue, nothing is changed.
    """
    if dry_run:
        print_plan(as_json, *void_plan(_api(url).get("/v1/incoming", limit=1_000), run))
        return
    if not yes:
        text = f"The rows of run {run[:64]} will be lost for ever.  Go on?"
        typer.confirm(text, abort=True, err=True)
    body: dict[str, Any] = {"run": run} | ({"without": without} if without else {})
    found = _api(url).send("POST", "/v1/void", body)
    if as_json:
        print_json(found)
        return
    voided = found["voided"]
    typer.echo(
        f"Run {voided['digest'][:16]} of {voided['origin']} is void in epoch {found['epoch']}: "
        f"{voided['transactions']:,} transactions are rejected."
    )


# -- a node leaves its history for another one (P28) ---


@peer_app.command(
    epilog="Example: sparktxlog peer quarantine --config conf/site-c.toml --from http://a:7070"
)
def quarantine(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="Configuration of the node that leaves its fork.")
    ],
    follow: Annotated[
        str, typer.Option("--from", metavar="URL", help="A node of the side whose log is kept.")
    ],
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            help="Also if its queue does not differ: its clock was so far ahead that no member "
            "admits it.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a stopped node leave its fork: keep what only it has, then let it join.

    After `peer force` the other side may have transactions that are missing in the log of this
    side.  They go to the Delta table log/quarantine, with rows and ids; nothing is deleted.
    """
    from sparktxlog.config import load_config
    from sparktxlog.runtime.leaving_fork.node_quarantine import quarantine_node

    checked = load_config(config)
    api = NodeApi(follow, token=token_in(TOKEN_VARIABLE) or checked.client_token)
    try:
        done = quarantine_node(
            checked, api, lambda text: typer.echo(text, err=True), rejoin=rejoin, dry_run=dry_run
        )
    except TransportError as error:
        if type(error) not in (TransportError, UnreachableError, PeerTimeoutError):
            raise
        hint = "Name another node of that side with --from; nothing was changed here."
        raise type(error)(error.message, hint=hint, **error.fields) from error
    if as_json:
        shown = asdict(done) | {"dry_run": dry_run}
        print_json(shown if dry_run else shown | {"next": _next_steps(done, config)})
    else:
        _print_given_way(done, config, dry_run)


def _print_given_way(done: GaveWay, config: Path, dry_run: bool) -> None:
    least = "" if done.exact else ", at least; not both sides keep the history after it"
    typer.echo(
        f"The queue here and that of {done.followed} are equal up to position "
        f"{done.common:,}{least}."
    )
    if done.pruned:
        typer.echo(
            f"{done.pruned:,} positions after it were already pruned here; they are not kept."
        )
    begin = "Would be kept" if dry_run else "Kept"
    typer.echo(
        f"{begin} in {done.table}, quarantine_id {done.quarantine_id}: {done.ordered:,} ordered, "
        f"{done.accepted:,} accepted and {done.acquired:,} acquired transactions; "
        f"{done.surviving:,} of them are also in {done.followed}'s queue, {done.incomplete:,} are "
        "incomplete (column remark)."
    )
    if dry_run:
        typer.echo(f"The journal and the queue table would move to {done.directory}.")
        typer.echo("Nothing was changed.")
        return
    typer.echo(f"Their rows, the journal and the queue table are in {done.directory}.")
    for step in _next_steps(done, config):
        typer.echo(f"Next: {step}")


def _next_steps(done: GaveWay, config: Path) -> list[str]:
    join = (
        f"sparktxlog serve --config {config}   (joins {done.log_id} as incarnation "
        f"{done.incarnation}; its worker copies the tables, or jobs/replicate.py if it is AHEAD)"
    )
    submit = f"submit again, under their ids, the transactions of {done.table} that you still need"
    place = f"sparktxlog peer add {done.node_id} ITS-URL   ({done.followed} has no place for it)"
    return [join, submit] if done.has_place else [place, join, submit]
