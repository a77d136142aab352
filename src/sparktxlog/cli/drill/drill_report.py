"""What a drill found: lines for a terminal, Markdown, HTML, JSON, and a row of `log/drills`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from sparktxlog.model.shown import html_table, time_text
from sparktxlog.storage.log_tables.log_schemas import DRILLS

_HEAD = ("rehearsal", "lost commits (RPO)", "longest pause (RTO)", "equal again after", "problems")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "th,td{border-bottom:1px solid #ccc;padding:.3rem 1rem .3rem 0;vertical-align:top}"
    "th{text-align:left}"
)


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """One thing that went wrong on purpose."""

    #: site-lost, link-cut, restore.
    name: str
    what: str
    #: Recovery time objective, seconds: the longest time without a commit of a writer, by site;
    #: of a restore until its rows were counted.
    pause_s: dict[str, float]
    #: Seconds from the repair until all sites were equal again; None = does not apply.
    return_s: float | None = None
    #: Recovery point objective: of the commits that writers were told in the whole drill, those
    #: that were lost; known at its end.
    lost: int = 0
    told: int = 0
    #: What did not go as it should; empty = all did.
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DrillReport:
    """A drill."""

    #: Wall clock, microseconds since 1970 UTC.
    began_at: int
    sites: list[str]
    suspect_timeout_s: float
    rehearsals: list[Rehearsal] = field(default_factory=list)
    #: Table signatures by site, None = Spark was left out.
    signatures: dict[str, str] | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, nothing failed, and all sites are equal."""
        equal = self.signatures is None or len(set(self.signatures.values())) == 1
        return equal and not any(one.lost or one.problems for one in self.rehearsals)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**asdict(self), "passed": self.passed}

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return a line for each rehearsal: name, lost, pause, return, problems."""
        return [
            (
                one.name,
                f"{one.lost:,} of {one.told:,}",
                ", ".join(f"{site} {seconds:.1f} s" for site, seconds in one.pause_s.items()),
                "-" if one.return_s is None else f"{one.return_s:.1f} s",
                "; ".join(one.problems) or "none",
            )
            for one in self.rehearsals
        ]

    def verdict(self) -> str:
        """Return the result in one sentence."""
        told = max((one.told for one in self.rehearsals), default=0)
        proof = "" if self.signatures is None else ", and the sites' signatures are equal"
        if self.passed:
            return f"Passed: no commit of {told:,} that a writer was told was lost{proof}."
        differ = self.signatures is not None and len(set(self.signatures.values())) > 1
        return "FAILED: " + "; ".join(
            [
                *(f"{one.name}: {one.lost:,} commits lost" for one in self.rehearsals if one.lost),
                *(f"{one.name}: {text}" for one in self.rehearsals for text in one.problems),
                *(["the sites' signatures differ"] if differ else []),
            ]
        )

    def _scene(self) -> str:
        patience, sites = f"suspect-timeout {self.suspect_timeout_s:g} s", ", ".join(self.sites)
        return f"Scratch copy with the sites {sites}; {patience}; {self.seconds:.0f} s in all"

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
            "|---|---|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in self.rows()),
            "",
            *(f"- **{one.name}**: {one.what}" for one in self.rehearsals),
            *(f"- signature at {s}: `{text}`" for s, text in (self.signatures or {}).items()),
        ]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """Return the report as a page that needs no other file."""
        what = "".join(f"<li><b>{one.name}</b>: {escape(one.what)}" for one in self.rehearsals)
        return (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Drill</title><style>{_STYLE}"
            f"</style><h1>Drill of {time_text(self.began_at)} UTC</h1>"
            f"<p><b>{escape(self.verdict())}</b><p>{escape(self._scene())}."
            f"{html_table(_HEAD, self.rows())}<ul>{what}</ul></html>\n"
        )

    def write(self, directory: Path) -> Path:
        """Write `drill-TIME.md` and `.html`; return the first."""
        directory.mkdir(parents=True, exist_ok=True)
        stem = f"drill-{time_text(self.began_at).replace(':', '').replace(' ', '-')}"
        (directory / f"{stem}.html").write_text(self.html())
        page = directory / f"{stem}.md"
        page.write_text(self.markdown())
        return page

    def record(self, log: Path) -> None:
        """Append a row to the Delta table `drills` below a node's `log/`."""
        lost = sum(one.lost for one in self.rehearsals)
        pause = max(
            (max(one.pause_s.values()) for one in self.rehearsals if one.pause_s), default=0.0
        )
        row = {
            "began_at": self.began_at,
            "seconds": self.seconds,
            "sites": self.sites,
            "rehearsals": [one.name for one in self.rehearsals],
            "lost": lost,
            "longest_pause_s": pause,
            "passed": self.passed,
            "verdict": self.verdict(),
        }
        write_deltalake(str(log / "drills"), pa.Table.from_pylist([row], DRILLS), mode="append")
