"""What a drill found: lines for a terminal, Markdown, HTML and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from sparktxlog.cli.printing import STYLE, write_report
from sparktxlog.model.shown import html_table, time_text

_HEAD = ("rehearsal", "lost commits (RPO)", "longest pause (RTO)", "problems")


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """The loss of one site, or a restore."""

    #: `loss of SITE`, or `restore`.
    name: str
    what: str
    #: Recovery time objective: seconds of a restore until its rows were counted; else empty.
    pause_s: dict[str, float] = field(default_factory=dict)
    #: Recovery point objective: transactions that would be lost, of those that the site has shown.
    lost: int = 0
    shown: int = 0
    #: What would not go as it should; empty = all would.
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DrillReport:
    """What a running cluster would survive now."""

    #: Wall clock, microseconds since 1970 UTC.
    began_at: int
    sites: list[str]
    suspect_timeout_s: float
    rehearsals: list[Rehearsal] = field(default_factory=list)
    #: End of the queue, as the asked nodes know it.
    position: int = 0
    #: Whether the others go on by themselves (`eviction = auto`), or wait for an operator.
    evicts: bool = True
    #: Sets of sites of which one must be whole for that (`eviction-guard`), empty = none need be.
    guard: list[list[str]] = field(default_factory=list)
    seconds: float = 0.0

    def goes_on(self, site: str) -> bool:
        """Return whether the others go on by themselves without a site."""
        return self.evicts and (not self.guard or any(site not in one for one in self.guard))

    @property
    def passed(self) -> bool:
        """Whether nothing would be lost, and nothing would fail."""
        return not any(one.lost or one.problems for one in self.rehearsals)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**asdict(self), "passed": self.passed, "verdict": self.verdict()}

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a line for each rehearsal: name, lost, pause, problems."""
        return [
            (
                one.name,
                f"{one.lost:,} of {one.shown:,}",
                ", ".join(f"{site} {seconds:.1f} s" for site, seconds in one.pause_s.items()),
                "; ".join(one.problems) or "none",
            )
            for one in self.rehearsals
        ]

    def verdict(self) -> str:
        """Return the result in one sentence."""
        if self.passed:
            return "Passed: the loss of any one site now would lose nothing that it has shown."
        lost = sum(one.lost for one in self.rehearsals)
        problems = [f"{one.name}: {text}" for one in self.rehearsals for text in one.problems]
        said = [f"{lost:,} transactions are at one site only"] if lost else []
        return "FAILED: " + "; ".join(said + problems)

    def _scene(self) -> str:
        sites = ", ".join(self.sites)
        return f"The running cluster {sites} at position {self.position:,}; {self.seconds:.0f} s"

    def markdown(self) -> str:
        """Return the report as a page of Markdown."""
        lines = [
            f"# Drill of {time_text(self.began_at)} UTC",
            "",
            f"{self._scene()}.",
            "",
            f"**{self.verdict()}**",
            "",
            f"| {' | '.join(_HEAD)} |",
            "|---|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in self.rows()),
            "",
            *(f"- **{one.name}**: {one.what}" for one in self.rehearsals),
        ]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """Return the report as a page that needs no other file."""
        what = "".join(f"<li><b>{one.name}</b>: {escape(one.what)}" for one in self.rehearsals)
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Drill</title><style>{STYLE}"
            f"</style><h1>Drill of {time_text(self.began_at)} UTC</h1>"
            f"<p><b>{escape(self.verdict())}</b><p>{escape(self._scene())}."
            f"{html_table(_HEAD, self.rows())}<ul>{what}</ul></html>\n"
        )

    def write(self, directory: Path) -> Path:
        """Write `drill-TIME.md` and `.html`; return the first."""
        return write_report(directory, "drill", self.began_at, self.markdown(), self.html())
