"""Commands that look at a node: its state, its links, its queue, single transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sparktxlog.cli.catchup_commands import last_transfer_text
from sparktxlog.cli.node_api import NodeApi
from sparktxlog.cli.output import (
    Columns,
    ExitCode,
    end,
    print_json,
    print_table,
    show,
    time_text,
)
from sparktxlog.cli.root import DEFAULT_URL, AsJson, Url, app
from sparktxlog.cli.status_texts import (
    alive_text,
    awaited_text,
    judge_status,
    latest_runs,
    restricted_text,
    state_word,
    uncompared_text,
    upgrade_text,
    verdict_text,
)

tx_app = typer.Typer(help="Look at single transactions.", no_args_is_help=True)
app.add_typer(tx_app, name="tx")


@app.command(epilog="Example: sparktxlog status --url http://127.0.0.1:7070 --json")
def status(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a node's state: positions, queues, missing nodes and why, replicas."""
    found = _status_of(url, as_json)
    code = judge_status(found)
    if as_json:
        print_json(found | {"state": state_word(code)})
    else:
        _print_status(found, state_word(code))
    end(code)


def _status_of(url: str, as_json: bool) -> Any:
    """Return a node's status; people read no tables of replicas, programs do."""
    return NodeApi(url).get("/v1/status", tables=1 if as_json else None)


def _print_status(found: Mapping[str, Any], word: str) -> None:
    names = ("position", "published", "kept_after", "log_bytes", "incoming_runs",
             "incoming_transactions", "round", "epoch", "phase")  # fmt: skip
    columns: Columns = {name.replace("_", " "): name for name in names}
    print_table(f"node {found.get('node_id')}: {word}", columns | {"on duty": "duty"}, [found])
    if found.get("phase_reason") and found.get("phase") not in ("NORMAL", "WITNESS", "FAULT"):
        typer.echo(f"{found['phase']}: {found['phase_reason']}")
    for warning in found.get("warnings") or []:
        typer.echo(f"warning: {warning['text']}")
    if found.get("wire_version_waits_for"):
        typer.echo(upgrade_text(found))
    for name in found.get("suspects") or []:
        typer.echo(f"missing {name}: no sign of life")
    for waiting in found.get("waiting_for") or []:
        typer.echo(f"waits for {awaited_text(waiting)}")
    if found.get("restricted"):
        typer.echo(restricted_text(found["restricted"]))
    for failing in found.get("failing") or []:
        typer.echo(f"failing {failing['task']}, {failing['times']:,} times: {failing['text']}")
    if found.get("halted"):
        typer.echo(f"halted: {found['halted']}")
    if taking := found.get("taking_snapshot"):
        share = f"{taking['bytes']:,} of {taking['of_bytes']:,} bytes"
        typer.echo(f"takes over a snapshot of {taking['peer']}: {share}")
    if found.get("uncompared"):
        typer.echo(uncompared_text(found["uncompared"]))
    print_table("peers", _PEERS, found.get("peers") or [])
    print_table("replicas", _REPLICAS, found.get("replicas") or [])


_PEERS: Columns = {
    "peer": "id",
    "url": "url",
    "linked": lambda peer: bool(peer.get("linked")),
    "wire": "wire_version",
    "last post (UTC)": lambda peer: time_text(peer.get("last_post_at")),
    "position": "position",
    "holds runs": "acquired",
    "counter": lambda peer: str(peer.get("counter", "-")),
    "round": "round",
}
_REPLICAS: Columns = {
    "worker": "worker_id",
    "site": "node_id",
    "position": "position",
    "verdict": verdict_text,
    "report is old (s)": "age_s",
    "alive": alive_text,
    "needs copy": lambda replica: bool(replica.get("needs_copy")),
    "plan": "plan",
    "catch-up": last_transfer_text,
    "last error": "error",
}


@app.command(epilog="Example: sparktxlog peers")
def peers(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the links of a node to its peers."""
    found = NodeApi(url).get("/v1/status").get("peers") or []
    show(found, as_json, "peers", _PEERS)
    linked = all(peer.get("linked") for peer in found)
    end(ExitCode.IN_SYNC if linked else ExitCode.LAGGING)


@app.command(epilog="Example: sparktxlog workers --json")
def workers(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the replicas of all sites: position, verdict, age of the last report."""
    found = _status_of(url, as_json)
    show(found.get("replicas") or [], as_json, "replicas", _REPLICAS)
    end(judge_status({**found, "waiting_for": []}))


@app.command(epilog="Example: sparktxlog queue --after 1000 --limit 20")
def queue(
    url: Url = DEFAULT_URL,
    after: Annotated[
        int | None, typer.Option(min=0, help="Show runs that start after this position.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Runs to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show runs of the synchronized queue; without --after the latest ones."""
    api = NodeApi(url)
    if after is None:
        entries = latest_runs(api, limit)
    else:
        entries = api.get("/v1/queue", after=after, limit=limit)
    columns: Columns = {
        "position": "position",
        "transactions": "n",
        "origin": "origin",
        "sequence": "seq",
        "timestamp": lambda run: str(run["ts"]),
        "first transaction": "first_id",
        "rejected": lambda run: len(run["rejected"]),
        "bytes": "size_bytes",
        "ordered (UTC)": lambda run: time_text(run["ordered_at"]),
        "chain hash": lambda run: run["chain_hash"][:12],
    }
    show(entries, as_json, "synchronized queue, by runs", columns)


@app.command(epilog="Example: sparktxlog tables")
def tables(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the tables of the catalog."""
    columns: Columns = {
        "table": "name",
        "columns": lambda table: [f"{c['name']} {c['type']}" for c in table.get("columns") or []],
        "keys": "keys",
        "partitioned by": "partition_by",
        "position": "position",
    }
    show(NodeApi(url).get("/v1/tables"), as_json, "tables", columns)


@tx_app.command("show", epilog="Example: sparktxlog tx show 0f8fad5b-d9cb-469f-a165-70867728950e")
def tx_show(
    transaction_id: Annotated[str, typer.Argument(help="UUID of the transaction.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show how far a transaction got: level, position, outcome."""
    from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text

    checked = transaction_id_to_text(transaction_id_from_text(transaction_id))
    receipt = NodeApi(url).get(f"/v1/transactions/{checked}")
    names = ("transaction_id", "level", "position", "outcome", "rejections")
    columns: Columns = {name: name for name in names}
    columns |= {"ordered_at": lambda receipt: time_text(receipt.get("ordered_at"))}
    show(receipt, as_json, "transaction", columns, [receipt])
