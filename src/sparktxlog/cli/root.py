"""What the commands share: common options, calls to a node, output and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from sparktxlog.api.jobs.job_options import ExitCode as ExitCode
from sparktxlog.api.jobs.job_options import require_spark
from sparktxlog.errors import (
    CertificateError,
    ConfigError,
    DivergedError,
    InvalidNameError,
    InvalidRequestError,
    NotAppliedError,
    TransportError,
    TxLogError,
)
from sparktxlog.http.link import Http
from sparktxlog.http.tokens import admin_token, client_token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    name="sparktxlog",
    help="One order over many Delta tables from several writing sites.",
    epilog="Exit codes: 0 in sync, 1 error, 2 usage, 3 lagging, 4 diverged, 5 unreachable, "
    "6 bad configuration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
DEFAULT_URL = "http://127.0.0.1:7070"
Url = Annotated[str, typer.Option("--url", envvar="SPARKTXLOG_URL", help="URL of the node to ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML or .properties file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated."),
]
#: Heading of a column → key of its cells, or a function from a row to the cell.
Columns: TypeAlias = dict[str, str | Callable[[Any], Any]]
_CODES: tuple[tuple[type[TxLogError], ExitCode], ...] = (
    (ConfigError, ExitCode.BAD_CONFIG),
    (CertificateError, ExitCode.BAD_CONFIG),
    (InvalidNameError, ExitCode.USAGE),
    (InvalidRequestError, ExitCode.USAGE),
    (DivergedError, ExitCode.DIVERGED),
    (NotAppliedError, ExitCode.LAGGING),
    (TransportError, ExitCode.UNREACHABLE),
)


class NodeApi(Http):
    """Reads and changes one node's `/v1` resources.

    Args:
        url: The node's URL, scheme, host and port.
        token: Bearer token of all requests; default: `client_token` to read, and `admin_token` to
            change something; without either, the token that a node of this user on this machine
            noted.
        timeout_s: Seconds to wait for one answer.
        ca_file: As of `Http`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 10.0,
        ca_file: Path | None = None,
    ) -> None:
        super().__init__(url, token=token or client_token(), timeout_s=timeout_s, ca_file=ca_file)
        self._admin_token = token or admin_token() or self.token

    def send(self, method: str, path: str, value: Any) -> Any:
        """Send a value as JSON; return the decoded answer, None for an empty one; as `get`."""
        body = json.dumps(value).encode()
        answer = self.request(method, path, body=body, token=self._admin_token)
        return self._decoded(answer or b"null")

    def _failed(
        self, method: str, path: str, error: Exception, timeout_s: float, *, sent: bool
    ) -> TransportError:
        return TransportError(
            f"no node answers at {self.url}: {error}",
            hint="Start it with `sparktxlog serve`, or name another node with --url.",
            url=self.url,
        )


@contextmanager
def local_spark(command: str) -> Iterator[SparkSession]:
    """Give a command its own Spark session on this machine; raises as `require_spark`."""
    require_spark()
    from sparktxlog.api.jobs.progress_lines import start_logging
    from sparktxlog.api.session import build_session

    start_logging()
    spark = build_session("local[*]", app_name=f"sparktxlog-{command}")
    try:
        yield spark
    finally:
        spark.stop()


# -- output ---------------------------------------------------------------------------------------


def exit_code_of(error: TxLogError) -> ExitCode:
    """Return the exit code of an error: that of the first matching class."""
    return next((code for cls, code in _CODES if isinstance(error, cls)), ExitCode.ERROR)


def print_json(value: Any) -> None:
    """Print one line of JSON to stdout."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


def print_error(error: TxLogError, *, as_json: bool) -> None:
    """Print `[code] message  hint` to stderr, with --json the problem document to stdout."""
    if as_json:
        print_json(error.to_problem())
    sys.stderr.write(f"{error}\n")


def console() -> Console:
    """Return a console on stdout that does not cut lines of a pipe at 80 columns."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=False)


def end(code: ExitCode) -> None:
    """End a command with its exit code."""
    if code is not ExitCode.IN_SYNC:
        raise typer.Exit(int(code))


def show(
    found: Any, as_json: bool, title: str, columns: Columns, rows: Iterable[Any] | None = None
) -> None:
    """Print what a node answered: as JSON, or as a table.

    Args:
        found: The answer.
        as_json: Whether a program reads it.
        title: Of the table.
        columns: Of the table.
        rows: Rows of the table, one mapping each; default: the answer.
    """
    if as_json:
        print_json(found)
    else:
        print_table(title, columns, found if rows is None else rows)


def print_table(title: str, columns: Columns, rows: Iterable[Any]) -> None:
    """Print a table of mappings."""
    cells = [
        [row.get(cell) if isinstance(cell, str) else cell(row) for cell in columns.values()]
        for row in rows
    ]
    print_rows(title, tuple(columns), cells)


def print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: numbers to the right, empty cells as a dash."""
    listed = [[cell_text(cell) for cell in row] for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for index, column in enumerate(columns):
        digits = bool(listed) and all(
            row[index].replace(",", "").replace(".", "").isdigit() or row[index] == "-"
            for row in listed
        )
        table.add_column(column, justify="right" if digits else "left", overflow="fold")
    for row in listed:
        table.add_row(*row)
    console().print(table)


def cell_text(value: Any) -> str:
    """Return the text of a cell: thousands with commas, an empty cell as a dash."""
    if value is None or value == "" or value == {} or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={cell_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(item) for item in value)
    return str(value)


def time_text(micros: Any) -> str:
    """Return the UTC time of microseconds since 1970, a dash for none."""
    if not isinstance(micros, (int, float)) or micros <= 0:
        return "-"
    return datetime.fromtimestamp(micros / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
