"""The commands of `sparktxlog`.  Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparktxlog import __version__
from sparktxlog.cli.commands import (  # noqa: F401 - each adds its commands
    attic_commands,
    backup_commands,
    checkpoint_commands,
    definition_commands,
    feed_commands,
    group_commands,
    job_commands,
    peer_commands,
    restore_point_commands,
    settings_commands,
    status_commands,
    table_commands,
    transaction_commands,
)
from sparktxlog.cli.common_options import (
    AsJson,
    ConfigFile,
    Overrides,
    app,
    exit_code_of,
    print_error,
)
from sparktxlog.cli.demo import demo_command  # noqa: F401 - adds its command
from sparktxlog.cli.doctor import doctor_command  # noqa: F401 - adds its command
from sparktxlog.cli.drill import drill_command  # noqa: F401 - adds its command
from sparktxlog.cli.printing import print_json, print_rows, records_to_stderr
from sparktxlog.cli.switch import switch_command  # noqa: F401 - adds its command
from sparktxlog.errors import ConfigError, TxLogError, missing_extra
from sparktxlog.http.authorities import CA_HELP, trust

__all__ = ["app", "run"]

config_app = typer.Typer(help="Check and show configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")


def run() -> None:
    """Run the command line; each sparktxlog error becomes one line and an exit code."""
    records_to_stderr()
    try:
        app()
    except TxLogError as error:
        _end_with(error)
    except ModuleNotFoundError as error:
        if (missing := missing_extra("this command", error)) is None:
            raise
        _end_with(missing)
    except KeyboardInterrupt:
        sys.exit(130)


def _end_with(error: TxLogError) -> None:
    print_error(error, as_json="--json" in sys.argv[1:])
    sys.exit(int(exit_code_of(error)))


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
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", metavar="FILE", help=f"{CA_HELP}.")
    ] = None,
) -> None:
    """Options of the whole command line."""
    trust(ca_file)


@app.command(epilog="Example: sparktxlog serve --config conf/site-a.toml --set log-level=debug")
def serve(config: ConfigFile = None, settings: Overrides = None) -> None:
    """Run a node until it is stopped (SIGTERM, Ctrl-C)."""
    from sparktxlog.cli.serve import require_node, run_node
    from sparktxlog.config import load_config

    require_node()
    run_node(load_config(config, _overrides(settings)))


@app.command(epilog="Example: sparktxlog init --sites 2")
def init(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="File to write, sparktxlog.toml if none is named; with --sites the directory."
        ),
    ] = None,
    node_id: Annotated[str, typer.Option(help="Name of the node.")] = "A",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port on loopback; with --sites of the first one.")
    ] = 7070,
    sites: Annotated[
        int,
        typer.Option(
            min=1, max=9, help="Write as many sites of this machine, A, B, …, that find each other."
        ),
    ] = 1,
    store: Annotated[
        str | None,
        typer.Option(
            help="Prefix in a bucket for tables and staged files, such as s3://lake/site-a; with "
            "--sites each site has its own one below it."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write example configurations of one node or several sites, with every setting explained."""
    from sparktxlog.cli.example import ExampleSite, example_sites, write_examples

    if sites > 1 and node_id != "A":
        raise typer.BadParameter("--node-id is of one node, and --sites names its sites A, B, …")
    if sites == 1:
        file = path or Path("sparktxlog.toml")
        token = file.with_suffix(".token")
        site = ExampleSite(node_id=node_id, port=port, path=file, token_file=token, store=store)
        found, secret = [site], None
    else:
        directory = path or Path()
        found = example_sites(directory, sites, port=port, store=store)
        secret = directory / "cluster.secret"
    write_examples(found, secret_file=secret, force=force)
    if as_json:
        written = [{"written": str(s.path), "token_file": str(s.token_file)} for s in found]
        print_json(written[0] if secret is None else {"sites": written, "secret_file": str(secret)})
        return
    files = [*(str(site.path) for site in found), str(found[0].token_file)]
    files += [] if secret is None else [str(secret)]
    typer.echo(f"Wrote {', '.join(files[:-1])} and {files[-1]}.")
    if secret is None:
        typer.echo(f"Start the node with: sparktxlog serve --config {found[0].path}")
        return
    typer.echo("Start the nodes, each in a terminal of its own, then ask them:")
    for site in found:
        typer.echo(f"  sparktxlog serve --config {site.path}")
    typer.echo(f"  sparktxlog status --url {found[0].url}")
    typer.echo(
        "On machines of their own: put each site's address into its master-url and into the url of "
        "its peers, and copy client.token and cluster.secret."
    )


@config_app.command("check", epilog="Example: sparktxlog config check conf/site-a.toml")
def config_check(
    path: Annotated[Path, typer.Argument(help="File to check.")],
    settings: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file and what it names: directories, certificates, credentials.

    Run it as the node's user on the node's machine.

    If something is wrong, the message names file, key and value, and the exit code is 6.
    """
    from sparktxlog.cli.serve import require_node
    from sparktxlog.config import check_directories, exposures, load_certificates, load_config

    require_node()
    from sparktxlog.runtime.commit_tables.site_places import lake_of, places_of, vendor_of
    from sparktxlog.runtime.membership.data_owner import check_data_dir

    config = load_config(path, _overrides(settings))
    check_directories(config)
    check_data_dir(config)
    (
        places_of(config),
        lake_of(config),
        vendor_of(config),
    )  # buckets are not asked, what reaches them is read
    if config.uses_tls:
        load_certificates(config)
    warnings = exposures(config)
    if as_json:
        # The log of a single node gets its name when it is founded.
        log_id = config.log_id if config.peers else None
        print_json({"file": str(path), "ok": True, "log_id": log_id, "warnings": warnings})
    else:
        for warning in warnings:
            typer.echo(f"[{warning['code']}] {warning['text']}", err=True)
        typer.echo(f"{path}: good.  Node {config.node_id} of cluster {config.cluster}")


@config_app.command("show", epilog="Example: sparktxlog config show --config conf/site-a.toml")
def config_show(
    config: ConfigFile = None, settings: Overrides = None, as_json: AsJson = False
) -> None:
    """Show all settings: with --config their values, else their defaults."""
    from sparktxlog.cli.example import setting_rows

    rows = setting_rows(config, _overrides(settings))
    if as_json:
        print_json([dict(zip(("key", "value", "meaning"), row, strict=True)) for row in rows])
    else:
        print_rows("settings", ("key", "value", "meaning"), rows)
