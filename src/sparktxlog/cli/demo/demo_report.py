"""What the demo prints: headings, progress, one table, one line of JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from sparktxlog.cli.output import cell_text


@dataclass(slots=True)
class DemoResult:
    """Everything the demo found out; becomes the JSON line."""

    sites: tuple[str, ...]
    cut_site: str
    scale: float
    directory: str
    transactions: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    #: Site → table → signature recounted by full scan.
    signatures: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Site → table → rows that differ from the source.
    differences: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Table → rows the source says there must be.
    expected_rows: dict[str, int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)
    commit_seconds: dict[str, float] = field(default_factory=dict)
    apply_seconds: dict[str, float] = field(default_factory=dict)
    #: Transactions that reached their level while the site was cut off.
    during_cut: dict[str, int] = field(default_factory=dict)
    #: Asked node → who it awaited then.
    awaited: dict[str, list[str]] = field(default_factory=dict)
    #: The site whose node was killed, empty = none.
    killed: str = ""
    #: A node that votes only, empty = none.
    witness: str = ""
    #: Site → epoch of its node at the end.
    epochs: dict[str, int] = field(default_factory=dict)
    #: Seconds from the kill to the next transaction that the others ordered.
    evicted_s: float | None = None
    #: Seconds from the restart until the killed node had its part again.
    rejoined_s: float | None = None
    shared_keys: int = 0
    shared_files: int = 0
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether all sites hold one queue and equal tables."""
        tables = list(self.signatures.values())
        return (
            len(set(self.positions.values())) == 1
            and set(self.applied.values()) == set(self.positions.values())
            and len(tables) == len(self.sites)
            and all(found == tables[0] and found for found in tables)
        )

    @property
    def source_differences(self) -> int:
        """Rows of all tables of all sites that differ from the source."""
        return sum(sum(found.values()) for found in self.differences.values())

    @property
    def passed(self) -> bool:
        """Whether the demo shows what it promises."""
        compared = set(self.differences) == set(self.sites)
        return self.equal and compared and not self.source_differences and not self.shared_files

    def to_json(self) -> dict[str, Any]:
        """Return the object of the JSON line."""
        return {
            "transactions": sum(self.transactions.values()),
            "rows": sum(self.rows.values()),
            "positions": self.positions,
            "signatures": self.signatures,
            "equal": self.equal,
            "source_differences": self.source_differences,
            "cut_site": self.cut_site,
            "seconds": round(self.seconds, 1),
            "scale": self.scale,
            "passed": self.passed,
            "applied": self.applied,
            "during_cut": self.during_cut,
            "awaited": self.awaited,
            "killed": self.killed or None,
            "witness": self.witness or None,
            "epochs": self.epochs,
            "evicted_s": None if self.evicted_s is None else round(self.evicted_s, 1),
            "rejoined_s": None if self.rejoined_s is None else round(self.rejoined_s, 1),
            "keys_written_by_several_sites": self.shared_keys,
            "files_shared_between_sites": self.shared_files,
            "received_bytes": self.received_bytes,
            "commit_seconds": {k: round(v, 1) for k, v in self.commit_seconds.items()},
            "apply_seconds": {k: round(v, 1) for k, v in self.apply_seconds.items()},
            "directory": self.directory,
        }


class DemoReporter:
    """Prints to stdout, with --json to stderr so that stdout holds the JSON line alone."""

    def __init__(self, *, as_json: bool) -> None:
        file = sys.stderr if as_json else sys.stdout
        self.console = Console(
            file=file, highlight=False, width=None if file.isatty() else 110, soft_wrap=True
        )

    def heading(self, text: str) -> None:
        """Print what happens next."""
        self.console.print(f"[bold]•[/bold] {text}")

    def line(self, text: str) -> None:
        """Print a detail."""
        self.console.print(f"  {text}")

    @contextmanager
    def bars(self, totals: Mapping[str, int], unit: str) -> Iterator[Bars]:
        """Show one progress bar for each site."""
        progress = Progress(
            TextColumn("  site {task.fields[site]}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        with progress:
            tasks = {s: progress.add_task("", total=n, site=s) for s, n in totals.items()}
            yield Bars(progress, tasks)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that something of unknown length is under way."""
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        with progress:
            progress.add_task(text, total=None)
            yield

    def result(self, found: DemoResult) -> None:
        """Print the one table, and the verdict."""
        count = {2: "two", 3: "three"}.get(len(found.sites), str(len(found.sites)))
        table = Table(title=f"{count} sites, one order", title_justify="left", title_style="bold")
        table.add_column("")
        for site in found.sites:
            table.add_column(f"site {site}", justify="right")
        table.add_column("source", justify="right")
        for name, cells, source in _result_rows(found):
            table.add_row(name, *(cell_text(cells.get(site)) for site in found.sites), source)
        self.console.print(table)
        verdict = (
            "[green]All signatures are equal, and no row differs from the source.[/green]"
            if found.passed
            else "[red]The sites or the source differ: see the table.[/red]"
        )
        self.console.print(f"{verdict}  {found.seconds:,.0f} s")


class Bars:
    """Progress bars, one for each site; may be advanced from any thread."""

    def __init__(self, progress: Progress, tasks: Mapping[str, Any]) -> None:
        self._progress = progress
        self._tasks = tasks

    def advance(self, site: str, count: int) -> None:
        """Move a site's bar."""
        self._progress.advance(self._tasks[site], count)


def _result_rows(found: DemoResult) -> list[tuple[str, Mapping[str, Any], str]]:
    rows: list[tuple[str, Mapping[str, Any], str]] = [
        ("transactions committed", found.transactions, cell_text(sum(found.transactions.values()))),
        (f"  while {found.cut_site} was cut off", found.during_cut, ""),
        ("rows committed", found.rows, cell_text(sum(found.rows.values()))),
        ("last position of the queue", found.positions, ""),
        ("applied position", found.applied, ""),
        ("MB received from other sites", _megabytes(found.received_bytes), ""),
        ("seconds to commit", found.commit_seconds, ""),
        ("seconds to apply", found.apply_seconds, ""),
    ]
    if found.killed:
        rows.insert(2, ("epoch at the end", found.epochs, ""))
    for name in sorted(found.expected_rows):
        texts = {site: found.signatures.get(site, {}).get(name, "") for site in found.sites}
        rows.append(
            (f"{name}: rows", {s: _rows_of(t) for s, t in texts.items()},
             cell_text(found.expected_rows[name]))
        )  # fmt: skip
        rows.append((f"{name}: signature", {s: _short(t) for s, t in texts.items()}, ""))
        different = {site: found.differences.get(site, {}).get(name) for site in found.sites}
        rows.append((f"{name}: rows unlike the source", different, ""))
    return rows


def _rows_of(signature: str) -> int | None:
    return int(signature.split(":")[0]) if signature else None


def _short(signature: str) -> str:
    lanes = signature.split(":")[1:]
    return "…".join(lane[:6] for lane in lanes)


def _megabytes(found: Mapping[str, int]) -> dict[str, float]:
    return {site: size / 1e6 for site, size in found.items()}
