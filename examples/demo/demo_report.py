"""The result of the demo: one table for people, one line of JSON for programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rich.console import Console
from rich.table import Table

from sparktxlog.cli.printing import cell_text


@dataclass(slots=True, kw_only=True)
class DemoResult:
    """The result of the demo; most fields are those of the JSON line."""

    sites: tuple[str, ...]
    cut_site: str
    scale: float
    directory: str
    #: A node that votes only.
    witness: str | None
    #: The site whose node was killed.
    killed: str | None = None
    #: The site whose worker was killed in the middle of a batch.
    killed_worker: str | None = None
    transactions: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    commit_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    apply_seconds: dict[str, float] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    #: Site → table → signature recounted by full scan.
    signatures: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Site → table → rows that differ from the source.
    differences: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Table → rows that it must have according to the source.
    expected_rows: dict[str, int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)
    #: Site → `node`, `worker` → kind → `requests` and `bytes` of its bucket, since that process
    #: started; Spark's own are not counted.  Empty: there are no buckets.
    bucket_requests: dict[str, dict[str, dict[str, dict[str, int]]]] = field(default_factory=dict)
    #: Transactions that reached their level while the site was cut off.
    during_cut: dict[str, int] = field(default_factory=dict)
    #: Asked node → which nodes it waited for then.
    awaited: dict[str, list[str]] = field(default_factory=dict)
    #: Site → epoch of its node at the end.
    epochs: dict[str, int] = field(default_factory=dict)
    #: Seconds from the kill to the next transaction that the others ordered.
    evicted_s: float | None = None
    #: Seconds from the restart until the killed node was a member again.
    rejoined_s: float | None = None
    #: Follower → `position`, `upstream`, `queue_equal`, `signatures`, `unsound` at its end.
    followers: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Of the feed and the new cluster that has its tables; empty = there is no feed.
    feed: dict[str, Any] = field(default_factory=dict)
    #: Follower and feed that were killed meanwhile.
    killed_off_site: list[str] = field(default_factory=list)
    keys_written_by_several_sites: int = 0
    files_shared_between_sites: int = 0
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
    def off_site_differs(self) -> list[str]:
        """Followers, and the feed, that do not have what the sites have."""
        wanted = self.signatures.get(self.sites[0])
        found = [
            name
            for name, one in self.followers.items()
            if not one["queue_equal"] or one["unsound"] or one["signatures"] != wanted
        ]
        return found + ["the feed"] * bool(self.feed and self.feed["signatures"] != wanted)

    @property
    def passed(self) -> bool:
        """Whether the demo succeeded."""
        wrong = self.source_differences or self.files_shared_between_sites or self.off_site_differs
        return self.equal and set(self.differences) == set(self.sites) and not wrong

    def to_json(self) -> dict[str, Any]:
        """Return the object of the JSON line."""
        own = ("sites", "expected_rows", "differences")
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in own}
        for name in ("commit_seconds", "apply_seconds"):
            found[name] = {site: round(value, 1) for site, value in found[name].items()}
        for name in ("seconds", "evicted_s", "rejoined_s"):
            found[name] = None if found[name] is None else round(found[name], 1)
        return found | {
            "transactions": self.transactions.total(),
            "rows": self.rows.total(),
            "equal": self.equal,
            "source_differences": self.source_differences,
            "off_site_differs": self.off_site_differs,
            "passed": self.passed,
        }

    def show(self, console: Console) -> None:
        """Print the table and the verdict."""
        count = {2: "two", 3: "three"}.get(len(self.sites), str(len(self.sites)))
        table = Table(title=f"{count} sites, one order", title_justify="left", title_style="bold")
        table.add_column("")
        for site in self.sites:
            table.add_column(f"site {site}", justify="right")
        table.add_column("source", justify="right")
        for name, cells, source in _result_rows(self):
            table.add_row(name, *(cell_text(cells.get(site)) for site in self.sites), source)
        console.print(table)
        others = [f"follower {name}" for name in self.followers] + ["the new cluster"] * bool(
            self.feed
        )
        too = f" {' and '.join(others)} have them, too." if others else ""
        verdict = (
            f"[green]All signatures are equal, and no row differs from the source.{too}[/green]"
            if self.passed
            else "[red]The sites or the source differ: see the table.[/red]"
        )
        if self.off_site_differs:
            verdict = f"[red]Not as the sites: {', '.join(self.off_site_differs)}.[/red]"
        console.print(f"{verdict}  {self.seconds:,.0f} s")


def _result_rows(found: DemoResult) -> list[tuple[str, Mapping[str, Any], str]]:
    megabytes = {site: size / 1e6 for site, size in found.received_bytes.items()}
    rows: list[tuple[str, Mapping[str, Any], str]] = [
        ("transactions committed", found.transactions, cell_text(found.transactions.total())),
        (f"  while {found.cut_site} was cut off", found.during_cut, ""),
        ("rows committed", found.rows, cell_text(found.rows.total())),
        ("last position of the queue", found.positions, ""),
        ("applied position", found.applied, ""),
        ("MB received from other sites", megabytes, ""),
        ("seconds to commit", found.commit_seconds, ""),
        ("seconds to apply", found.apply_seconds, ""),
    ]
    for who in ("node", "worker") if found.bucket_requests else ():
        asked = {site: of_site[who].values() for site, of_site in found.bucket_requests.items()}
        requests = {site: sum(kind["requests"] for kind in kinds) for site, kinds in asked.items()}
        rows.append((f"requests of the {who} to the bucket", requests, ""))
    if found.killed:
        rows.insert(2, ("epoch at the end", found.epochs, ""))
    for name, expected in sorted(found.expected_rows.items()):
        # A signature is `rows:lane:lane`.
        parts = {site: tables[name].split(":") for site, tables in found.signatures.items()}
        lanes = {site: "…".join(lane[:6] for lane in p[1:]) for site, p in parts.items()}
        different = {site: tables.get(name) for site, tables in found.differences.items()}
        rows += [
            (f"{name}: rows", {site: int(p[0]) for site, p in parts.items()}, cell_text(expected)),
            (f"{name}: signature", lanes, ""),
            (f"{name}: rows unlike the source", different, ""),
        ]
    return rows
