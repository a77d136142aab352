"""What the jobs `maintain` and `verify` do, for `jobs/*.py` and the commands of these names.

Spark is started only if there are tables to compact or rows to count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any

from sparktxlog.api.jobs import job
from sparktxlog.api.jobs.job_options import ExitCode
from sparktxlog.api.jobs.progress_lines import say
from sparktxlog.api.reading.restore_points import known_points
from sparktxlog.errors import NotAppliedError
from sparktxlog.http.tokens import client_token
from sparktxlog.model.restore_point import keep_hours
from sparktxlog.worker.backup.removal import Removal, SiteLog, Unwanted, remove_expired
from sparktxlog.worker.lakes.lake_places import is_in_bucket
from sparktxlog.worker.replica.state import applied_state, read_state
from sparktxlog.worker.verify.comparing import (
    SiteComparison,
    compare_sites,
    comparison_lines,
    conclusions,
)
from sparktxlog.worker.verify.histories import read_peer_urls
from sparktxlog.worker.verify.lake_lock import VERIFICATION, one_at_a_time
from sparktxlog.worker.verify.table_verification import (
    CommitTableResult,
    verify_commit_tables,
)

if TYPE_CHECKING:
    from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo
    from sparktxlog.worker.tables.table_upkeep import TableUpkeep, Upkeep
    from sparktxlog.worker.verify.verify import Verification


def maintain(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Shorten the log, compact and vacuum tables, and remove what the arguments name."""
    a = context.arguments
    unwanted = Unwanted(
        images=a.images,
        keep_images=a.keep_images,
        attic_days=a.empty_attic_older_than,
        dry_run=a.dry_run,
    )
    with closing(context.open_source()) as source:
        info = source.info()
        unwanted.check()
        lake = context.lake_of(info)
        log = {} if a.dry_run else source.maintain_log()
        for line in _log_lines(log):
            context.tell(line)
        tables: list[TableUpkeep] = []
        commit_tables: list[TableUpkeep] = []
        removed: list[Removal] = []
        if not (a.no_optimize and a.no_vacuum):
            from sparktxlog.worker.tables.table_upkeep import Upkeep

            rows, commits = source.rows_and_commits(a.tables, lake)
            wanted = Upkeep(
                optimize=not a.no_optimize,
                vacuum=not a.no_vacuum,
                dry_run=a.dry_run,
                many_files=a.min_files,
                wait_s=a.wait,
                keep_hours=keep_hours(known_points(source.document), time_ns() // 1000),
            )
            if commits or not a.tables:
                wanted_here = replace(wanted, tables=commits)
                commit_tables, removed = _maintain_commit_tables(context, info, wanted_here)
            if rows or not a.tables:
                wanted_here = replace(wanted, tables=rows)
                may_lack = bool(commit_tables)  # a site may have commit tables only
                here = info.disk_of(lake)
                tables = _maintain_row_tables(context, lake, here, wanted_here, may_lack=may_lack)
        if unwanted.anything:
            with one_at_a_time(info.disk_of(lake)):
                # Asked again: after the log was shortened, more images may be older than it.
                site = SiteLog.of(source.document("/v1/info"))
                removed += remove_expired(lake, unwanted, site, now_us=time_ns() // 1000)
    for removal in removed:
        say(removal.describe())
    done: list[TableUpkeep | Removal] = [*tables, *commit_tables, *removed]
    skipped = any(one.skipped for one in done) and not a.dry_run
    code = job.LAGGING if skipped else job.OK
    return job.ERROR if any(one.failed for one in done) else code, {
        "log": log,
        "tables": [asdict(table) for table in tables],
        "commit_tables": [asdict(table) for table in commit_tables],
        "removed": [asdict(removal) for removal in removed],
    }


def _maintain_row_tables(
    context: job.JobContext, lake: str, here: Path, wanted: Upkeep, *, may_lack: bool
) -> list[TableUpkeep]:
    from sparktxlog.worker.tables.bucket_row_upkeep import maintain_bucket
    from sparktxlog.worker.tables.row_upkeep import maintain_replica

    try:
        applied_state(lake)  # before Spark is started for it
    except NotAppliedError:
        if not may_lack:
            raise
        return []
    with one_at_a_time(here):
        if not is_in_bucket(lake):
            return maintain_replica(context.spark, lake, wanted, say)
        if wanted.optimize:
            say(f"row tables are not compacted: they lie in {lake}")
        return maintain_bucket(lake, here, wanted, say)


def _maintain_commit_tables(
    context: job.JobContext, info: NodeInfo, wanted: Upkeep
) -> tuple[list[TableUpkeep], list[Removal]]:
    from sparktxlog.http.catalog_link import CatalogLink
    from sparktxlog.worker.tables.commit_upkeep import CommitTableKeeper
    from sparktxlog.worker.tables.places_of_tables import tables_below

    with closing(CatalogLink(context.arguments.url, token=client_token())) as link:
        tables = link.tables()
        root, url = Path(info.commit_table_root), info.commit_table_url
        readers = None if info.reader_table_root is None else Path(info.reader_table_root)
        if url is None and not root.is_dir():
            if tables:
                say(f"commit tables are left as they are: {root} is not on this machine")
            return [], []
        with one_at_a_time(root) if url is None else nullcontext():
            context.urls += [] if url is None else [url]
            places = tables_below(url or str(root), readers)
            keeper = CommitTableKeeper(lambda: context.spark, link, places, wanted, say)
            done = keeper.maintain(tables)
            gone = (
                {
                    "places of no table": keeper.remove_unused(tables),
                    "leftovers": keeper.remove_abandoned(),
                }
                if wanted.vacuum
                else {}
            )
    return done, [Removal(kind=kind, removed=names) for kind, names in gone.items() if names]


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

    #: None = not asked for, or there are no row tables here.
    counted: Verification | None
    compared: SiteComparison | None
    #: What follows from both, one sentence each.
    conclusions: list[str]
    #: Recounts of commit tables.
    commit_tables: tuple[CommitTableResult, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: that of the judge, and that of what was compared and counted now."""
        counted, compared = self.counted, self.compared
        sound = counted is None or counted.sound
        if not (sound and all(table.sound for table in self.commit_tables)):
            return job.DIVERGED
        return job.OK if compared is None else int(ExitCode[compared.state.name])

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        if self.counted is not None:
            yield from self.counted.lines()
        for table in self.commit_tables:
            yield from table.lines()
            if way_out := table.way_out():
                yield f"        {way_out}"
        if self.compared is not None:
            yield from comparison_lines(self.compared, self.conclusions)


def verified(context: job.JobContext, *, recount: bool) -> Verified:
    """Recount the replica of a node by Spark, or compare the reports of all sites, or both.

    Raises:
        TransportError: The node cannot be reached.
        LockedError: Another recount runs on the lake (definite).
        NotAppliedError: No worker has applied anything there yet (definite).
    """
    a, counted, compared = context.arguments, None, None
    commit_tables: tuple[CommitTableResult, ...] = ()
    with closing(context.open_source()) as source:
        lake, locked, rows, named = "", Path(), list[str](), list[str]()
        if recount:
            info = source.info()
            lake = context.lake_of(info)
            locked = info.disk_of(lake)
            rows, named = source.rows_and_commits(a.table, lake)
        if a.compare:
            compared = compare_sites(source, read_peer_urls(a.peer_url), since=a.since)
        if recount and (named or not a.table):
            commit_tables = verify_commit_tables(source, named)
        if recount and (rows or not named):
            with one_at_a_time(locked, VERIFICATION):
                counted = _counted(context, source, lake, rows, optional=bool(commit_tables))
    said = [] if compared is None else conclusions(compared, counted)
    return Verified(
        counted=counted, compared=compared, conclusions=said, commit_tables=commit_tables
    )


def _counted(
    context: job.JobContext, source: HttpLogSource, lake: str, tables: list[str], *, optional: bool
) -> Verification | None:
    """Recount row tables; None = nothing was ever applied, and that may be so."""
    if optional and read_state(lake) is None:
        return None
    spark = context.spark
    from sparktxlog.worker.verify.verify import verify_replica

    return verify_replica(spark, source, lake, tables)


def verify(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Recount the replica, or compare the sites; with both wishes both."""
    a = context.arguments
    found = verified(context, recount=a.recount or not a.compare)
    counted = {} if found.counted is None else _counts_of(found.counted)
    commits = [asdict(table) | {"sound": table.sound} for table in found.commit_tables]
    for line in found.lines():
        context.tell(line)
    if found.compared is None:
        return found.code, counted | {"commit_tables": commits}
    report = found.compared.to_document(found.conclusions) | {"commit_tables": commits}
    return found.code, report | ({"recount": counted} if counted else {})


def _counts_of(found: Verification) -> dict[str, Any]:
    return {
        "node_id": found.node_id,
        "replica": found.replica,
        "position": found.position,
        "sound": found.sound,
        "verdict": found.verdict,
        "plan": found.plan,
        "compared_sites": list(found.compared_sites),
        "tables": {table.table: asdict(table) | {"sound": table.sound} for table in found.tables},
    }
