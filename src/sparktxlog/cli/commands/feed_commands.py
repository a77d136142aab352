"""Commands `feed`: the log, kept outside of all sites, and tables that are made from it again.

Only `feed restore` starts Spark.
"""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.api.jobs.job_options import require_spark
from sparktxlog.api.jobs.progress_lines import start_logging
from sparktxlog.cli.commands.backup_commands import place_of_lake, print_wrong
from sparktxlog.cli.common_options import (
    DEFAULT_URL,
    AsJson,
    ExitCode,
    app,
    end,
    local_spark,
    short_for,
)
from sparktxlog.cli.dry_runs import DryRun, print_plan
from sparktxlog.cli.printing import Columns, print_json, print_table, progress_bar
from sparktxlog.model.shown import time_text

if TYPE_CHECKING:
    from sparktxlog.worker.feed.feed_commits import CommitTableAt
    from sparktxlog.worker.feed.feed_points import FeedRoute
    from sparktxlog.worker.feed.feed_store import FeedStore
    from sparktxlog.worker.feed.shipping import FeedProgress
    from sparktxlog.worker.replica.state import ReplicaState

_logger = logging.getLogger(__name__)

feed_app = typer.Typer(
    cls=short_for("run"),
    no_args_is_help=True,
    help="Keep the log outside of all sites: `feed --to PLACE` stores it; see also list, verify, "
    "prune, restore.",
)
app.add_typer(feed_app, name="feed")
Place = Annotated[
    str,
    typer.Argument(
        metavar="FEED", help="Directory of the feed, or s3://bucket/prefix, abfss://…, gs://…."
    ),
]
KeepDays = Annotated[
    float | None,
    typer.Option("--keep-days", metavar="DAYS", help="Each time of the last DAYS can be restored."),
]
KeepBytes = Annotated[
    int | None,
    typer.Option(
        "--keep-bytes", metavar="BYTES", help="Size of the feed, images not counted, if possible."
    ),
]
#: Seconds between two lines about progress.
_LINES_S = 10.0


@feed_app.command(
    "run",
    epilog="Example: sparktxlog feed --url http://a:7070,http://b:7070 --to s3://off-site/log",
)
def run_feed(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Directory of the feed, or s3://bucket/prefix, abfss://…, gs://….",
        ),
    ],
    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="SPARKTXLOG_URL",
            help="Node to follow; several with commas: the next one is asked when one is away.",
        ),
    ] = DEFAULT_URL,
    once: Annotated[
        bool, typer.Option("--once", help="End when the feed has what is ordered now.")
    ] = False,
    keep_days: KeepDays = None,
    keep_bytes: KeepBytes = None,
    as_json: AsJson = False,
) -> None:
    """Follow a node, and store its log and all files that it names; until SIGTERM or Ctrl-C.

    `sparktxlog feed --to PLACE` is the short form.  It begins with the log, or else with the newest
    image in `PLACE/images`, and goes on where it ended.  It needs no Spark.  With --keep-days or
    --keep-bytes it does once an hour what `feed prune` does.
    """
    from sparktxlog.worker.feed.feed_pruning import FeedUpkeep, Retention
    from sparktxlog.worker.feed.feed_store import FeedStore
    from sparktxlog.worker.feed.shipping import feed

    start_logging()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    urls = [one.strip() for one in url.split(",") if one.strip()]
    if not urls:
        raise typer.BadParameter("--url names no node")
    place, more = FeedStore(to), dict[str, Any]()
    if keep_days is not None or keep_bytes is not None:
        retention = Retention(days=keep_days, size_bytes=keep_bytes)
        more["upkeep"] = FeedUpkeep(place, retention)
    done = feed(place, urls, stop, once=once, tell=_Lines(), **more)
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(
            f"The feed is whole up to position {done.position:,}; node {done.node_id} has "
            f"published {done.published:,}.  Stored now: {done.transactions:,} transactions, "
            f"{done.pages:,} pages, {done.size_bytes:,} bytes of files."
        )


class _Lines:
    """Logs progress, not too often."""

    def __init__(self) -> None:
        self._next_at, self._told = 0.0, -1

    def __call__(self, progress: FeedProgress) -> None:
        if progress.position != self._told and time.monotonic() >= self._next_at:
            _logger.info(
                "the feed is whole up to position %s of %s",
                f"{progress.position:,}",
                f"{progress.published:,}",
            )
            self._told, self._next_at = progress.position, time.monotonic() + _LINES_S


@feed_app.command("list", epilog="Example: sparktxlog feed list s3://off-site/log --json")
def list_feed(place: Place, as_json: AsJson = False) -> None:
    """Show up to where a feed is whole, how late that is, and the images from which it leads on."""
    from sparktxlog.worker.feed.feed_checks import lag_of
    from sparktxlog.worker.feed.feed_store import FeedStore

    store = FeedStore(place)
    identity, lag = store.identity(), lag_of(store, time.time_ns() // 1000)
    firsts = store.firsts()
    images = store.bases()
    result: dict[str, Any] = {
        "feed": store.url,
        "log_id": identity.log_id,
        "cluster": identity.cluster,
        "begins_after": firsts[0] - 1 if firsts else None,
        "pages": len(firsts),
        **({} if lag is None else asdict(lag)),
        "images": [
            {"image": one.name, "position": one.position, "created_at": one.created_at}
            for one in images
        ],
    }
    if as_json:
        print_json(result)
        return
    if lag is None:
        typer.echo(f"The feed in {store.url} of log {identity.log_id} has no page yet.")
    else:
        typer.echo(
            f"The feed in {store.url} of log {identity.log_id} has positions {firsts[0]:,} to "
            f"{lag.position:,} in {len(firsts):,} pages.  It ends with what was ordered until "
            f"{time_text(lag.whole_until)} UTC, {lag.lag_s:,} s ago.  Whether each page is there "
            "and whole, `sparktxlog feed verify` says."
        )
    columns: Columns = {
        "image": "image",
        "made (UTC)": lambda image: time_text(image["created_at"]),
        "position": "position",
    }
    print_table(f"images in {store.images.url}", columns, result["images"])


@feed_app.command("verify", epilog="Example: sparktxlog feed verify /off-site/log")
def verify_feed(place: Place, as_json: AsJson = False) -> None:
    """Read all of a feed: digests, order, chain hashes; exit code 1 if something is damaged.

    Its images are verified by `sparktxlog backup verify FEED/images`.
    """
    from sparktxlog.worker.feed.feed_checks import check_feed
    from sparktxlog.worker.feed.feed_store import FeedStore

    store = FeedStore(place)
    found = check_feed(store)
    if as_json:
        print_json({"feed": store.url, **asdict(found)})
    else:
        for part in found.parts:
            start = part.begins_at and f", from {_start_text(part.begins_at)}"
            typer.echo(f"positions {part.first:,} to {part.last:,} in {part.pages:,} pages{start}")
        typer.echo(f"{found.files:,} files of {found.size_bytes:,} bytes")
        if found.damaged:
            columns: Columns = {
                "position": "position",
                "stored as": "stored",
                "problem": "problem",
            }
            print_table("damaged", columns, found.damaged)
        else:
            typer.echo("All pages follow each other, and all digests are equal.")
    end(ExitCode.ERROR if found.damaged else ExitCode.IN_SYNC)


@feed_app.command("prune", epilog="Example: sparktxlog feed prune s3://off-site/log --keep-days 30")
def prune_feed(
    place: Place,
    keep_days: KeepDays = None,
    keep_bytes: KeepBytes = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove the beginning of a feed, up to an image from which it leads on; images stay.

    With both options more stays.  The image is read and compared before anything goes; where there
    is none, nothing goes, and it says why.  Images go by `sparktxlog maintain`.
    """
    from sparktxlog.worker.feed.feed_pruning import Retention, prune
    from sparktxlog.worker.feed.feed_store import FeedStore

    store, retention = FeedStore(place), Retention(days=keep_days, size_bytes=keep_bytes)
    now_us = time.time_ns() // 1000
    if dry_run:
        done = prune(store, None, retention, now_us)
    else:
        store.identity()  # a place that is no feed is not locked, and so made
        with store.writing() as writer:
            done = prune(store, writer, retention, now_us)
    document = {"feed": store.url, **asdict(done)}
    lines = [f"Nothing is removed: {done.reason}."]
    if done.image:
        begins = "would begin" if dry_run else "begins"
        text = f"The feed in {store.url} {begins} with image {done.image}, position "
        text += f"{done.position:,}: {done.pages:,} pages and {done.files:,} files of "
        lines = [f"{text}{done.size_bytes:,} bytes less."]
        if done.reason:
            lines.append(f"More stays than was asked for: {done.reason}.")
    if dry_run:
        print_plan(as_json, document, lines)
    elif as_json:
        print_json(document)
    else:
        for line in lines:
            typer.echo(line)


def _start_text(begins_at: str) -> str:
    from sparktxlog.worker.feed.feed_page import LOG_BEGINNING

    return "the beginning of the log" if begins_at == LOG_BEGINNING else f"image {begins_at}"


@feed_app.command(
    "restore",
    epilog="Example: sparktxlog feed restore s3://off-site/log --lake new/lake "
    "--at 2026-05-01T12:00:00Z",
)
def restore_feed(
    place: Place,
    lake: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="New root of the row tables, or its URL; or one that an earlier restore made.",
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION|TIME",
            help="Where to stop: a position, or a time (UTC), for what was ordered until then; "
            "default: the end of the feed.",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Image to begin with; default: the newest that fits."),
    ] = None,
    commit_tables: Annotated[
        str | None,
        typer.Option(
            "--commit-tables",
            metavar="PATH",
            help="Also restore the commit tables, as plain Delta tables in a new directory, or "
            "below its URL in a bucket.",
        ),
    ] = None,
    force_clean: Annotated[
        bool, typer.Option("--force-clean", help="Remove what an interrupted restore left.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Recount the signatures afterwards.")
    ] = True,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make the tables of a position from a feed: the image before it, then the log up to there.

    Needs no node.  Repeat it after a kill: it goes on.  Exit code 4 if the rows of a table do not
    match its signature, or a table stands still.
    """
    from sparktxlog.worker.feed.feed_commits import check_absent, commit_tables_at
    from sparktxlog.worker.feed.feed_lakes import check_target
    from sparktxlog.worker.feed.feed_points import check_leads, route_to, target_of
    from sparktxlog.worker.feed.feed_store import FeedStore

    store, target = FeedStore(place), place_of_lake(lake)
    route = route_to(store, target_of(store, at), image)
    stands_at = check_target(store, route, target, force_clean=force_clean)
    goes_on = stands_at is not None
    tables = None if commit_tables is None else place_of_lake(commit_tables)
    if tables is not None:
        check_absent(tables)
    if dry_run:
        check_leads(store, route.begins_after if stands_at is None else stands_at, route.target)
        at_position = [] if tables is None else commit_tables_at(store, route)
        print_plan(as_json, *_plan(store, route, target, goes_on, at_position))
        return
    result = {"feed": store.url, "lake": str(target), "went_on": goes_on} | _restored(
        store, route, target, tables, force_clean=force_clean, verify=verify
    )
    if as_json:
        print_json(result)
    else:
        _tell_restored(result)
    differs = result["differing"] or result["stand_still"]
    end(ExitCode.DIVERGED if differs else ExitCode.IN_SYNC)


def _restored(
    store: FeedStore,
    route: FeedRoute,
    lake: str | Path,
    tables: str | Path | None,
    *,
    force_clean: bool,
    verify: bool,
) -> dict[str, Any]:
    """Restore with a Spark of its own; return what came of it."""
    from sparktxlog.worker.feed.feed_commits import restore_commits
    from sparktxlog.worker.feed.feed_restoring import restore_rows

    require_spark()
    begun = time.monotonic()
    with local_spark("restore", [lake] if isinstance(lake, str) else []) as spark:
        from sparktxlog.worker.verify.verify import recount_tables

        with progress_bar("writing the image") as tell:
            done = restore_rows(
                spark, store, route, lake, force_clean=force_clean, tell=tell, replayed=_replayed
            )
        restored_s = round(time.monotonic() - begun, 3)
        wrong = recount_tables(spark, lake) if verify and done.state.position else {}
    made = [] if tables is None else restore_commits(store, route, tables)
    state = done.state
    return {
        "log_id": state.log_id,
        "position": state.position,
        "chain_hash": state.chain_hash,
        "image": None if route.image is None else route.image.name,
        "transactions": done.transactions,
        "batches": done.batches,
        "seconds": restored_s,
        "tables": {
            name: {"version": one.version, "signature": one.signature.to_text()}
            for name, one in sorted(state.tables.items())
        },
        "signatures": ("differ" if wrong else "equal") if verify else "not counted",
        "proven_at": done.proven_at or None,
        "differing": wrong,
        "stand_still": state.diverged,
        "commit_tables": {one.place: {"uuid": one.uuid, "version": one.version} for one in made},
        "adopt": _adoptions(state, lake, made, tables or ""),
    }


def _replayed(position: int, last: int) -> None:
    _logger.info("position %s of %s is applied", f"{position:,}", f"{last:,}")


def _plan(
    store: FeedStore,
    route: FeedRoute,
    lake: str | Path,
    goes_on: bool,
    tables: list[CommitTableAt],
) -> tuple[dict[str, Any], list[str]]:
    """Return what a restore would do, as a document and in sentences."""
    image = None if route.image is None else route.image.name
    if goes_on:
        start = f"what an earlier restore made in {lake}"
    elif image is not None:
        start = f"image {image}, position {route.begins_after:,}"
    else:
        start = "the beginning of the log"
    ordered_at = time_text(route.target.ordered_at)
    lines = [
        f"From {start}, {lake} would be brought to position {route.target.position:,}.",
        f"Its last transaction was ordered at {ordered_at} UTC.",
    ]
    lines += [
        f"Commit table {one.place} would be there at version {one.version}." for one in tables
    ]
    document = {
        "feed": store.url,
        "lake": str(lake),
        "image": image,
        "position": route.target.position,
        "ordered_at": route.target.ordered_at,
        "went_on": goes_on,
        "commit_tables": {one.place: one.version for one in tables},
    }
    return document, lines


def _adoptions(
    state: ReplicaState, lake: str | Path, made: list[CommitTableAt], tables: str | Path
) -> list[str]:
    """Return the commands by which a new cluster takes the tables."""
    found = []
    for name, table in sorted(state.tables.items()):
        keys = f" --keys {','.join(table.definition.keys)}" if table.definition.keys else ""
        found.append(f"sparktxlog table adopt {name} {lake}/{name} --as row-table{keys}")
    for one in made:
        copied = " --files copy" if isinstance(tables, str) else ""  # a bucket has no links
        found.append(
            f"sparktxlog table adopt {one.place} {tables}/{one.place} --as commit-table{copied}"
        )
    return found


def _tell_restored(done: Mapping[str, Any]) -> None:
    typer.echo(
        f"{done['lake']} stands at position {done['position']:,} of {done['log_id']}: "
        f"{done['transactions']:,} transactions replayed in {done['seconds']:,} s; signatures: "
        f"{done['signatures']}."
    )
    if done["proven_at"] is not None:
        typer.echo(f"At position {done['proven_at']:,} they were those that the site reported.")
    print_wrong(done["differing"])
    for table, reason in done["stand_still"].items():
        typer.echo(f"table {table} stands still: {reason}")
    for table, one in done["commit_tables"].items():
        typer.echo(f"commit table {table}: version {one['version']}")
    typer.echo("A new cluster takes the tables by:")
    for command in done["adopt"]:
        typer.echo(f"  {command}")


def rehearse_feed(
    place: str, *, with_spark: bool
) -> tuple[dict[str, Any], Callable[[], tuple[float, dict[str, tuple[str, str]]]]]:
    """Return where a feed ends, and what restores that aside and counts its rows.

    Args:
        with_spark: Whether tables are restored, if there is Spark; else digests are compared.
    """
    from sparktxlog.errors import CorruptLogError
    from sparktxlog.worker.feed.feed_checks import check_feed, lag_of
    from sparktxlog.worker.feed.feed_points import route_to, target_of
    from sparktxlog.worker.feed.feed_restoring import restore_rows
    from sparktxlog.worker.feed.feed_store import FeedStore

    store = FeedStore(place)
    target = target_of(store, None)
    route, lag = route_to(store, target), lag_of(store, time.time_ns() // 1000)
    restores = with_spark and find_spec("pyspark") is not None

    def run() -> tuple[float, dict[str, tuple[str, str]]]:
        begun = time.monotonic()
        if not restores:
            if damaged := check_feed(store).damaged:
                raise CorruptLogError(f"the feed in {store.url} is damaged: {damaged[0]}")
            return time.monotonic() - begun, {}
        with tempfile.TemporaryDirectory(prefix="sparktxlog-restored-") as room:
            lake = Path(room) / "lake"
            with local_spark("restore") as spark:
                from sparktxlog.worker.verify.verify import recount_tables

                restore_rows(spark, store, route, lake)
                wrong = recount_tables(spark, lake)
        return time.monotonic() - begun, wrong

    said = {
        "log_id": store.identity().log_id,
        "position": target.position,
        "lag_s": 0.0 if lag is None else lag.lag_s,
        "what": "restored into a scratch directory, and counted"
        if restores
        else "read, and all digests compared",
    }
    return said, run
