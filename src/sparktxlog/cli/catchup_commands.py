"""Commands about catching up: plan, transfers, and the settings that can change at run time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sparktxlog.cli.node_api import NodeApi
from sparktxlog.cli.output import Columns, ExitCode, end, print_json, print_table, show, time_text
from sparktxlog.cli.root import DEFAULT_URL, AsJson, Url, app
from sparktxlog.cli.status_texts import CONTESTED, verdict_text

settings_app = typer.Typer(
    help="Show and change settings of a running node; they survive its restart.",
    epilog="Example: sparktxlog settings show --json",
)
app.add_typer(settings_app, name="settings")
Key = Annotated[str, typer.Argument(help="Name of the setting, such as NetSpeedBitsPerSec.")]


# -- settings --------------------------------------------------------------------------------------


@settings_app.callback(invoke_without_command=True)
def settings(context: typer.Context, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show and change settings of a running node; they survive its restart."""
    if context.invoked_subcommand is None:
        settings_show(url, as_json)


@settings_app.command("show", epilog="Example: sparktxlog settings show --json")
def settings_show(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the settings that can be changed at run time, their values and origins."""
    _print_settings(NodeApi(url).get("/v1/settings"), as_json)


@settings_app.command(
    "set", epilog="Example: sparktxlog settings set NetSpeedBitsPerSec 1000000000"
)
def settings_set(
    key: Key,
    value: Annotated[str, typer.Argument(help="Its new value.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change one setting of a running node."""
    _print_settings(NodeApi(url).send("PATCH", "/v1/settings", {key: value}), as_json)


@settings_app.command("unset", epilog="Example: sparktxlog settings unset NetSpeedBitsPerSec")
def settings_unset(key: Key, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Undo a change: the value of the configuration is in force again."""
    _print_settings(NodeApi(url).send("PATCH", "/v1/settings", {key: None}), as_json)


def _print_settings(found: Mapping[str, Any], as_json: bool) -> None:
    columns: Columns = {
        "key": lambda item: item[0],
        "value": lambda item: json.dumps(item[1]["value"]),
        "origin": lambda item: item[1]["origin"],
    }
    show(found, as_json, "settings at run time", columns, found.items())


# -- plan ------------------------------------------------------------------------------------------


@app.command(epilog="Example: sparktxlog plan --json")
def plan(
    worker: Annotated[
        str | None, typer.Argument(help="Worker of the asked site; default: the last heard.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show how a replica would catch up and why; changes nothing.

    Exit code 0: up to date, 3: a replay or a copy is needed, 4: diverged, contested, or it must
    stop.
    """
    api = NodeApi(url)
    decision = api.get("/v1/worker/plan", worker=worker)
    verdict = _verdict(api.get("/v1/status"), str(decision["worker_id"]))
    if as_json:
        print_json({**decision, "verdict": verdict})
    else:
        _print_plan(decision, verdict)
    end(plan_code(str(decision["plan"]), verdict))


def _verdict(status: Mapping[str, Any], worker_id: str) -> str:
    found = (
        verdict_text(replica)
        for replica in status.get("replicas") or []
        if replica.get("worker_id") == worker_id and replica.get("node_id") == status.get("node_id")
    )
    return next(found, "")


def plan_code(chosen: str, verdict: str) -> ExitCode:
    """Return the exit code of a plan."""
    if verdict == "DIVERGED" or verdict.endswith(CONTESTED) or chosen == "stop":
        return ExitCode.DIVERGED
    return ExitCode.IN_SYNC if chosen == "up-to-date" else ExitCode.LAGGING


def _print_plan(decision: Mapping[str, Any], verdict: str) -> None:
    columns: Columns = {
        "verdict": lambda _: verdict,
        "plan": "plan",
        "transactions behind": "behind",
        "replay, estimated (s)": lambda found: _seconds(found.get("replay")),
        "copy, estimated (s)": lambda found: _seconds(found.get("copy")),
        "donor": "donor",
    }
    print_table(f"worker {decision['worker_id']}", columns, [decision])
    typer.echo(f"Why: {decision['reason']}")
    for name in ("replay", "copy"):
        if decision.get(name):
            typer.echo(f"Estimate of the {name}: {decision[name]['basis']}")


def _seconds(estimate: Mapping[str, Any] | None) -> float | None:
    return None if not estimate else float(estimate["seconds"])


# -- transfers -------------------------------------------------------------------------------------


@app.command(epilog="Example: sparktxlog transfers --limit 5")
def transfers(
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Transfers to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the latest catch-ups of the site's replica: expected and measured times."""
    columns: Columns = {
        "finished (UTC)": lambda transfer: time_text(transfer["finished_at"]),
        "worker": "worker_id",
        "kind": "kind",
        "from": "from_position",
        "to": "to_position",
        "donors": "donors",
        "bytes": "size_bytes",
        "over the network": "wire_bytes",
        "found here": "reused_bytes",
        "estimated (s)": "estimated_s",
        "measured (s)": "actual_s",
        "outcome": "outcome",
    }
    show(NodeApi(url).get("/v1/transfers", limit=limit), as_json, "transfers", columns)


def last_transfer_text(replica: Mapping[str, Any]) -> str:
    """Return a replica's running or else last catch-up in a few words, empty for none."""
    if running := list(replica.get("running_transfers") or []):
        shown = running[-1]
        text = f"{shown['kind']} running for {shown['running_s']:,.1f} s"
    elif shown := replica.get("last_transfer"):
        text = f"{shown['kind']} to {shown['to_position']:,}: {shown['outcome']}"
        text += f", measured {shown['actual_s']:,.1f} s"
    else:
        return ""
    expected = shown.get("estimated_s")
    return text if expected is None else f"{text}, estimated {expected:,.1f} s"
