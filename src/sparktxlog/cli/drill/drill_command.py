"""`sparktxlog drill`: rehearse the loss of a site, a cut and a restore, on a scratch copy."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparktxlog.cli.printing import print_json
from sparktxlog.cli.root import AsJson, ConfigFile, ExitCode, app, end, local_spark
from sparktxlog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparktxlog.config import NodeConfig


@app.command(epilog="Example: sparktxlog drill --config conf/site-a.toml --report reports")
def drill(
    config: ConfigFile = None,
    sites: Annotated[
        str | None,
        typer.Option(
            help="Names of the sites, with commas; default: those of --config, else A,B,C."
        ),
    ] = None,
    suspect_timeout: Annotated[
        float | None,
        typer.Option(min=0.5, help="Seconds; default: that of --config, else of a new node."),
    ] = None,
    with_spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark",
            help="Also compare signatures and restore a backup, with Spark.",
        ),
    ] = True,
    report: Annotated[
        Path | None, typer.Option(help="Directory for the report, as Markdown and HTML.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rehearse what you fear: a site is lost, its links are cut, a backup is restored.

    All happens in scratch nodes on this machine, with the sites and the suspect-timeout of your
    configuration; your cluster is not touched.  Writers at all sites commit meanwhile.  The result
    is what they would have lost (RPO) and how long they would have waited (RTO).

    Exit code 0: nothing was lost, 1: something was, or did not come back.
    """
    from sparktxlog.cli.drill.rehearsing import Drill
    from sparktxlog.config import load_config

    checked = None if config is None else load_config(config)
    names = _sites(checked) if sites is None else [name.strip() for name in sites.split(",")]
    if len(set(names)) < 3:
        raise InvalidRequestError(
            f"a drill needs three sites, these are {', '.join(names)}",
            hint="Two sites cannot go on without each other: see docs/two-sites.md. Name three "
            "with --sites A,B,C.",
            field="sites",
        )
    patience = _default_patience() if checked is None else checked.suspect_timeout
    scratch = Path(tempfile.mkdtemp(prefix="sparktxlog-drill-"))
    with ExitStack() as stack:
        wanted = with_spark and find_spec("pyspark") is not None
        if with_spark and not wanted:
            typer.echo("Spark is not installed: signatures and the restore are left out.", err=True)
        done = Drill(
            scratch,
            names,
            suspect_timeout or patience,
            tell=lambda text: typer.echo(f"• {text}", err=True),
        ).run((lambda: stack.enter_context(local_spark("drill"))) if wanted else None)
    if done.passed:
        shutil.rmtree(scratch)
    else:
        typer.echo(f"The scratch nodes' logs are kept in {scratch}", err=True)
    if report is not None:
        typer.echo(f"Report: {done.write(report)}", err=True)
    if checked is not None and checked.data_dir.is_dir():
        done.record(checked.data_dir / "log")
    if as_json:
        print_json(done.to_json())
    else:
        typer.echo(done.markdown())
    end(ExitCode.IN_SYNC if done.passed else ExitCode.ERROR)


def _sites(config: NodeConfig | None) -> list[str]:
    if config is None:
        return ["A", "B", "C"]
    return [config.node_id, *(peer.id for peer in config.peers if not peer.witness)]


def _default_patience() -> float:
    from sparktxlog.config import SETTINGS

    return float(next(one.default for one in SETTINGS if one.key == "suspect-timeout"))
