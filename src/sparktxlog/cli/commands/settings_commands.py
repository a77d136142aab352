"""Commands `settings`, `peer pause`, `peer continue` and `audit`: one node, or all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from sparktxlog.cli.all_nodes import All, ask_all, print_all
from sparktxlog.cli.commands.peer_commands import peer_app
from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, ExitCode, NodeApi, Url, app, end
from sparktxlog.cli.printing import Columns, print_json, show
from sparktxlog.cli.repeating import Watch, repeat
from sparktxlog.model.shown import time_text

settings_app = typer.Typer(
    help="Show and change settings of a running node; they survive its restart.",
    epilog="Example: sparktxlog settings show --json",
)
app.add_typer(settings_app, name="settings")
Key = Annotated[str, typer.Argument(help="Name of the setting, such as NetSpeedBitsPerSec.")]
_PATH = "/v1/settings"


@settings_app.callback(invoke_without_command=True)
def settings(context: typer.Context, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show and change settings of a running node; they survive its restart."""
    if context.invoked_subcommand is None:
        settings_show(url, as_json=as_json)


@settings_app.command("show", epilog="Example: sparktxlog settings show --all --json")
def settings_show(url: Url = DEFAULT_URL, every: All = False, as_json: AsJson = False) -> None:
    """Show the settings that can be changed at run time: values in force, since when, configured.

    `configured` is shown where a value was set at run time: what `unset` returns to.
    """
    if every:
        answers = ask_all(url, lambda api: api.get(_PATH), NodeApi)
        keys = next((list(one.answer) for one in answers if one.error is None), [])
        columns: Columns = {key: _cell(key) for key in keys}
        end(print_all(answers, as_json, "settings at run time", columns))
        return
    _print_settings(NodeApi(url).get(_PATH), as_json)


@settings_app.command(
    "set", epilog="Example: sparktxlog settings set NetSpeedBitsPerSec 1000000000 --all"
)
def settings_set(
    key: Key,
    value: Annotated[str, typer.Argument(help="Its new value.")],
    url: Url = DEFAULT_URL,
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """Change one setting of a running node, or of all."""
    _change(key, value, url, every, as_json)


@settings_app.command("unset", epilog="Example: sparktxlog settings unset NetSpeedBitsPerSec")
def settings_unset(
    key: Key, url: Url = DEFAULT_URL, every: All = False, as_json: AsJson = False
) -> None:
    """Undo a change: the configured value is in force again."""
    _change(key, None, url, every, as_json)


def _change(key: str, value: str | None, url: str, every: bool, as_json: bool) -> None:
    def change(api: NodeApi) -> Any:
        return api.send("PATCH", _PATH, {key: value})

    if not every:
        _print_settings(change(NodeApi(url)), as_json)
        return
    columns: Columns = {
        key: _cell(key),
        "origin": lambda row: row[key]["origin"],
    }
    end(print_all(ask_all(url, change, NodeApi), as_json, "settings at run time", columns))


def _cell(key: str) -> Callable[[Any], str]:
    return lambda row: json.dumps(row[key]["value"])


def _configured(found: Mapping[str, Any]) -> str:
    """Return what is configured, if something else is in force; and where."""
    if found["since"] is None:
        return ""
    same = " (the same)" if found["configured"] == found["value"] else ""
    return f"{json.dumps(found['configured'])}{same}, {found['configured_by']}"


def _print_settings(found: Mapping[str, Any], as_json: bool) -> None:
    columns: Columns = {
        "key": lambda item: item[0],
        "value": lambda item: json.dumps(item[1]["value"]),
        "origin": lambda item: item[1]["origin"],
        "since (UTC)": lambda item: time_text(item[1]["since"]),
        "configured": lambda item: _configured(item[1]),
    }
    show(found, as_json, "settings at run time", columns, found.items())


# -- a pause ---------------------------------------------------------------------------------------


@peer_app.command("pause", epilog="Example: sparktxlog peer pause --url http://10.0.0.3:7070")
def peer_pause(url: Url = DEFAULT_URL, every: All = False, as_json: AsJson = False) -> None:
    """Pause the asked node: it takes no transactions, also after a restart; all else goes on.

    Clients that know several nodes submit at another one.  Pause a node before its maintenance.
    With --all nobody can commit until `peer continue --all`.
    """
    _pause(url, True, every, as_json)


@peer_app.command("continue", epilog="Example: sparktxlog peer continue")
def peer_continue(url: Url = DEFAULT_URL, every: All = False, as_json: AsJson = False) -> None:
    """End the pause: the asked node takes transactions again."""
    _pause(url, False, every, as_json)


def _pause(url: str, paused: bool, every: bool, as_json: bool) -> None:
    def pause(api: NodeApi) -> dict[str, Any]:
        api.send("PATCH", _PATH, {"paused": paused})
        found = api.get("/v1/status")
        return {name: found[name] for name in ("node_id", "phase", "paused", "position")}

    if every:
        columns: Columns = {name: name for name in ("phase", "paused", "position")}
        end(print_all(ask_all(url, pause, NodeApi), as_json, "nodes", columns))
        return
    found = pause(NodeApi(url))
    if as_json:
        print_json(found)
        return
    does = "takes no transactions" if found["paused"] else "takes transactions"
    typer.echo(
        f"{found['node_id']} ({found['phase']}) {does}; its queue ends at {found['position']:,}."
    )


# -- maintenance ---------------------------------------------------------------------------------

maintenance_app = typer.Typer(
    no_args_is_help=True,
    help="Declare that a node is maintained: its alarms are silent.",
)
app.add_typer(maintenance_app, name="maintenance")
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0}


@maintenance_app.command(
    "begin",
    epilog="Example: sparktxlog maintenance begin --for 2h --pause --url http://10.0.0.3:7070",
)
def maintenance_begin(
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 30m, 2h, 1d.")
    ] = "1h",
    pause: Annotated[
        bool, typer.Option("--pause", help="Also take no transactions: writers go to other nodes.")
    ] = False,
    url: Url = DEFAULT_URL,
    every: All = False,
    as_json: AsJson = False,
) -> None:
    """Declare that the asked node is maintained: alarms are silent, and its status says so.

    It ends by itself; a pause does not.
    """
    number, unit = lasts[:-1], lasts[-1:]
    if not number.isdecimal() or len(number) > 5 or unit not in _HOURS:
        raise typer.BadParameter(f"{lasts!r} is no time such as 30m, 2h or 1d", param_hint="--for")
    until = datetime.now(UTC) + timedelta(hours=int(number) * _HOURS[unit])
    changes = {"maintenance-until": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
    _maintain(url, changes | ({"paused": True} if pause else {}), every, as_json)


@maintenance_app.command("end", epilog="Example: sparktxlog maintenance end --all")
def maintenance_end(url: Url = DEFAULT_URL, every: All = False, as_json: AsJson = False) -> None:
    """End the maintenance, and a pause: the node takes transactions, its alarms are heard again."""
    _maintain(url, {"maintenance-until": None, "paused": None}, every, as_json)


def _maintain(url: str, changes: dict[str, Any], every: bool, as_json: bool) -> None:
    def change(api: NodeApi) -> dict[str, Any]:
        api.send("PATCH", _PATH, changes)
        found = api.get("/v1/status")
        return {name: found[name] for name in ("node_id", "maintenance_until", "paused")}

    columns: Columns = {"in maintenance until": "maintenance_until", "paused": "paused"}
    if every:
        end(print_all(ask_all(url, change, NodeApi), as_json, "nodes", columns))
        return
    found = change(NodeApi(url))
    show(found, as_json, "node", {"node": "node_id", **columns}, [found])


# -- the audit -------------------------------------------------------------------------------------

_AUDIT: Columns = {
    "at (UTC)": lambda entry: time_text(entry.get("until", entry["at"])),
    "who": "who",
    "address": lambda entry: entry.get("address", ""),
    "times": lambda entry: f"{entry.get('count', 1):,}",
    "action": "action",
    "detail": "detail",
    "outcome": "outcome",
}


@app.command(epilog="Example: sparktxlog audit --all --limit 50")
def audit(
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Entries of a node.")] = 20,
    whose: Annotated[
        str, typer.Option(help="Only entries about operators, clients or strangers.")
    ] = "",
    every: All = False,
    watch: Watch = None,
    as_json: AsJson = False,
) -> None:
    """Show who did what at a node, and who was refused, newest first.

    Each node keeps its own latest 1,000 entries about operators, clients and strangers each.  A
    change of the members and the drop of a table stand at every node; an act of an operator or a
    client at the node that was asked.
    """

    def asked(api: NodeApi) -> Any:
        return api.get("/v1/audit", limit=limit, whose=whose)

    def once() -> ExitCode:
        if every:
            return print_all(ask_all(url, asked, NodeApi), as_json, "audit", _AUDIT, list)
        show(asked(NodeApi(url)), as_json, "audit", {"node": "node", **_AUDIT})
        return ExitCode.IN_SYNC

    repeat(watch, as_json, once)
