"""`sparktxlog site switch`: a follower goes in, and an old site goes out."""

from __future__ import annotations

from typing import Annotated

import typer

from sparktxlog.cli.common_options import (
    DEFAULT_URL,
    AsJson,
    ExitCode,
    ReportDirectory,
    Url,
    app,
    end,
)
from sparktxlog.cli.dry_runs import DryRun
from sparktxlog.cli.printing import print_json, print_rows, say

site_app = typer.Typer(help="What is done to whole sites.", no_args_is_help=True)
app.add_typer(site_app, name="site")


@site_app.callback()
def _sites() -> None:
    """Keep the name of the command below, though it is the only one."""


@site_app.command("switch", epilog="Example: sparktxlog site switch A F --dry-run")
def switch(
    old: Annotated[str, typer.Argument(help="Node id of the member that goes out.")],
    new: Annotated[str, typer.Argument(help="Node id of the follower that comes in.")],
    keep: Annotated[
        bool,
        typer.Option("--keep", help="OLD becomes a follower, so that it can be switched back."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="Longest that one step waits."),
    ] = 600.0,
    report: ReportDirectory = None,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Let a follower take the place of a member; writers go on meanwhile at other nodes.

    The follower becomes a member with the votes of OLD, OLD is paused until nothing is at it alone,
    and then loses its place.  It is refused where anything would be lost.  Repeat it after a kill:
    it goes on.

    Exit code 0: done, or with --dry-run possible; 3: with --dry-run refused.
    """
    from sparktxlog.cli.switch.site_switch import SiteSwitch

    work = SiteSwitch(
        url, old, new, keep=keep, wait_s=wait, tell=lambda text: typer.echo(text, err=True)
    )
    done = work.plan() if dry_run else work.run()
    if report is not None:
        typer.echo(f"Report: {done.write(report)}", err=True)
    if as_json:
        print_json(done.to_json())
    else:
        print_rows(f"{old} → {new}", ("step", "what", "state", "seconds"), done.rows())
        for warning in done.warnings:
            say(f"Warning: {warning}.")
        say(done.verdict())
        if done.finished and not dry_run:
            role = "member" if not keep else "member, and of the other site to follower"
            say(f"Next: set `roles` of {new} to that of a {role}; then stop {old} if it goes.")
    end(ExitCode.LAGGING if done.problems else ExitCode.IN_SYNC)
