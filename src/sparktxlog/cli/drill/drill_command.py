"""`sparktxlog drill`: ask a running cluster what the loss of each site would mean now."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from sparktxlog.cli.common_options import (
    DEFAULT_URL,
    AsJson,
    ExitCode,
    NodeApi,
    ReportDirectory,
    Url,
    app,
    end,
)
from sparktxlog.cli.printing import print_json

if TYPE_CHECKING:
    from sparktxlog.cli.drill.drill_report import DrillReport


@app.command(epilog="Example: sparktxlog drill --backup /backups/site-a --report reports")
def drill(
    images: Annotated[
        str | None,
        typer.Option(
            "--backup",
            metavar="DIR",
            help="Also restore the newest image of this directory, or URL, aside.",
        ),
    ] = None,
    feed: Annotated[
        str | None,
        typer.Option(
            "--feed",
            metavar="FEED",
            help="Also restore the end of this feed, a directory or URL, aside.",
        ),
    ] = None,
    with_spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark",
            help="Use Spark: with --backup to count the image's rows, with --feed to restore its "
            "tables, and not only to compare digests.",
        ),
    ] = True,
    report: ReportDirectory = None,
    live: Annotated[
        bool, typer.Option("--live", help="What the command does anyway; accepted for scripts.")
    ] = True,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Ask a running cluster what the loss of each site would mean now; it harms nothing.

    All nodes are asked what would be lost if each site were lost now, who would go on, where its
    writers would go and where its tables could be copied from; with --backup the newest image is
    restored into a scratch directory, and its rows are counted, with --feed the end of a feed is.

    Exit code 0: nothing would be lost; 3, as `survival`: something would be.
    """
    from sparktxlog.cli.drill.live_drill import run_live

    begun = monotonic()
    done = run_live(url)
    _rehearse(done, images, feed, url, with_spark=with_spark)
    done.seconds = monotonic() - begun
    if report is not None:
        typer.echo(f"Report: {done.write(report)}", err=True)
    if as_json:
        print_json(done.to_json())
    else:
        typer.echo(done.markdown())
    end(ExitCode.IN_SYNC if done.passed else ExitCode.LAGGING)


def _rehearse(
    done: DrillReport, images: str | None, feed: str | None, url: str, *, with_spark: bool
) -> None:
    """Add what became of restores aside to a report."""
    from sparktxlog.cli.drill.live_drill import rehearse_feed_end, rehearse_restore

    if images is None and feed is None:
        return
    epochs = NodeApi(url).get("/v1/epochs")
    log_ids = [epochs["log_id"], *(one["log_id"] for one in epochs["ancestors"])]
    if images is not None:
        from sparktxlog.cli.commands.backup_commands import rehearse_image

        kept_after = NodeApi(url).get("/v1/info")["kept_after"]
        image, run = rehearse_image(images, with_spark=with_spark)
        done.rehearsals.append(rehearse_restore(done.position, log_ids, image, kept_after, run))
    if feed is not None:
        from sparktxlog.cli.commands.feed_commands import rehearse_feed

        said, restore = rehearse_feed(feed, with_spark=with_spark)
        done.rehearsals.append(rehearse_feed_end(done.position, log_ids[0], said, restore))
