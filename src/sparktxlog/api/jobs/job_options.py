"""Jobs and their options: the command line makes commands of them, and `jobs/*.py` run them.

Spark is not imported here, so that `sparktxlog --help` does not need it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from importlib.util import find_spec
from typing import Any

from sparktxlog.errors import (
    CertificateError,
    CertificateTimeError,
    CommitStateUnknownError,
    ConfigError,
    DivergedError,
    InvalidNameError,
    InvalidRequestError,
    MissingDependencyError,
    NotAppliedError,
    TransportError,
    TxLogError,
)
from sparktxlog.model.transactions.operation import ROW_KINDS, OperationKind

#: Seconds that a worker waits for ordered transactions to be published.
TIMEOUT_S = 60.0


class ExitCode(IntEnum):
    """Result of a job or a command."""

    IN_SYNC = 0
    ERROR = 1
    USAGE = 2
    LAGGING = 3
    DIVERGED = 4
    UNREACHABLE = 5
    BAD_CONFIG = 6


_CODES: tuple[tuple[type[TxLogError], ExitCode], ...] = (
    (CertificateTimeError, ExitCode.ERROR),  # units start the node again, until there is a new one
    (ConfigError, ExitCode.BAD_CONFIG),
    (CertificateError, ExitCode.BAD_CONFIG),
    (InvalidNameError, ExitCode.USAGE),
    (InvalidRequestError, ExitCode.USAGE),
    (DivergedError, ExitCode.DIVERGED),
    (NotAppliedError, ExitCode.LAGGING),
    (CommitStateUnknownError, ExitCode.LAGGING),
    (TransportError, ExitCode.UNREACHABLE),
)


def exit_code_of(error: TxLogError) -> ExitCode:
    """Return the exit code of an error: that of the first matching class."""
    return next((code for cls, code in _CODES if isinstance(error, cls)), ExitCode.ERROR)


#: Operations of `commit`.
ROW_OPERATIONS = tuple(kind.value for kind in OperationKind if kind in ROW_KINDS)
#: Input formats of `commit`.
FORMATS = ("parquet", "csv", "json", "delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOption:
    """One option of a job; a positional argument if the flag is a bare name."""

    flag: str
    help: str
    #: bool = a switch.
    kind: type = bool
    default: Any = None
    metavar: str | None = None
    #: The allowed values; empty = any of its kind.
    choices: tuple[str, ...] = ()
    #: Whether it may be given several times.
    repeated: bool = False
    required: bool = False
    #: Least allowed value.
    least: int | None = None
    #: Of its value in the arguments, if the flag's is a word of Python.
    name: str = ""

    @property
    def attribute(self) -> str:
        """Name of the option's value in the arguments."""
        return self.name or self.flag.removeprefix("--").replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """A job, and the command with its name."""

    #: For `--help`; the first sentence is the summary.
    does: str
    #: Arguments of a good example.
    example: str
    #: `module:function` of this package that does the work; its imports need Spark.
    work: str
    #: In addition to `--url` and `--json`.
    options: tuple[JobOption, ...]
    #: Group of commands that its command is in, empty = none.
    group: str = ""
    #: Says which of the given options exclude each other, empty if none do.
    conflict: Callable[[argparse.Namespace], str] = lambda _: ""
    #: Says whether it needs Spark with these arguments; else it asks for it once it knows.
    needs_spark: Callable[[argparse.Namespace], bool] = lambda _: True


def require_spark(way_out: str = "") -> None:
    """Refuse to begin work that needs Spark if PySpark is not installed.

    Args:
        way_out: A sentence on what else the user may do.

    Raises:
        MissingDependencyError: There is no PySpark (definite).
    """
    if find_spec("pyspark") is None:
        raise MissingDependencyError(
            "this command needs PySpark",
            hint=f"Run: pip install 'sparktxlog[spark]'.  {way_out}".strip(),
        )


def _replica_conflict(arguments: argparse.Namespace) -> str:
    if arguments.lake is None or arguments.replica is None:
        return ""
    return "--lake and --replica exclude each other: a replica has its lake"


def _verify_conflict(arguments: argparse.Namespace) -> str:
    named = "--replica" if arguments.replica is not None else "--table" if arguments.table else ""
    if named and arguments.compare and not arguments.recount:
        return f"{named} is of a recount: with --compare it needs --recount"
    if said := _replica_conflict(arguments):
        return said
    if arguments.compare or not (arguments.recount or arguments.since or arguments.peer_url):
        return ""
    return "--recount, --since and --peer-url need --compare"


def _apply_conflict(arguments: argparse.Namespace) -> str:
    if arguments.follow and arguments.once:
        return "--once and --follow exclude each other"
    if arguments.at_most is None and arguments.at is None:
        return ""
    flag = "--at" if arguments.at_most is None else "--at-most"
    if arguments.follow:
        return f"{flag} and --follow exclude each other: --follow never ends"
    if arguments.at is not None:
        both = arguments.at_most is not None or arguments.at_least
        return "--at excludes --at-most and --at-least" if both else ""
    if arguments.at_most < max(1, arguments.at_least):
        return "--at-most must be 1 or more, and not less than --at-least"
    return ""


def _adopt_conflict(arguments: argparse.Namespace) -> str:
    if arguments.kind == "row-table":
        said = "--files is of commit tables: a row table's are linked"
        return said if arguments.files != "link" else ""
    return "--keys is of row tables: commit tables have none" if arguments.keys else ""


LAKE = JobOption(
    flag="--lake",
    kind=str,
    metavar="PATH|URL",
    help="Root of the replica's tables, a directory or a prefix in a bucket such as "
    "s3://bucket/prefix; default: the node's.",
)
_REPLICA = JobOption(
    flag="--replica",
    kind=str,
    metavar="NAME",
    help="Name of the replica, if the site has several, instead of --lake; default: main.",
)
_TAKE_LAKE = JobOption(
    flag="--take-lake",
    help="The lake was another site's, and was moved or copied to this one on purpose.",
)
_NAME = JobOption(
    flag="--name",
    kind=str,
    metavar="NAME",
    help="Name of the replica, if the site has several; it needs its own --lake.  Default: the "
    "lake's, else main.",
)
_TABLES = JobOption(
    flag="--tables",
    kind=str,
    repeated=True,
    metavar="PATTERN",
    help="Row tables that the replica holds, such as 'bronze.*'; may be repeated, and is "
    "remembered.  Default: the lake's, else all.",
)
_WORK_DIR = JobOption(
    flag="--work-dir",
    kind=str,
    metavar="PATH",
    help="Directory of this machine for the locks of a worker whose lake is in a bucket; default: "
    "SPARKTXLOG_WORK_DIR, else the node's lake-dir; of a replica with a name a directory there.",
)
MASTER = JobOption(
    flag="--master",
    kind=str,
    metavar="URL",
    help="Spark master; default: spark-submit's, else local[*].",
)
STORES = JobOption(
    flag="--stores",
    kind=str,
    metavar="NAMES",
    help="Object stores to read and write, comma separated: s3, azure, gcs; those of "
    "SPARKTXLOG_STORES are added.",
)
_TIMEOUT = JobOption(
    flag="--timeout",
    kind=float,
    default=TIMEOUT_S,
    metavar="SECONDS",
    help="Longest wait for ordered transactions to be published.",
)
_IN_WINDOW = JobOption(
    flag="--in-window", help="End with exit code 3 while no maintenance window of the node is open."
)
_NO_VERIFY = JobOption(flag="--no-verify", help="Copy without recounting rows.")
_HISTORY = JobOption(flag="--history", help="Copy old versions of tables too.")

_COMMIT = (
    JobOption(flag="--table", kind=str, required=True, help="Table to commit to."),
    JobOption(flag="--input", kind=str, metavar="PATH", required=True,
              help="Path or URI of the input, as Spark reads it."),
    JobOption(flag="--format", kind=str, choices=FORMATS, default=FORMATS[0],
              help="Format of the input."),
    JobOption(flag="--option", kind=str, repeated=True, metavar="NAME=VALUE",
              help="Option for Spark's reader; may be repeated."),
    JobOption(flag="--op", kind=str, choices=ROW_OPERATIONS,
              default=OperationKind.APPEND.value,
              help="Operation on the table."),
    JobOption(flag="--create", help="Create the table if it is missing."),
    JobOption(flag="--keys", kind=str, default="", metavar="COLUMNS",
              help="Key columns of a created table, comma separated."),
    JobOption(flag="--partition-by", kind=str, default="", metavar="COLUMNS",
              help="Partition columns of a created table, comma separated."),
    JobOption(flag="--transaction-column", kind=str, metavar="COLUMN",
              help="Column of the input; each of its values makes one transaction."),
    JobOption(flag="--transaction-ids-column", kind=str, metavar="COLUMN",
              help="Column with the UUIDs of those transactions."),
    JobOption(flag="--transaction-id", kind=str, metavar="UUID",
              help="UUID that makes repeated commits one transaction."),
    JobOption(flag="--first-wins",
              help="What the log has under that id counts, also with other rows."),
    JobOption(flag="--level", kind=str, default="ordered",
              help="Level to reach: accepted, acquired, ordered, applied or, at k sites, "
              "applied(k)."),
    JobOption(flag="--timeout", kind=float, default=TIMEOUT_S, metavar="SECONDS",
              help="Longest wait for that level."),
    MASTER,
    STORES,
)  # fmt: skip
_APPLY = (
    LAKE,
    _NAME,
    _TABLES,
    _WORK_DIR,
    _TAKE_LAKE,
    MASTER,
    STORES,
    JobOption(flag="--once", help="Apply what is ordered by now, then end; the default."),
    JobOption(flag="--follow", help="Go on until SIGTERM or Ctrl-C."),
    JobOption(flag="--no-copy", help="End if the node's plan is a copy."),
    JobOption(flag="--at-least", kind=int, default=0, metavar="POSITION",
              help="Apply at least this position; exit code 3 if it is not reached in time."),
    JobOption(flag="--at-most", kind=int, metavar="POSITION",
              help="Stop exactly at this position, which must be the end of a run; replay only."),
    JobOption(flag="--at", kind=str, metavar="NAME",
              help="Stop exactly at this restore point; replay only."),
    _TIMEOUT,
)  # fmt: skip
_CATCH_UP = (
    LAKE,
    _NAME,
    _TABLES,
    _WORK_DIR,
    _TAKE_LAKE,
    MASTER,
    STORES,
    JobOption(flag="--force", kind=str, choices=("copy", "replay"),
              help="Copy or replay, instead of the node's plan."),
    JobOption(flag="--donor", kind=str, default="", metavar="SITE[/NAME]",
              help="With --force copy: copy from this replica, which is right."),
    _NO_VERIFY,
    _HISTORY,
    _TIMEOUT,
)  # fmt: skip
_REPLICATE = (
    LAKE,
    _REPLICA,
    MASTER,
    STORES,
    _IN_WINDOW,
    JobOption(flag="--parts", kind=int, default=0, metavar="N",
              help="Spark tasks that fetch; 0: as many as Spark has cores."),
    _NO_VERIFY,
    _HISTORY,
    _TIMEOUT,
)  # fmt: skip
_REPAIR = (
    JobOption(flag="table", kind=str, required=True, help="Table to check and repair."),
    LAKE,
    _REPLICA,
    MASTER,
    STORES,
    JobOption(flag="--local",
              help="Repair from this site's files, even if another site could give a copy."),
    JobOption(flag="--dry-run", help="Say what is wrong and what would be done; change nothing."),
    JobOption(flag="--right", kind=str, metavar="SITE",
              help="Of a commit table: the site that is right where sites contradict each other."),
    _TIMEOUT,
)  # fmt: skip

_MAINTAIN = (
    LAKE,
    _REPLICA,
    MASTER,
    STORES,
    _IN_WINDOW,
    JobOption(flag="--tables", kind=str, repeated=True, metavar="NAME",
              help="Only this table, of either kind; may be repeated."),
    JobOption(flag="--no-optimize", help="Compact no tables."),
    JobOption(flag="--no-vacuum", help="Do not vacuum tables."),
    JobOption(flag="--dry-run", help="Say what would be done; change nothing."),
    JobOption(flag="--min-files", kind=int, default=20, least=2, metavar="N",
              help="Compact tables with at least this many small files."),
    JobOption(flag="--wait", kind=float, default=30.0, least=0, metavar="SECONDS",
              help="Seconds to wait for a running worker."),
    JobOption(flag="--images", kind=str, metavar="DIR",
              help="Directory or URL of images: remove this site's that are older than the log."),
    JobOption(flag="--keep-images", kind=int, default=3, least=1, metavar="N",
              help="How many of the newest images to keep."),
    JobOption(flag="--empty-attic-older-than", kind=int, least=1, metavar="DAYS",
              help="Remove what was put into the attics of the site more days ago."),
)  # fmt: skip
_VERIFY = (
    LAKE,
    _REPLICA,
    MASTER,
    STORES,
    _IN_WINDOW,
    JobOption(flag="--table", kind=str, repeated=True, metavar="NAME",
              help="Table to recount, may be repeated; default: all, of both kinds."),
    JobOption(flag="--compare", help="Find where sites began to differ; needs no Spark."),
    JobOption(flag="--recount",
              help="With --compare: recount this site's rows too, as jobs/verify.py always does."),
    JobOption(flag="--since", kind=int, default=0, least=0, metavar="POSITION",
              help="With --compare: position up to which all are equal."),
    JobOption(flag="--peer-url", kind=str, repeated=True, metavar="NAME=URL",
              help="With --compare: URL of a site's node."),
)  # fmt: skip

_ADOPT = (
    JobOption(flag="name", kind=str, required=True,
              help="Table of the log: orders, or bronze.orders."),
    JobOption(flag="path", kind=str, required=True, metavar="PATH",
              help="Directory of the Delta table, or its URL in a bucket; for a commit table the "
              "site's."),
    JobOption(flag="--as", name="kind", kind=str, choices=("row-table", "commit-table"),
              required=True, help="What it becomes."),
    MASTER,
    STORES,
    JobOption(flag="--keys", kind=str, default="", metavar="COLUMNS",
              help="Key columns of a row table, comma separated."),
    JobOption(flag="--files", kind=str, choices=("link", "copy", "move"), default="link",
              help="Of a commit table. link: a second name on the same file system; copy: in a "
              "bucket, within it; move: the old table goes."),
    JobOption(flag="--dry-run", help="Only check, and say what would be done."),
    JobOption(flag="--timeout", kind=float, default=3600.0, least=1, metavar="SECONDS",
              help="Seconds until the sites have the files."),
)  # fmt: skip
_FOLLOW = (
    JobOption(flag="name", kind=str, required=True,
              help="Table of the log; if it is missing, the Delta table is adopted first."),
    JobOption(flag="path", kind=str, required=True, metavar="PATH",
              help="Directory of the Delta table that this site's jobs write, or its URL in a "
              "bucket."),
    MASTER,
    STORES,
    JobOption(flag="--keys", kind=str, default="", metavar="COLUMNS",
              help="Key columns of a table that is adopted, comma separated."),
    JobOption(flag="--once", help="Bring the versions that there are, then end."),
    JobOption(flag="--dry-run", help="Say which versions would be brought; change nothing."),
    JobOption(flag="--overwrite",
              help="Begin by replacing the rows of the log's table by the newest version."),
    JobOption(flag="--state", kind=str, metavar="FILE",
              help="Where to note how far it came; default: PATH/_sparktxlog/NAME.json."),
)  # fmt: skip

JOBS: dict[str, JobCommand] = {
    "commit": JobCommand(
        does="Commit a Parquet, CSV, JSON or Delta input to a table of the log.",
        example="--table orders --input orders.csv --format csv --op upsert",
        work="ingest:commit",
        options=_COMMIT,
    ),
    "adopt": JobCommand(
        does="Put an existing Delta table under the log, as a new table; the old one stays as it "
        "is.\n\n"
        "A row table begins with the rows of its newest version.  Of a commit table, that version "
        "becomes version 0.  Run it at the site, where the table and the node's directories are.",
        example="orders /data/orders --as row-table --keys id",
        work="adopting_jobs:adopt",
        options=_ADOPT,
        group="table",
        conflict=_adopt_conflict,
    ),
    "follow": JobCommand(
        does="Bring each new version of a Delta table that this site's jobs write into the log.\n\n"
        "It goes on until SIGTERM or Ctrl-C, or with --once until the newest version.  Only one "
        "site writes the table: a write through the log stops it, and is named.",
        example="orders /data/orders --keys id",
        work="adopting_jobs:follow",
        options=_FOLLOW,
        group="table",
    ),
    "apply": JobCommand(
        does="Apply the published log to the site's replica: once, for ever, or up to a position.",
        example="--url http://127.0.0.1:7070 --follow",
        work="replica_jobs:apply",
        options=_APPLY,
        conflict=_apply_conflict,
    ),
    "catch-up": JobCommand(
        does="Bring the site's replica to the end of the published log, by replay or copy, as the "
        "node plans.",
        example="--force copy --json",
        work="replica_jobs:catch_up",
        options=_CATCH_UP,
    ),
    "replicate": JobCommand(
        does="Copy a donor's replica with Spark's executors, then replay the rest.\n\n"
        "All executors must see the lake under the driver's path.",
        example="--parts 8",
        work="replica_jobs:replicate",
        conflict=_replica_conflict,
        options=_REPLICATE,
    ),
    "repair": JobCommand(
        does="Undo another writer's changes to a table: bring it back to what the log says.\n\n"
        "Rows that others added are kept in the attic. A copy is offered where another site can "
        "give one. No other worker may run; --dry-run may run next to one.\n\n"
        "Of a commit table, fetch damaged and foreign files again from other sites; "
        "that needs no Spark.",
        example="orders --dry-run",
        work="replica_jobs:repair",
        conflict=_replica_conflict,
        options=_REPAIR,
    ),
    "maintain": JobCommand(
        does="Shorten the log to its limits now; compact and vacuum the site's tables.\n\n"
        "These are the tables of the replica and the commit tables: a compaction of one is a "
        "commit, which all sites get.  With both --no-optimize and --no-vacuum Spark is not "
        "started.  Images and attics stay unless an option names them.",
        example="--dry-run --json",
        work="upkeep:maintain",
        options=_MAINTAIN,
        conflict=_replica_conflict,
        needs_spark=lambda a: not (a.no_optimize and a.no_vacuum),
    ),
    "verify": JobCommand(
        does="Recount the replica's signatures by full scan, with Spark, and compare the sites.\n\n"
        "Of commit tables the node recounts the files, without Spark.\n\n"
        "With --compare, say from which position and in which table sites differ, by what they "
        "reported.",
        example="--url http://127.0.0.1:7070",
        work="upkeep:verify",
        options=_VERIFY,
        conflict=_verify_conflict,
        needs_spark=lambda _: False,  # only of row tables, and it changes nothing before
    ),
}
