"""The result of the demo of the catalog: the table's history at each site, version by version."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from rich.console import Console
from rich.table import Table

from sparktxlog.cli.printing import cell_text
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.delta.log_files import STAGED_COMMITS, has_commit
from sparktxlog.files.stores.store import Store
from sparktxlog.model.tables.commit_table import commit_file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryVersion:
    """A version of a commit table at one site."""

    operation: str
    #: Of its commit file, and of all files that this adds.
    digest: str


@dataclass(slots=True, kw_only=True)
class CatalogResult:
    """What the demo found; `to_json` is its JSON line."""

    sites: tuple[str, ...]
    connector: str
    scale: float
    directory: str
    seconds: float = 0.0
    #: Site → the table's versions there, from 0.
    histories: dict[str, list[HistoryVersion]] = field(default_factory=dict)
    #: Version → the site whose Spark committed it.
    committed_at: dict[int, str] = field(default_factory=dict)
    #: Site → commits that Spark staged there; each that is no version lost, and was made again.
    staged: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    expected_rows: int = 0
    #: Site → rows that differ from the source.
    differences: dict[str, int] = field(default_factory=dict)
    #: Site → kind → `requests` and `bytes` of its node at its bucket; Spark's own are not counted.
    bucket_requests: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    #: Seconds that the table stood still while a site was cut off, and after that until all sites
    #: had what waited.
    waited_s: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether all sites have the same bytes under the same versions."""
        histories = list(self.histories.values())
        return len(histories) == len(self.sites) and all(
            found == histories[0] and found for found in histories
        )

    @property
    def made_again(self) -> int:
        """Commits that lost against another one, which Delta made again."""
        return sum(self.staged.values()) - len(self.committed_at)

    @property
    def passed(self) -> bool:
        """Whether the demo succeeded."""
        compared = set(self.differences) == set(self.sites)
        return self.equal and compared and not any(self.differences.values())

    def to_json(self) -> dict[str, Any]:
        """Return the object of the JSON line."""
        return {
            "connector": self.connector,
            "directory": self.directory,
            "scale": self.scale,
            "versions": {site: len(found) for site, found in self.histories.items()},
            "operations": [one.operation for one in self.histories[self.sites[0]]],
            "committed_at": self.committed_at,
            "staged": self.staged,
            "made_again": self.made_again,
            "rows": self.rows,
            "bucket_requests": self.bucket_requests,
            "expected_rows": self.expected_rows,
            "source_differences": sum(self.differences.values()),
            "waited_s": round(self.waited_s, 1),
            "seconds": round(self.seconds, 1),
            "equal": self.equal,
            "passed": self.passed,
        }

    def show(self, console: Console) -> None:
        """Print the history, version by version, the totals, and the verdict."""
        table = Table(title="one table, one history", title_justify="left", title_style="bold")
        for name in ("version", "operation", "committed at"):
            table.add_column(name)
        for site in (*self.sites, "source"):
            table.add_column(site if site == "source" else f"site {site}", justify="right")
        first = self.histories[self.sites[0]]
        for number, version in enumerate(first):
            found = [history[number : number + 1] for history in self.histories.values()]
            digests = [one[0].digest[:8] if one else "missing" for one in found]
            by = self.committed_at.get(number, self.sites[0])
            table.add_row(str(number), version.operation, f"site {by}", *digests, "")
        table.add_section()
        asked = {
            site: sum(kind["requests"] for kind in kinds.values())
            for site, kinds in self.bucket_requests.items()
        }
        for name, cells, source in (
            ("rows", self.rows, cell_text(self.expected_rows)),
            ("rows unlike the source", self.differences, ""),
            *([("requests of the node to the bucket", asked, "")] if asked else []),
        ):
            texts = [cell_text(cells.get(site)) for site in self.sites]
            table.add_row("", name, "", *texts, source)
        console.print(table)
        verdict = (
            "[green]All sites have the same history, byte by byte, and no row differs from the "
            "source.[/green]"
            if self.passed
            else "[red]The sites or the source differ: see the table.[/red]"
        )
        console.print(f"{verdict}  {self.seconds:,.0f} s")


def history_of(table: Store) -> list[HistoryVersion]:
    """Return the versions of a table that are published at its place."""
    versions: list[HistoryVersion] = []
    while has_commit(table, len(versions)):
        raw = table.read(commit_file_name(len(versions)))
        digest = blake2b(raw, digest_size=16)
        for file in read_commit_file(raw).files:
            digest.update(file.path.encode() + table.read(file.path))
        info = json.loads(raw.partition(b"\n")[0])["commitInfo"]
        versions.append(HistoryVersion(operation=info["operation"], digest=digest.hexdigest()))
    return versions


def staged_commits(table: Store) -> dict[int, list[bytes]]:
    """Return version → the commits that Spark staged for it at a table's place."""
    found: dict[int, list[bytes]] = {}
    for name in table.names(STAGED_COMMITS):
        if name.endswith(".json"):
            commit = table.read(f"{STAGED_COMMITS}/{name}")
            found.setdefault(int(name.partition(".")[0]), []).append(commit)
    return found
