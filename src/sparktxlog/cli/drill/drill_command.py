"""`sparktxlog drill`: rehearse the loss of a site, a cut and a restore, aside or by questions."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from sparktxlog.cli.common_options import (
    DEFAULT_URL,
    AsJson,
    ConfigFile,
    ExitCode,
    NodeApi,
    Url,
    app,
    end,
    local_place,
    local_spark,
)
from sparktxlog.cli.printing import print_json
from sparktxlog.errors import InvalidRequestError

if TYPE_CHECKING:
    from sparktxlog.cli.drill.drill_report import DrillReport
    from sparktxlog.config import NodeConfig


_Report = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Directory for the report, as Markdown and HTML.",
        parser=local_place,
    ),
]


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
    report: _Report = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Ask the running cluster at --url instead; harms nothing."),
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option(
            "--backup",
            metavar="DIR",
            help="With --live: also restore its newest image aside.",
            parser=local_place,
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Rehearse what you fear: a site is lost, its links are cut, a backup is restored.

    All happens in scratch nodes on this machine, with the sites and the suspect-timeout of your
    configuration; your cluster is not touched.  Writers at all sites commit meanwhile.  The result
    is what they would have lost (RPO) and how long they would have waited (RTO).

    With --live all nodes of a running cluster are asked what would be lost if each site were lost
    now, who would go on, where its writers would go and where its tables could be copied from; with
    --backup the newest image is restored into a scratch directory, and its rows are counted.

    Exit code 0: nothing was lost, 1: something was, or did not come back; with --live 3, as
    `survival`: something would be.
    """
    from sparktxlog.config import load_config

    checked = None if config is None else load_config(config)
    done: DrillReport
    if live:
        done, log = _run_live(url, images, with_spark)
    else:
        done = _run_scratch(checked, sites, suspect_timeout, with_spark)
        log = None if checked is None else checked.data_dir / "log"
    if report is not None:
        typer.echo(f"Report: {done.write(report)}", err=True)
    if log is not None and log.parent.is_dir():
        done.record(log)
    if as_json:
        print_json(done.to_json())
    else:
        typer.echo(done.markdown())
    end(ExitCode.IN_SYNC if done.passed else ExitCode.LAGGING if live else ExitCode.ERROR)


def _run_scratch(
    checked: NodeConfig | None, sites: str | None, suspect_timeout: float | None, with_spark: bool
) -> DrillReport:
    """Run all rehearsals on scratch nodes."""
    from sparktxlog.cli.drill.rehearsing import Drill

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
    return done


def _run_live(url: str, images: Path | None, with_spark: bool) -> tuple[DrillReport, Path | None]:
    """Ask a running cluster; return the report, and the log directory to record it in."""
    from sparktxlog.cli.drill.live_drill import rehearse_restore, run_live

    begun = monotonic()
    done = run_live(url)
    info = NodeApi(url).get("/v1/info")
    if images is not None:
        from sparktxlog.cli.backup_commands import rehearse_image

        image, run = rehearse_image(images, with_spark=with_spark)
        done.rehearsals.append(rehearse_restore(done.position, image, info["kept_after"], run))
    done.seconds = monotonic() - begun
    log = Path(info["log_root"])
    return done, log if log.is_dir() else None


def _sites(config: NodeConfig | None) -> list[str]:
    if config is None:
        return ["A", "B", "C"]
    return [config.node_id, *(peer.id for peer in config.peers if not peer.witness)]


def _default_patience() -> float:
    from sparktxlog.config import SETTINGS

    return float(next(one.default for one in SETTINGS if one.key == "suspect-timeout"))
