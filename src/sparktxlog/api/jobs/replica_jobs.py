"""What the jobs `apply`, `catch-up`, `replicate` and `repair` do, for `jobs/*.py` and commands.

Each takes a `JobContext` and returns exit code and result: the fields of an `ApplyOutcome`.
"""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sparktxlog.api.jobs import job
from sparktxlog.api.jobs.progress_lines import say
from sparktxlog.api.reading.restore_points import named_point
from sparktxlog.errors import InvalidRequestError, NotAppliedError
from sparktxlog.model.replicas import check_replica_name, table_set
from sparktxlog.worker.apply.cutting import Cut, find_cut
from sparktxlog.worker.apply.worker_session import applier_session
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher, FetcherOf, executor_fetcher
from sparktxlog.worker.lakes.lake_places import lake_at
from sparktxlog.worker.repair.repairing import RepairOutcome, RepairWay, TableRepair
from sparktxlog.worker.replica.applier import Applier, ApplyOutcome
from sparktxlog.worker.replica.bucket_replica import open_replica, place_of_locks
from sparktxlog.worker.replica.source import HttpLogSource, LogTail, NodeInfo
from sparktxlog.worker.replica.state import read_state
from sparktxlog.worker.verify.table_verification import verify_commit_tables

_logger = logging.getLogger(__name__)


def apply(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Apply the published log to the site's replica: once, or following until a signal."""
    arguments = context.arguments
    at_most = arguments.at_most
    if arguments.at is not None:
        with closing(context.open_source()) as source:
            at_most = named_point(source.document, arguments.at).position
    stops = at_most is not None
    copies = None if arguments.no_copy or stops else CopyOptions()
    with _applier(context, copies, replays_anyway=stops, at_most=at_most) as applier:
        if arguments.follow:
            stop = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
            outcome = applier.follow(stop)
        else:
            outcome = applier.run_once(arguments.at_least, arguments.timeout)
    return _reported(outcome, max(arguments.at_least, at_most or 0))


def catch_up(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Bring the replica to the end of the published log: by replay or copy, as the node plans."""
    arguments = context.arguments
    replays = arguments.force == "replay"
    options = CopyOptions(
        verify=not arguments.no_verify,
        history=arguments.history,
        forced=arguments.force == "copy",
        donor=arguments.donor,
    )
    with _applier(context, None if replays else options, replays_anyway=replays) as applier:
        outcome = applier.catch_up(arguments.timeout)
    return _reported(outcome, outcome.published)


def replicate(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Copy a donor's replica with Spark's executors; then replay the rest.

    All executors must see the lake under the driver's path, or `lake-dir` if it is in a bucket.
    """
    arguments = context.arguments
    options = CopyOptions(verify=not arguments.no_verify, history=arguments.history, forced=True)
    fetchers = executor_fetcher(context.spark, arguments.parts)
    with _applier(context, options, open_fetcher=fetchers) as applier:
        outcome = applier.catch_up(arguments.timeout)
    return _reported(outcome, outcome.published)


def repair(context: job.JobContext) -> tuple[int, dict[str, Any]]:
    """Bring a table that another writer changed back to the log; then replay the rest.

    The result is a `RepairOutcome`, with the fields of an `ApplyOutcome` after a repair.
    """
    arguments = context.arguments
    with closing(context.open_source()) as source:
        lake = context.lake_of(source.info())
        rows, commits = source.rows_and_commits([arguments.table], lake)
    _refuse_alien_options(arguments, is_commit_table=bool(commits))
    if commits:
        return _repair_commit_table(context, commits)
    (arguments.table,) = rows
    if arguments.dry_run:
        outcome, applied = _diagnosed(context), None
    else:
        with _applier(context, None) as applier:
            outcome = applier.repair(arguments.table, local=arguments.local)
            applied = applier.run_once(0, arguments.timeout) if outcome.done else None
    say(outcome.describe())
    result = {"repair": asdict(outcome)}
    if applied is not None:
        code, more = _reported(applied, applied.published)
        return code, result | more
    if outcome.found.copy:
        say("Copy it with `sparktxlog catch-up`, or repair it from this site's files with --local")
    wrong = outcome.found.way is not RepairWay.NOTHING
    return job.DIVERGED if wrong else job.OK, result


def _refuse_alien_options(arguments: argparse.Namespace, *, is_commit_table: bool) -> None:
    """Refuse an option of `repair` that means nothing for a table of this kind.

    Raises:
        InvalidRequestError: It would be passed over (definite).
    """
    if is_commit_table and arguments.local:
        raise InvalidRequestError(
            f"--local is of row tables, and {arguments.table!r} is a commit table",
            hint="Leave it out: the files of a commit table come from other sites only.",
            field="local",
        )
    if arguments.right and not is_commit_table:
        raise InvalidRequestError(
            f"--right is of commit tables, and {arguments.table!r} is a row table",
            hint=f"Run `sparktxlog catch-up --force copy --donor {arguments.right}` at the site "
            "that is wrong.",
            field="right",
        )


def _repair_commit_table(context: job.JobContext, names: list[str]) -> tuple[int, dict[str, Any]]:
    """Have the node recount a commit table, and fetch what is wrong from other sites."""
    a = context.arguments
    with closing(context.open_source()) as source:
        (found,) = verify_commit_tables(source, names, repair=not a.dry_run, right=a.right or "")
    say("\n".join(found.lines()))
    if way_out := found.way_out(by_repair=True):
        say(f"        {way_out}")
    result = asdict(found) | {"sound": found.sound}
    return job.OK if found.sound else job.DIVERGED, {"commit_table": result}


def _diagnosed(context: job.JobContext) -> RepairOutcome:
    """Check a table, possibly while a worker runs; nothing is changed."""
    with closing(context.open_source()) as source:
        info = source.info()
        lake = lake_at(context.lake_of(info))
        state = read_state(lake.url)
        if state is None:
            raise NotAppliedError(f"nothing has been applied in {lake.url} yet", path=lake.url)
        looking = TableRepair(
            session=applier_session(context.spark),
            source=source,
            lake=lake,
            disk=info.disk_of(lake.url),
            state=state,
            info=info,
        )
        found = looking.diagnose(context.arguments.table)
        return RepairOutcome(found=replace(found, copy=looking.copy_offered()))


@contextmanager
def _applier(
    context: job.JobContext,
    copies: CopyOptions | None,
    *,
    replays_anyway: bool = False,
    open_fetcher: FetcherOf = DonorFetcher,
    at_most: int | None = None,
) -> Iterator[Applier]:
    """Lock the replica, with one connection for the log and one for reports."""
    # Before Spark starts, which takes a while.
    name = getattr(context.arguments, "name", None)
    name = None if name is None else check_replica_name(name)
    tables = table_set(getattr(context.arguments, "tables", None) or ())
    with closing(context.open_source()) as plain, closing(context.open_source()) as reporting:
        info = plain.info()
        lake = context.lake_of(info)
        spark = context.spark  # if it cannot start, that is reported before the replica is locked
        cut = None if at_most is None else find_cut(plain.document, at_most)
        if cut is not None:
            refuse_beyond(lake, cut)
        follows = getattr(context.arguments, "follow", False)
        here = place_of_locks(info, lake, getattr(context.arguments, "work_dir", None))
        source = plain if follows else JobSource(plain.url, plain.token, cut)
        with closing(source), closing(open_replica(lake, here)) as directory:
            yield Applier(
                spark,
                source,
                directory,
                reporting=reporting,
                copies=copies,
                replays_anyway=replays_anyway,
                takes_lake=getattr(context.arguments, "take_lake", False),
                name=name,
                tables=tables,
                open_fetcher=open_fetcher,
            )


def _reported(outcome: ApplyOutcome, at_least: int) -> tuple[int, dict[str, Any]]:
    """Print to stderr what was done; return exit code and result."""
    for repair in outcome.repairs:
        say(repair.describe())
    for copy in outcome.copies:
        say(copy.describe())
    verdict = outcome.verdict or "not reported to the node"
    say(f"position {outcome.position:,} of {outcome.published:,}: {verdict}")
    return job.code_of_outcome(outcome, at_least), asdict(outcome)


class JobSource(HttpLogSource):
    """A node's log for one run of a job: it logs the replay's progress, and may end at a cut."""

    def __init__(self, url: str, token: str | None, cut: Cut | None = None) -> None:
        super().__init__(url, token)
        self._cut = cut
        #: Positions where the replay began, and that was logged last; -1 = none yet.
        self._began = self._told = -1

    def info(self) -> NodeInfo:
        """Return what the worker shares with the node, whose log may end at a cut."""
        info = super().info()
        if self._cut is None:
            return info
        end = self._cut.position
        return replace(info, position=min(info.position, end), published=min(info.published, end))

    def segments(
        self, after: int, *, wait_s: float, limit: int = 500, whole: bool = False
    ) -> LogTail:
        """Return segments after a position, up to the cut; the worker has applied up to there."""
        if self._cut is not None and after >= self._cut.position:
            wait_s = 0.0
        tail = super().segments(after, wait_s=wait_s, limit=limit, whole=whole)
        if self._cut is not None:
            tail = tail.cut_at(self._cut)
        self._tell(after, tail.position)
        return tail

    def _tell(self, position: int, end: int) -> None:
        if self._began < 0 and position < end:
            self._began = position
        if self._began < 0 or position == self._told:
            return
        self._told = position
        _logger.info(
            "position %s of %s is applied",
            f"{position:,}",
            f"{end:,}",
            extra={"done": position - self._began, "total": end - self._began},
        )


def refuse_beyond(lake: str | Path, cut: Cut) -> None:
    """Refuse a replica that has already applied more than the cut."""
    state = read_state(lake)
    if state is None:
        return
    applied = state.pending.last if state.pending is not None else state.position
    if applied > cut.position:
        begun = "begun a batch up to" if state.pending is not None else "applied"
        raise InvalidRequestError(
            f"the replica in {lake} has already {begun} position {applied}, which is after "
            f"{cut.position}",
            hint="Move the lake away, restore an older image in its place, and try again.",
            position=cut.position,
            applied=applied,
        )
