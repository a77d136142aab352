"""Verifies commit tables of a site, and repairs them: the node recounts their files, page by page.

No Spark and no access to the files: digests say whether two sites have the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sparktxlog.model.tables.table_checks import (
    CommitTableCheckRequest,
    CommitTableFinding,
)
from sparktxlog.worker.replica.source import HttpLogSource

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTableResult:
    """Result of a recount of a commit table at a site."""

    table: str
    uuid: str
    #: Versions up to this one were recounted, -1 = none is placed at the site.
    version: int = -1
    files: int = 0
    size_bytes: int = 0
    #: Sites whose records were compared, and why others were not.
    compared_sites: tuple[str, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    findings: tuple[CommitTableFinding, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, or all that was is repaired."""
        return all(finding.repaired for finding in self.findings)

    def way_out(self, *, by_repair: bool = False) -> str:
        """Return what a person can do, one sentence; empty = nothing is to be done.

        Args:
            by_repair: A repair found it: what it leaves it cannot mend as it was called.
        """
        if undecided := next((one for one in self.findings if one.is_undecided), None):
            sites = " or ".join(sorted(undecided.sites))
            return (
                f"`sparktxlog repair {self.table} --right SITE` takes the files of one site: "
                f"look which one has the right rows, {sites}"
            )
        if self.sound or by_repair:
            return ""
        return f"`sparktxlog repair {self.table}` brings it back from another site"

    def lines(self) -> list[str]:
        """Return lines for people: one for the table, and one for each of its faults."""
        sites = ", ".join(self.compared_sites) or "no other site"
        counted = f"{self.files:,} files, {self.size_bytes:,} bytes; compared: {sites}"
        said = [f"site {site} was not compared: {why}" for site, why in self.absent]
        said += [f"{'repaired: ' if one.repaired else ''}{one.text}" for one in self.findings]
        return verdict_lines(self.table, self.version, counted, said, sound=self.sound)


def verdict_lines(
    table: str, version: int, counted: str, said: Iterable[str], *, sound: bool
) -> list[str]:
    """Return what a recount of a table of either kind found, as lines for people.

    Args:
        counted: What was counted.
        said: What is wrong, or could not be compared.
    """
    verdict = "sound" if sound else "DIFFERS"
    return [f"{verdict:8}{table} version {version}: {counted}", *(f"        {one}" for one in said)]


def verify_commit_tables(
    source: HttpLogSource, tables: Sequence[str] = (), *, repair: bool = False, right: str = ""
) -> tuple[CommitTableResult, ...]:
    """Have a node recount its commit tables and compare them with those of other sites.

    Args:
        tables: Only these; empty = all.
        repair: Have it mend what it finds: files come from other sites.
        right: With `repair`: the site that is right where sites contradict each other.

    Raises:
        UnknownTableError: There is no such table (definite).
        TransportError: The node cannot be reached.
    """
    names = tables or [line["name"] for line in source.document("/v1/commit-tables")]
    return tuple(_verified(source, name, repair=repair, right=right) for name in names)


def _verified(source: HttpLogSource, table: str, *, repair: bool, right: str) -> CommitTableResult:
    found: CommitTableResult | None = None
    request = CommitTableCheckRequest(table=table, repair=repair, right=right)
    while True:
        page = source.check_commit_table(request)
        found = found or CommitTableResult(table=page.table, uuid=page.uuid)
        found = replace(
            found,
            version=page.checked,
            files=found.files + page.files,
            size_bytes=found.size_bytes + page.size_bytes,
            compared_sites=page.compared or found.compared_sites,
            absent=tuple(sorted(page.absent.items())) or found.absent,
            findings=(*found.findings, *page.findings),
        )
        if page.checked >= page.placed:
            return found
        _logger.info(
            "version %d of commit table %s is recounted",
            page.checked,
            table,
            extra={"done": page.checked + 1, "total": page.placed + 1},
        )
        request = replace(request, after=page.checked)
