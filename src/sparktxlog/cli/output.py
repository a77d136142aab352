"""What the command line prints, and the exit codes it ends with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from sparktxlog.api.job_options import ExitCode as ExitCode
from sparktxlog.errors import (
    ConfigError,
    DivergedError,
    InvalidNameError,
    InvalidRequestError,
    NotAppliedError,
    TransportError,
    TxLogError,
)

#: Heading of a column → key of its cells, or what makes a cell of a row.
Columns: TypeAlias = dict[str, str | Callable[[Any], Any]]


_CODES: tuple[tuple[type[TxLogError], ExitCode], ...] = (
    (ConfigError, ExitCode.BAD_CONFIG),
    (InvalidNameError, ExitCode.USAGE),
    (InvalidRequestError, ExitCode.USAGE),
    (DivergedError, ExitCode.DIVERGED),
    (NotAppliedError, ExitCode.LAGGING),
    (TransportError, ExitCode.UNREACHABLE),
)


def exit_code_of(error: TxLogError) -> ExitCode:
    """Return the exit code of an error; the first matching class counts."""
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
        rows: Of the table, one mapping each; default: the answer.
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
    """Print a table; numbers stand to the right, empty cells as a dash."""
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
    """Return the text of a cell: thousands with commas, nothing as a dash."""
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
