"""Options of the replica's jobs, written down once: `jobs/*.py` and the command line take them.

Nothing of Spark is imported here, so that `sparktxlog --help` needs none.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sparktxlog.model.operation import OperationKind

#: Seconds that a worker waits for what is ordered and not published yet.
TIMEOUT_S = 60.0


class Forced(str, Enum):
    """How a replica catches up whatever its node plans."""

    COPY = "copy"
    REPLAY = "replay"


class InputFormat(str, Enum):
    """What `commit` reads."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    DELTA = "delta"


class RowOperation(str, Enum):
    """What `commit` does with the rows of its input: the operations that carry rows."""

    APPEND = OperationKind.APPEND.value
    UPSERT = OperationKind.UPSERT.value
    DELETE_KEYS = OperationKind.DELETE_KEYS.value
    OVERWRITE = OperationKind.OVERWRITE.value


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOption:
    """One option of a job."""

    flag: str
    help: str
    #: bool = a switch.
    kind: type = bool
    default: Any = None
    metavar: str | None = None
    #: For one that may be given several times.
    repeated: bool = False
    required: bool = False

    @property
    def attribute(self) -> str:
        """Name of the option's value in the arguments."""
        return self.flag.removeprefix("--").replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a job's parser, or to a group of it."""
        if self.kind is bool:
            parser.add_argument(self.flag, action="store_true", help=self.help)
            return
        choices = [one.value for one in self.kind] if issubclass(self.kind, Enum) else None
        parser.add_argument(
            self.flag,
            type=str if choices else self.kind,
            default=[] if self.repeated else self.default,
            action="append" if self.repeated else "store",
            choices=choices,
            metavar=self.metavar,
            required=self.required,
            help=self.help,
        )


LAKE = JobOption(
    flag="--lake", kind=str, metavar="PATH",
    help="Root of the replica's tables; default: the node's.",
)  # fmt: skip
MASTER = JobOption(
    flag="--master", kind=str, metavar="URL",
    help="Spark master; default: spark-submit's, else local[*].",
)  # fmt: skip
ONCE = JobOption(flag="--once", help="Apply what is ordered by now, then end; the default.")
FOLLOW = JobOption(flag="--follow", help="Go on until SIGTERM or Ctrl-C.")
NO_COPY = JobOption(flag="--no-copy", help="End where the node says copy.")
AT_LEAST = JobOption(
    flag="--at-least", kind=int, default=0, metavar="POSITION",
    help="Wait for this position to be applied; exit code 3 if it is not in time.",
)  # fmt: skip
AT_MOST = JobOption(
    flag="--at-most", kind=int, metavar="POSITION",
    help="Stop exactly there, by replay only; a run must end at this position.",
)  # fmt: skip
TIMEOUT = JobOption(
    flag="--timeout", kind=float, default=TIMEOUT_S, metavar="SECONDS",
    help="Longest wait for what is not published yet.",
)  # fmt: skip
FORCE = JobOption(flag="--force", kind=Forced, help="Copy or replay, whatever the node plans.")
DONOR = JobOption(
    flag="--donor", kind=str, default="", metavar="SITE",
    help="With --force copy: copy from this site, which is right where replicas differ.",
)  # fmt: skip
NO_VERIFY = JobOption(flag="--no-verify", help="Copy without recounting rows.")
HISTORY = JobOption(flag="--history", help="Copy old versions of tables too.")
PARTS = JobOption(
    flag="--parts", kind=int, default=0, metavar="N",
    help="Tasks of Spark that fetch; 0: as many as Spark has cores.",
)  # fmt: skip
LOCAL = JobOption(
    flag="--local", help="From this site's own files, though another site could give a copy."
)
DRY_RUN = JobOption(flag="--dry-run", help="Only say what is wrong, and what would be done.")

TABLE = JobOption(flag="--table", kind=str, required=True, help="Table to commit to.")
INPUT = JobOption(
    flag="--input", kind=str, metavar="PATH", required=True,
    help="Path or URI of the input, as Spark reads it.",
)  # fmt: skip
FORMAT = JobOption(
    flag="--format", kind=InputFormat, default=InputFormat.PARQUET.value, help="Of the input."
)
OPTION = JobOption(
    flag="--option", kind=str, repeated=True, metavar="NAME=VALUE",
    help="Option of Spark's reader; may be repeated.",
)  # fmt: skip
OPERATION = JobOption(
    flag="--op", kind=RowOperation, default=RowOperation.APPEND.value,
    help="What is done with the rows.",
)  # fmt: skip
CREATE = JobOption(flag="--create", help="Create the table if it is missing.")
KEYS = JobOption(
    flag="--keys", kind=str, default="", metavar="COLUMNS",
    help="Key columns of a created table, comma separated.",
)  # fmt: skip
PARTITION_BY = JobOption(
    flag="--partition-by", kind=str, default="", metavar="COLUMNS",
    help="Partition columns of a created table, comma separated.",
)  # fmt: skip
TRANSACTION_COLUMN = JobOption(
    flag="--transaction-column", kind=str, metavar="COLUMN",
    help="One transaction for each of its values.",
)  # fmt: skip
TRANSACTION_IDS_COLUMN = JobOption(
    flag="--transaction-ids-column", kind=str, metavar="COLUMN",
    help="UUIDs of those transactions.",
)  # fmt: skip
TRANSACTION_ID = JobOption(
    flag="--transaction-id", kind=str, metavar="UUID", help="Makes a repeated commit one."
)
LEVEL = JobOption(
    flag="--level", kind=str, default="ordered",
    help="Level to reach: accepted, acquired, ordered, applied or applied(k).",
)  # fmt: skip
LEVEL_TIMEOUT = JobOption(
    flag="--timeout", kind=float, default=TIMEOUT_S, metavar="SECONDS",
    help="Longest wait for that level.",
)  # fmt: skip

#: Job → its options, besides `--url` and `--json`.
OPTIONS: dict[str, tuple[JobOption, ...]] = {
    "commit": (
        TABLE, INPUT, FORMAT, OPTION, OPERATION, CREATE, KEYS, PARTITION_BY, TRANSACTION_COLUMN,
        TRANSACTION_IDS_COLUMN, TRANSACTION_ID, LEVEL, LEVEL_TIMEOUT, MASTER,
    ),
    "apply": (LAKE, MASTER, ONCE, FOLLOW, NO_COPY, AT_LEAST, AT_MOST, TIMEOUT),
    "catch-up": (LAKE, MASTER, FORCE, DONOR, NO_VERIFY, HISTORY, TIMEOUT),
    "replicate": (LAKE, MASTER, PARTS, NO_VERIFY, HISTORY, TIMEOUT),
    "repair": (LAKE, MASTER, LOCAL, DRY_RUN, TIMEOUT),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser, options: Sequence[JobOption]) -> None:
    """Add options to a job's parser."""
    for option in options:
        option.add_to(parser)


def conflict(arguments: argparse.Namespace) -> str:
    """Return which options of `apply` exclude each other, empty if none do."""
    if arguments.follow and arguments.once:
        return "--once and --follow exclude each other"
    if arguments.at_most is None:
        return ""
    if arguments.follow:
        return "--at-most ends at a position, --follow never does"
    if arguments.at_most < max(1, arguments.at_least):
        return "--at-most must be 1 or more, and not below --at-least"
    return ""
