"""What the jobs `maintain` and `verify` do, for `jobs/*.py` and the commands of these names.

Spark is started only if there are tables to compact or rows to count.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any

from sparktxlog.api.jobs import job
from sparktxlog.api.jobs.progress_lines import say
from sparktxlog.worker.backup.removal import Removal, SiteLog, Unwanted, remove_expired
from sparktxlog.worker.verify.comparing import (
    SiteComparison,
    compare_sites,
    comparison_lines,
    conclusions,
)
from sparktxlog.worker.verify.histories import read_peer_urls
from sparktxlog.worker.verify.single_flight import VERIFICATION, single_flight

if TYPE_CHECKING:
    from sparktxlog.worker.replica.maintenance import TableUpkeep
    from sparktxlog.worker.verify.verify import Verification


def maintain(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Shorten the log, compact and vacuum tables, and remove what the arguments name."""
    a = context.arguments
    unwanted = Unwanted(
        images=a.images,
        keep_images=a.keep_images,
        quarantine_days=a.drop_quarantine_older_than,
        dropped_days=a.remove_dropped_older_than,
        backup_days=a.drop_backups_older_than,
        dry_run=a.dry_run,
    )
    with closing(context.open_source()) as source:
        info = source.info()
        unwanted.check(old_files=info.backup_dir is not None)
        lake = a.lake or info.lake_root
        log = {} if a.dry_run else source.maintain_log()
        for line in _log_lines(log):
            context.tell(line)
        tables = [] if a.no_optimize and a.no_vacuum else _maintain_tables(context, lake)
        removed: list[Removal] = []
        if unwanted.anything:
            with single_flight(lake):
                # Asked again: after the log was shortened, more images may be older than it.
                site = SiteLog.of(source.document("/v1/info"))
                removed = remove_expired(lake, unwanted, site, now_us=time_ns() // 1000)
    for removal in removed:
        say(removal.describe())
    done: list[TableUpkeep | Removal] = [*tables, *removed]
    skipped = any(one.skipped for one in done) and not a.dry_run
    code = job.LAGGING if skipped else job.OK
    return job.ERROR if any(one.failed for one in done) else code, {
        "log": log,
        "tables": [asdict(table) for table in tables],
        "removed": [asdict(removal) for removal in removed],
    }


def _maintain_tables(context: job.JobContext, lake: str) -> list[TableUpkeep]:
    from sparktxlog.worker.replica.maintenance import Upkeep, maintain_replica

    a = context.arguments
    wanted = Upkeep(
        tables=a.tables,
        optimize=not a.no_optimize,
        vacuum=not a.no_vacuum,
        dry_run=a.dry_run,
        many_files=a.min_files,
        wait_s=a.wait,
    )
    with single_flight(lake):
        return maintain_replica(context.spark, lake, wanted, say)


def _log_lines(log: Mapping[str, Any]) -> list[str]:
    if not log:
        return ["dry run: the log is left as it is"]
    kept = (
        f"log: kept after position {log['pruned_to']:,}, {log['transactions']:,} transactions "
        f"removed, {log['log_bytes_before']:,} to {log['log_bytes']:,} bytes"
    )
    lines = [kept]
    if log["held_by"]:
        lines.append(f"held back by: {', '.join(log['held_by'])}")
    if log["overrun"]:
        lines.append(f"needs a copy now: worker of {', '.join(log['overrun'])}")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of a recount of a site's rows, and of a comparison of its reports with others."""

    #: None = not asked for.
    counted: Verification | None
    compared: SiteComparison | None
    #: What follows from both, one sentence each.
    conclusions: list[str]

    @property
    def code(self) -> int:
        """The exit code."""
        counted, compared = self.counted, self.compared
        if (counted and not counted.sound) or (compared and not compared.equal):
            return job.DIVERGED
        return job.OK if compared is None or compared.complete else job.LAGGING

    def comparison_lines(self) -> list[str]:
        """Return the comparison for people."""
        return [] if self.compared is None else comparison_lines(self.compared, self.conclusions)


def verified(context: job.JobContext, *, recount: bool) -> Verified:
    """Recount the replica of a node by Spark, or compare the reports of all sites, or both.

    Raises:
        TransportError: The node cannot be reached.
        LockedError: Another recount runs on the lake (definite).
        NotAppliedError: No worker has applied anything there yet (definite).
    """
    a, counted, compared = context.arguments, None, None
    with closing(context.open_source()) as source:
        if a.compare:
            compared = compare_sites(source, read_peer_urls(a.peer_url), since=a.since)
        if recount:
            lake = a.lake or source.info().lake_root
            with single_flight(lake, VERIFICATION):
                spark = context.spark
                from sparktxlog.worker.verify.verify import verify_replica

                counted = verify_replica(spark, source, lake, a.table)
    said = [] if compared is None else conclusions(compared, counted)
    return Verified(counted=counted, compared=compared, conclusions=said)


def verify(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Recount the replica and, if the arguments say so, compare the sites: the job."""
    from sparktxlog.worker.verify.verify import recount_lines

    found = verified(context, recount=True)
    assert found.counted is not None, "a job always recounts"
    say("\n".join([*recount_lines(found.counted), *found.comparison_lines()]))
    result = {"sound": found.counted.sound, **asdict(found.counted)}
    if found.compared is not None:
        result["comparison"] = found.compared.to_document(found.conclusions)
    return found.code, result
