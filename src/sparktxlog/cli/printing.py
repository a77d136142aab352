"""Output of commands: tables for people that fit their terminal, plain lines for pipes, JSON.

On a terminal a table folds at spaces only, so that an id, a URL or a path is never cut; a table
whose words do not fit side by side is printed as records.  Elsewhere a table is its title, a line
of headings and a line per row, with tabs between the cells.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

import structlog
from rich import box
from rich.console import Console
from rich.table import Table

from sparktxlog.model.shown import time_text

#: Heading of a column → key of its cells, or a function from a row to the cell.
Columns: TypeAlias = dict[str, str | Callable[[Any], Any]]
#: Characters between two columns, one of them the box's, and least width of a terminal.
_GAP, _NARROW = 2, 40
#: Of reports as pages.
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "th,td{border-bottom:1px solid #ccc;padding:.3rem 1rem .3rem 0;vertical-align:top}"
    "th{text-align:left}"
)
#: Whether what is printed is collected for a terminal.
_collecting: ContextVar[bool] = ContextVar("collecting", default=False)


def records_to_stderr() -> None:
    """Let what modules log go to stderr: stdout is for answers, `--json` above all.

    A node sets its log up by its own settings after this.
    """
    # Looked up for each record: whoever redirects stderr gets what is logged from then on.
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


def is_terminal() -> bool:
    """Return whether a person sees the output."""
    return _collecting.get() or sys.stdout.isatty()


def width() -> int:
    """Return the columns of the terminal."""
    return max(_NARROW, shutil.get_terminal_size((80, 24)).columns)


@contextmanager
def collected() -> Iterator[io.StringIO]:
    """Collect what is printed for the terminal, colours included."""
    text = io.StringIO()
    token = _collecting.set(True)
    try:
        with redirect_stdout(text):
            yield text
    finally:
        _collecting.reset(token)


def print_json(value: Any) -> None:
    """Print one line of JSON to stdout."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), default=str) + "\n")
    sys.stdout.flush()


def write_report(directory: Path, name: str, began_at: int, markdown: str, html: str) -> Path:
    """Write a report as `NAME-TIME.md` and `.html`; return the first.

    Args:
        began_at: Wall clock, microseconds since 1970 UTC.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{time_text(began_at).replace(':', '').replace(' ', '-')}"
    (directory / f"{stem}.html").write_text(html)
    page = directory / f"{stem}.md"
    page.write_text(markdown)
    return page


def say(text: str) -> None:
    """Print a sentence: for people in lines that fit, folded at spaces only."""
    sys.stdout.write(f"{wrapped(text) if is_terminal() else text}\n")


def wrapped(text: str, indent: int = 0, first: str = "") -> str:
    """Return a text in lines that fit the terminal; words that are longer stand alone.

    Args:
        text: Any text.
        indent: Spaces before all lines but the first.
        first: What the first line begins with, `indent` wide.
    """
    lines = textwrap.wrap(
        text,
        width() - indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return first + f"\n{' ' * indent}".join(lines or [""])


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
    """Print a table, or as records what is too wide for the terminal."""
    if not is_terminal():
        lines = [columns, *([_plain_text(cell) for cell in row] for row in rows)]
        sys.stdout.write("".join("\t".join(line) + "\n" for line in ([title], *lines)))
        return
    listed = [[cell_text(cell) for cell in row] for row in rows]
    if not listed:
        sys.stdout.write(f"{title}: none\n")
        return
    console = Console(highlight=False, force_terminal=True, width=width())
    widths = fitting_widths([columns, *listed], console.width)
    if widths is None:
        _print_records(console, title, columns, listed)
        return
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),
    )
    for index, column in enumerate(columns):
        digits = all(
            row[index].replace(",", "").replace(".", "").isdigit() or row[index] == "-"
            for row in listed
        )
        justify: Any = "right" if digits else "left"
        table.add_column(column, justify=justify, width=widths[index], overflow="fold")
    for row in listed:
        table.add_row(*row)
    console.print(table)


def fitting_widths(lines: Sequence[Sequence[str]], wide: int) -> list[int] | None:
    """Return a width for each column so that lines fit and no word is cut; None = they cannot.

    Columns with long texts shrink first: the space that the longest words leave is shared.
    """
    least = [
        max(len(word) for cell in one for word in (cell.split() or [""]))
        for one in zip(*lines, strict=True)
    ]
    wanted = [max(len(cell) for cell in one) for one in zip(*lines, strict=True)]
    left = wide - sum(least) - _GAP * len(least)
    if left < 0:
        return None
    widths = least
    while left and (short := [i for i, has in enumerate(widths) if has < wanted[i]]):
        for index in short[: max(1, left)]:
            more = min(max(1, left // len(short)), wanted[index] - widths[index], left)
            widths[index] += more
            left -= more
    return widths


def _print_records(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print each row as lines of heading and value."""
    console.print(title, style="bold", markup=False, soft_wrap=True)
    indent = max(map(len, columns)) + _GAP
    for number, row in enumerate(rows):
        if number:
            sys.stdout.write("\n")
        for column, cell in zip(columns, row, strict=True):
            sys.stdout.write(wrapped(cell, indent, f"{column:{indent}}") + "\n")


def _plain_text(value: Any) -> str:
    """Return the text of a cell for programs: numbers as they are, nothing that ends a cell."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return " ".join(cell_text(value).split())


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


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on stderr if that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bars:
        task = bars.add_task(what, total=None)

        def tell(done: int, total: int) -> None:
            bars.update(task, total=total, completed=done)

        yield tell
