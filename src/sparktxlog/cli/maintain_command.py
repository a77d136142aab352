"""Command `maintain`: shorten the log, compact and vacuum tables by Spark, drop what is old."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.cli.root import (
    DEFAULT_URL,
    AsJson,
    ExitCode,
    NodeApi,
    Url,
    app,
    end,
    local_spark,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from sparktxlog.worker.backup.removal import Unwanted
    from sparktxlog.worker.replica.maintenance import Upkeep

#: Seconds in which a node can remove the files of a long log.
_SHORTEN_TIME_S = 600.0
_TABLE_COLUMNS = (
    "table", "files_before", "files", "disk_before", "disk", "optimized", "vacuumed", "seconds",
    "skipped", "failed",
)  # fmt: skip
_REMOVAL_COLUMNS = ("kind", "removed", "kept", "files", "size_bytes", "skipped", "failed")

Images = Annotated[
    Path | None,
    typer.Option(
        help="Directory of images: remove those of this site that are older than the log."
    ),
]
KeepImages = Annotated[
    int, typer.Option("--keep-images", min=1, help="How many of the newest images to keep.")
]
QuarantineDays = Annotated[
    int | None,
    typer.Option(
        "--drop-quarantine-older-than", min=1, metavar="DAYS",
        help="Remove rows and tables that copies put aside.",
    ),
]  # fmt: skip
BackupDays = Annotated[
    int | None,
    typer.Option(
        "--drop-backups-older-than", min=1, metavar="DAYS",
        help="Remove old files that copies kept in backup-dir.",
    ),
]  # fmt: skip


@app.command(epilog="Example: sparktxlog maintain --dry-run --json")
def maintain(
    url: Url = DEFAULT_URL,
    table: Annotated[
        list[str] | None, typer.Option("--tables", help="Only this table; may be repeated.")
    ] = None,
    no_optimize: Annotated[bool, typer.Option("--no-optimize", help="Compact no tables.")] = False,
    no_vacuum: Annotated[bool, typer.Option("--no-vacuum", help="Keep old files.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")
    ] = False,
    min_files: Annotated[
        int,
        typer.Option(
            "--min-files", min=2, help="Compact tables with at least so many small files."
        ),
    ] = 20,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for a running worker.")
    ] = 30.0,
    images: Images = None,
    keep_images: KeepImages = 3,
    quarantine_days: QuarantineDays = None,
    backup_days: BackupDays = None,
    as_json: AsJson = False,
) -> None:
    """Shorten the log to its limits now; compact and vacuum the replica's tables.

    With both --no-optimize and --no-vacuum no Spark is started.  Images, quarantine and old files
    are left alone unless an option names them.
    """
    from sparktxlog.worker.backup.removal import Unwanted

    unwanted = Unwanted(
        images=images, keep_images=keep_images, quarantine_days=quarantine_days,
        backup_days=backup_days, dry_run=dry_run,
    )  # fmt: skip
    api = NodeApi(url, timeout_s=_SHORTEN_TIME_S)
    info = api.get("/v1/info")
    unwanted.check(old_files=bool(info["backup_dir"]))
    log = {} if dry_run else api.send("POST", "/v1/maintenance", {})
    if not as_json:
        _print_log(log)
    found: list[dict[str, Any]] = []
    if not (no_optimize and no_vacuum):
        from sparktxlog.worker.replica.maintenance import Upkeep

        wanted = Upkeep(
            tables=table or [], optimize=not no_optimize, vacuum=not no_vacuum, dry_run=dry_run,
            many_files=min_files, wait_s=wait,
        )  # fmt: skip
        found = _maintain_tables(info["lake_root"], wanted)
    # Asked again: what the log has outlived is known after its shortening.
    removed = _remove(api.get("/v1/info"), unwanted) if unwanted.anything else []
    if as_json:
        print_json({"log": log, "tables": found, "removed": removed})
    else:
        for title, names, lines in (
            ("tables", _TABLE_COLUMNS, found), ("removed", _REMOVAL_COLUMNS, removed),
        ):  # fmt: skip
            if lines:
                print_table(title, {name: name for name in names}, lines)
    if any(line["failed"] for line in (*found, *removed)):
        end(ExitCode.ERROR)
    if any(line["skipped"] for line in (*found, *removed)) and not dry_run:
        end(ExitCode.LAGGING)


def _remove(info: dict[str, Any], unwanted: Unwanted) -> list[dict[str, Any]]:
    from sparktxlog.worker.backup.removal import SiteLog, remove_expired
    from sparktxlog.worker.verify.single_flight import single_flight

    lake = info["lake_root"]
    with single_flight(lake):
        done = remove_expired(lake, unwanted, SiteLog.of(info), now_us=time.time_ns() // 1000)
    return [asdict(removal) for removal in done]


def _maintain_tables(lake: str, wanted: Upkeep) -> list[dict[str, Any]]:
    from sparktxlog.worker.replica.maintenance import maintain_replica
    from sparktxlog.worker.verify.single_flight import single_flight

    with single_flight(lake), local_spark("maintain") as spark:
        done = maintain_replica(spark, lake, wanted, lambda line: typer.echo(line, err=True))
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
