"""Command `maintain`: shorten the log, then compact and vacuum the replica's tables by Spark."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.cli.node_api import DEFAULT_URL, NodeApi
from sparktxlog.cli.options import AsJson, Url
from sparktxlog.cli.output import ExitCode, print_json, print_rows

if TYPE_CHECKING:
    from sparktxlog.worker.maintenance import Upkeep

#: Seconds in which a node can remove the files of a long log.
_SHORTEN_TIME_S = 600.0


def maintain(
    url: Url = DEFAULT_URL,
    table: Annotated[
        list[str] | None, typer.Option("--tables", help="Only this table; may be repeated.")
    ] = None,
    no_optimize: Annotated[bool, typer.Option("--no-optimize", help="Compact no tables.")] = False,
    no_vacuum: Annotated[bool, typer.Option("--no-vacuum", help="Keep old files.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    min_files: Annotated[
        int, typer.Option("--min-files", min=2, help="Compact tables of so many small files.")
    ] = 20,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for a running worker.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Shorten the log to its limits now; compact and vacuum the replica's tables.

    With both --no-optimize and --no-vacuum no Spark is started.
    """
    api = NodeApi(url, timeout_s=_SHORTEN_TIME_S)
    lake = api.get("/v1/info")["lake_root"]
    log = {} if dry_run else api.send("POST", "/v1/maintenance", {})
    if not as_json:
        _print_log(log)
    found: list[dict[str, Any]] = []
    if not (no_optimize and no_vacuum):
        from sparktxlog.worker.maintenance import Upkeep

        wanted = Upkeep(
            tables=table or [], optimize=not no_optimize, vacuum=not no_vacuum, dry_run=dry_run,
            many_files=min_files, wait_s=wait,
        )  # fmt: skip
        found = _maintain_tables(lake, wanted)
    if as_json:
        print_json({"log": log, "tables": found})
    elif found:
        names = ("table", "files_before", "files", "disk_before", "disk", "optimized", "vacuumed",
                 "seconds", "skipped", "failed")  # fmt: skip
        print_rows("tables", names, [[line[name] for name in names] for line in found])
    if any(line["failed"] for line in found):
        raise typer.Exit(int(ExitCode.ERROR))
    if any(line["skipped"] for line in found) and not dry_run:
        raise typer.Exit(int(ExitCode.LAGGING))


def _maintain_tables(lake: str, wanted: Upkeep) -> list[dict[str, Any]]:
    from sparktxlog.api.session import build_session
    from sparktxlog.worker.maintenance import maintain_replica, single_flight

    with single_flight(lake):
        spark = build_session("local[*]", app_name="sparktxlog-maintain")
        try:
            done = maintain_replica(
                spark, lake, wanted, lambda line: print(line, file=sys.stderr, flush=True)
            )
        finally:
            spark.stop()
    return [asdict(one) for one in done]


def _print_log(log: dict[str, Any]) -> None:
    if not log:
        typer.echo("dry run: the log is left as it is")
        return
    typer.echo(
        f"log: kept after position {log['pruned_to']:,}, {log['transactions']:,} transactions "
        f"removed, {log['log_bytes_before']:,} to {log['log_bytes']:,} bytes"
    )
    if log["held_by"]:
        typer.echo(f"held back by: {', '.join(log['held_by'])}")
    if log["overrun"]:
        typer.echo(f"needs a copy now: worker of {', '.join(log['overrun'])}")
