"""What `jobs/maintain.py` does besides the tables: what expired, its arguments, and its result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import time_ns
from typing import Any

from sparktxlog.api.jobs import job
from sparktxlog.worker.backup.removal import (
    KEEP_IMAGES,
    Removal,
    SiteLog,
    Unwanted,
    remove_expired,
)
from sparktxlog.worker.replica.maintenance import TableUpkeep
from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo


def add_leftover_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what may go; without them nothing does."""
    parser.add_argument(
        "--images", type=Path, metavar="DIR",
        help="remove backup images there that the log has outlived",
    )  # fmt: skip
    parser.add_argument(
        "--keep-images", type=int, default=KEEP_IMAGES, metavar="N",
        help="but keep the site's N newest ones",
    )  # fmt: skip
    parser.add_argument(
        "--drop-quarantine-older-than", type=int, metavar="DAYS",
        help="remove rows and tables that copies put aside",
    )  # fmt: skip
    parser.add_argument(
        "--drop-backups-older-than", type=int, metavar="DAYS",
        help="remove old files that copies kept in backup-dir",
    )  # fmt: skip


def unwanted_of(arguments: argparse.Namespace, info: NodeInfo) -> Unwanted:
    """Return what the arguments say may go.

    Raises:
        InvalidRequestError: They make no sense for this node (definite).
    """
    unwanted = Unwanted(
        images=arguments.images,
        keep_images=arguments.keep_images,
        quarantine_days=arguments.drop_quarantine_older_than,
        backup_days=arguments.drop_backups_older_than,
        dry_run=arguments.dry_run,
    )
    unwanted.check(old_files=info.backup_dir is not None)
    return unwanted


def remove_unwanted(lake: str | Path, unwanted: Unwanted, source: HttpLogSource) -> list[Removal]:
    """Remove what may go now, named on stderr; hold `single_flight`.

    **Before calling** have the log shortened: what it has outlived is known then.
    """
    site = SiteLog.of(source.document("/v1/info"))
    removed = remove_expired(lake, unwanted, site, now_us=time_ns() // 1000)
    sys.stderr.writelines(f"{removal.describe()}\n" for removal in removed)
    return removed


def result_of(
    log: dict[str, Any], tables: Sequence[TableUpkeep], removed: Sequence[Removal], *, dry_run: bool
) -> tuple[int, dict[str, Any]]:
    """Return the job's exit code and the result for its line of JSON."""
    done: list[TableUpkeep | Removal] = [*tables, *removed]
    failed = any(one.failed for one in done)
    skipped = any(one.skipped for one in done) and not dry_run
    code = job.ERROR if failed else job.LAGGING if skipped else job.OK
    return code, {
        "log": log,
        "tables": [asdict(table) for table in tables],
        "removed": [asdict(removal) for removal in removed],
    }
