"""The commands of `sparktxlog`.  Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparktxlog import __version__
from sparktxlog.cli import backup, catchup, epochs, maintenance, peer, quarantine, replica
from sparktxlog.cli.node_api import DEFAULT_URL, NodeApi
from sparktxlog.cli.options import AsJson, Url
from sparktxlog.cli.output import (
    ExitCode,
    exit_code_of,
    print_error,
    print_json,
    print_rows,
    time_text,
)
from sparktxlog.cli.state import (
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
from sparktxlog.errors import ConfigError, InvalidRequestError, TxLogError
from sparktxlog.http.tokens import client_token

app = typer.Typer(
    name="sparktxlog",
    help="One order over many Delta tables from several writing sites.",
    epilog="Exit codes: 0 in sync, 1 error, 2 usage, 3 lagging, 4 diverged, 5 unreachable, "
    "6 bad configuration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
config_app = typer.Typer(help="Check and show configuration.", no_args_is_help=True)
tx_app = typer.Typer(help="Look at single transactions.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(tx_app, name="tx")
app.add_typer(catchup.settings_app, name="settings")
app.add_typer(peer.peer_app, name="peer")
peer.peer_app.command(
    "quarantine",
    epilog="Example: sparktxlog peer quarantine --config conf/site-c.toml --from http://a:7070",
)(quarantine.quarantine)
app.add_typer(backup.backup_app, name="backup")
app.command(epilog="Example: sparktxlog restore /backups/site-a --lake data/a/lake")(backup.restore)
app.command(epilog="Example: sparktxlog plan --json")(catchup.plan)
app.command(epilog="Example: sparktxlog transfers --limit 5")(catchup.transfers)
app.command(epilog="Example: sparktxlog epochs --limit 5")(epochs.epochs)
app.command(epilog="Example: sparktxlog void 3f2a90c1d4e5b6a7 --yes --json")(epochs.void)
app.command(epilog="Example: sparktxlog maintain --dry-run --json")(maintenance.maintain)
replica.add_commands(app)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML or .properties file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated."),
]


def run() -> None:
    """Run the command line; every error of the project ends in one line and an exit code."""
    try:
        app()
    except TxLogError as error:
        print_error(error, as_json="--json" in sys.argv[1:])
        sys.exit(int(exit_code_of(error)))
    except KeyboardInterrupt:
        sys.exit(130)


def _end(code: ExitCode) -> None:
    if code is not ExitCode.IN_SYNC:
        raise typer.Exit(int(code))


def _overrides(pairs: list[str] | None) -> dict[str, str]:
    found = {}
    for pair in pairs or []:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(
                f"command line: --set {pair!r} has no '='", hint="Write --set key=value.", key=key
            )
        found[key.strip()] = value.strip()
    return found


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hold options of the whole command line."""


@app.command(epilog="Example: sparktxlog serve --config conf/site-a.toml --set log-level=debug")
def serve(config: ConfigFile = None, settings: Overrides = None) -> None:
    """Run a node until it is stopped (SIGTERM, Ctrl-C)."""
    from sparktxlog.config import load_config

    checked = load_config(config, _overrides(settings))
    from sparktxlog.cli.serve import run_node

    run_node(checked)


@app.command(epilog="Example: sparktxlog init conf/site-a.toml --node-id A --port 7070")
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("sparktxlog.toml"),
    node_id: Annotated[str, typer.Option(help="Name of the node.")] = "A",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on loopback.")] = 7070,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write an example configuration of one node, with every setting explained."""
    from sparktxlog.cli.example import example_config, write_token

    if path.exists() and not force:
        raise ConfigError(
            f"{path} exists already", hint="Choose another file, or add --force.", file=str(path)
        )
    token_file = path.with_suffix(".token")
    text = example_config(node_id=node_id, port=port, token_file=token_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_token(token_file)
    path.write_text(text)
    if as_json:
        print_json({"written": str(path), "token_file": str(token_file)})
    else:
        typer.echo(f"Wrote {path} and {token_file}.")
        typer.echo(f"Start the node with: sparktxlog serve --config {path}")


@config_app.command("check", epilog="Example: sparktxlog config check conf/site-a.toml")
def config_check(
    path: Annotated[Path, typer.Argument(help="File to check.")],
    settings: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file and the node's directories, as the node's user on its machine.

    Exit code 6 names file, key, value and the way out.
    """
    from sparktxlog.config import check_directories, load_config

    config = load_config(path, _overrides(settings))
    check_directories(config)
    if as_json:
        # The log of a node alone gets its name when it is founded.
        lineage = config.lineage if config.peers else None
        print_json({"file": str(path), "ok": True, "lineage": lineage})
    else:
        typer.echo(f"{path}: good.  Node {config.node_id} of cluster {config.cluster}")


@config_app.command("show", epilog="Example: sparktxlog config show --config conf/site-a.toml")
def config_show(
    config: ConfigFile = None, settings: Overrides = None, as_json: AsJson = False
) -> None:
    """Show all settings: their values with --config, their defaults without."""
    from sparktxlog.cli.example import setting_rows

    rows = setting_rows(config, _overrides(settings))
    if as_json:
        print_json([dict(zip(("key", "value", "meaning"), row, strict=True)) for row in rows])
    else:
        print_rows("settings", ("key", "value", "meaning"), rows)


@app.command(epilog="Example: sparktxlog status --url http://127.0.0.1:7070 --json")
def status(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a node's view: positions, queues, who is awaited and why, replicas."""
    found = _status_of(url, as_json)
    code = judge_status(found)
    if as_json:
        print_json(found | {"state": state_word(code)})
    else:
        _print_status(found, state_word(code))
    _end(code)


def _status_of(url: str, as_json: bool) -> Any:
    """Return a node's status; people read no tables of replicas, programs do."""
    return NodeApi(url).get("/v1/status", tables=1 if as_json else None)


def _print_status(found: Mapping[str, Any], word: str) -> None:
    print_rows(
        f"node {found.get('node_id')}: {word}",
        ("position", "published", "kept after", "log bytes", "incoming runs",
         "incoming transactions", "round", "epoch", "phase", "on duty"),
        [
            [
                found.get(name)
                for name in ("position", "published", "kept_after", "log_bytes", "incoming_runs",
                             "incoming_transactions", "round", "epoch", "phase", "duty")
            ]
        ],
    )  # fmt: skip
    if found.get("phase_reason") and found.get("phase") not in ("NORMAL", "WITNESS", "FAULT"):
        typer.echo(f"{found['phase']}: {found['phase_reason']}")
    for warning in found.get("warnings") or []:
        typer.echo(f"warning: {warning['text']}")
    if found.get("wire_version_waits_for"):
        typer.echo(upgrade_text(found))
    for name in found.get("suspects") or []:
        typer.echo(f"missed {name}: no sign of life")
    for waiting in found.get("waiting_for") or []:
        typer.echo(f"awaited {awaited_text(waiting)}")
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
    _print_peers(found)
    _print_replicas(found)


def _print_peers(found: Mapping[str, Any]) -> None:
    print_rows(
        "peers",
        ("peer", "url", "linked", "wire", "last post (UTC)", "position", "holds runs", "counter",
         "round"),
        [
            [peer.get("id"), peer.get("url"), bool(peer.get("linked")),
             peer.get("wire_version"), time_text(peer.get("last_post_at")), peer.get("position"),
             peer.get("acquired"),
             str(peer.get("counter", "-")), peer.get("round")]
            for peer in found.get("peers") or []
        ],
    )  # fmt: skip


def _print_replicas(found: Mapping[str, Any]) -> None:
    print_rows(
        "replicas",
        ("worker", "site", "position", "verdict", "report is old (s)", "alive", "needs copy",
         "plan", "catch-up", "last error"),
        [
            [replica.get("worker_id"), replica.get("node_id"), replica.get("position"),
             verdict_text(replica), replica.get("age_s"), alive_text(replica),
             bool(replica.get("needs_copy")), replica.get("plan"),
             catchup.last_transfer_text(replica), replica.get("error")]
            for replica in found.get("replicas") or []
        ],
    )  # fmt: skip


@app.command(epilog="Example: sparktxlog peers")
def peers(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the links of a node to its peers."""
    found = NodeApi(url).get("/v1/status")
    if as_json:
        print_json(found.get("peers") or [])
    else:
        _print_peers(found)
    linked = all(peer.get("linked") for peer in found.get("peers") or [])
    _end(ExitCode.IN_SYNC if linked else ExitCode.LAGGING)


@app.command(epilog="Example: sparktxlog workers --json")
def workers(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the replicas of all sites: position, verdict, age of the last report."""
    found = _status_of(url, as_json)
    if as_json:
        print_json(found.get("replicas") or [])
    else:
        _print_replicas(found)
    _end(judge_status({**found, "waiting_for": []}))


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
    if as_json:
        print_json(entries)
        return
    print_rows(
        "synchronized queue, by runs",
        ("position", "transactions", "origin", "sequence", "timestamp", "first transaction",
         "rejected", "bytes", "ordered (UTC)", "chain hash"),
        [
            [entry["position"], entry["n"], entry["origin"], entry["seq"], str(entry["ts"]),
             entry["first_id"], len(entry["rejected"]), entry["size_bytes"],
             time_text(entry["ordered_at"]), entry["chain_hash"][:12]]
            for entry in entries
        ],
    )  # fmt: skip


@app.command(epilog="Example: sparktxlog tables")
def tables(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the tables of the catalog."""
    found = NodeApi(url).get("/v1/tables")
    if as_json:
        print_json(found)
        return
    print_rows(
        "tables",
        ("table", "columns", "keys", "partitioned by", "position"),
        [
            [table.get("name"),
             [f"{column['name']} {column['type']}" for column in table.get("columns") or []],
             table.get("keys"), table.get("partition_by"), table.get("position")]
            for table in found
        ],
    )  # fmt: skip


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
    if as_json:
        print_json(receipt)
        return
    names = ("transaction_id", "level", "position", "outcome", "rejections", "ordered_at")
    row = [receipt.get(name) for name in names]
    row[-1] = time_text(row[-1])
    print_rows("transaction", names, [row])


@app.command(epilog="Example: sparktxlog verify --url http://127.0.0.1:7070")
def verify(
    url: Url = DEFAULT_URL,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="Table to recount; default: all.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Find where sites began to differ; needs no Spark."),
    ] = False,
    recount: Annotated[
        bool, typer.Option("--recount", help="With --compare: recount this site's rows too.")
    ] = False,
    since: Annotated[
        int, typer.Option(min=0, help="With --compare: position up to which all are equal.")
    ] = 0,
    peer_url: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="With --compare: where a site's node is reached."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recount the replica's signatures by full scan, with Spark, and compare the sites.

    With --compare, say from which position and in which table sites differ, by what they reported.
    """
    from sparktxlog.cli.verification import run_comparison, run_verification

    token = client_token()
    if compare:
        from sparktxlog.worker.verify.histories import read_peer_urls

        peers = read_peer_urls(peer_url or [])
        report, code = run_comparison(
            url, tables or [], peers=peers, since=since, recount=recount, token=token
        )
        lines = report.pop("lines")
        if as_json:
            print_json(report)
        else:
            for line in lines:
                typer.echo(line)
            if "recount" in report:
                print_rows("rows counted", *_verify_rows(report["recount"]))
        _end(code)
        return
    if recount or since or peer_url:
        raise InvalidRequestError(
            "--recount, --since and --peer-url belong to --compare", hint="Add --compare."
        )
    report, code = run_verification(url, tables or [], token=token)
    if as_json:
        print_json(report)
    else:
        others = ", ".join(report["compared_sites"]) or "no other site"
        title = f"site {report['node_id']} at position {report['position']:,}, against {others}"
        print_rows(title, *_verify_rows(report))
    _end(code)


def _verify_rows(report: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[Any]]]:
    columns = ("table", "version", "rows:signature by full scan", "sound", "what differs")
    rows = []
    for name, found in sorted(report["tables"].items()):
        differing = [f"{site} has {text}" for site, text in found["differing_sites"].items()]
        causes = [*found["causes"], *differing]
        rows.append([name, found["version"], found["counted"], found["sound"], causes])
    return columns, rows


@app.command(epilog="Example: sparktxlog demo --scale 0.1 --keep")
def demo(
    scale: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Part of the year 2013, 1 = all flights.")
    ] = 0.05,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the nodes running.")] = False,
    kill: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Kill this site's node, and start it again."),
    ] = None,
    witness: Annotated[
        bool, typer.Option("--witness", help="Two sites and a witness instead of three sites.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory of the sites; default: a new one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run three sites on this machine with real flights, cut one off, heal, compare.

    With --kill also kill a node in the middle: the others go on, it comes back by itself.
    """
    from sparktxlog.cli.demo.story import DemoSettings, run_demo

    settings = DemoSettings(
        scale=scale,
        keep=keep,
        directory=directory,
        as_json=as_json,
        kill=kill or "",
        witness=witness,
    )
    if kill and kill not in settings.sites:
        raise typer.BadParameter(
            f"{kill!r} is no site; there are {', '.join(settings.sites)}", param_hint="--kill"
        )
    if not run_demo(settings):
        raise typer.Exit(int(ExitCode.DIVERGED))
