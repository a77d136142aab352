"""What a switch of sites did, or would do: lines for a terminal, Markdown, HTML and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from sparktxlog.cli.printing import STYLE, write_report
from sparktxlog.model.shown import html_table, time_text

_HEAD = ("step", "what", "state", "seconds")
#: States of a step.
OPEN, DONE, BEFORE = "to do", "done", "done before"


@dataclass(slots=True, kw_only=True)
class SwitchStep:
    """A step of a switch."""

    name: str
    what: str
    #: `to do`, `done`, or `done before`: by a run of the command that ended.
    state: str = OPEN
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class SwitchReport:
    """A switch of sites."""

    #: The site that goes out, and the one that comes in.
    old: str
    new: str
    #: Wall clock, microseconds since 1970 UTC.
    began_at: int
    dry_run: bool = False
    steps: list[SwitchStep] = field(default_factory=list)
    #: Why it is refused; what is no reason to refuse it, but should be known.
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    #: Of the cluster at the end.
    epoch: int = 0
    members: list[str] = field(default_factory=list)
    position: int = 0
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the new site is in and the old one is out."""
        return bool(self.steps) and all(one.state != OPEN for one in self.steps)

    def verdict(self) -> str:
        """Return the result in one sentence."""
        if self.problems:
            return f"Refused, nothing was changed: {'; '.join(self.problems)}."
        if self.finished:
            members = ", ".join(self.members)
            end = f"members of epoch {self.epoch:,}: {members}"
            return f"{self.new} is in and {self.old} is out; {end}."
        return f"{self.new} would come in, and {self.old} would go out; nothing was changed."

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**asdict(self), "finished": self.finished, "verdict": self.verdict()}

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return a line for each step."""
        return [
            (one.name, one.what, one.state, f"{one.seconds:.2f}" if one.state == DONE else "")
            for one in self.steps
        ]

    def _title(self) -> str:
        return f"Switch of site {self.old} to {self.new}, {time_text(self.began_at)} UTC"

    def _notes(self) -> list[str]:
        return [f"Warning: {one}." for one in self.warnings]

    def markdown(self) -> str:
        """Return the report as a page of Markdown."""
        lines = [
            f"# {self._title()}",
            "",
            f"**{self.verdict()}** The queue ends at {self.position:,}; {self.seconds:,.1f} s.",
            "",
            f"| {' | '.join(_HEAD)} |",
            "|---|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in self.rows()),
            "",
            *(f"- {one}" for one in self._notes()),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def html(self) -> str:
        """Return the report as a page that needs no other file."""
        notes = "".join(f"<li>{escape(one)}" for one in self._notes())
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Switch</title><style>{STYLE}"
            f"</style><h1>{escape(self._title())}</h1><p><b>{escape(self.verdict())}</b>"
            f"{html_table(_HEAD, self.rows())}<ul>{notes}</ul></html>\n"
        )

    def write(self, directory: Path) -> Path:
        """Write `switch-TIME.md` and `.html`; return the first."""
        return write_report(directory, "switch", self.began_at, self.markdown(), self.html())
