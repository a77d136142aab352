"""A page of a feed: a piece of the log, with all that names it needs.

A page begins where the one before it ended, at the end of a run, and holds whole runs only: what a
killed feed had sent of the next one is named by nobody.  It says from which chain hash to which one
it leads, and has the headers from which these follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sparktxlog.codec.run_chain import KeptRun, RunEnd, run_ends
from sparktxlog.errors import CorruptLogError
from sparktxlog.model.tables.table_versions import NamedTable, OrderedVersion
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.interfaces import Segment
from sparktxlog.worker.backup.image import sealed, unsealed

#: The format of a page; a later one is refused.
FORMAT_VERSION = 1
#: Where the part of a feed begins that has the log from its first transaction on.
LOG_BEGINNING = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSignatures:
    """What a site's worker reported of its row tables at the end of a batch."""

    node_id: str
    position: int
    chain_hash: str
    #: Table → signature, as text.
    tables: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class FeedPage:
    """What was published after one position and up to another one."""

    log_id: str
    first: int
    last: int
    #: Chain hashes before `first` and at `last`, hexadecimal.
    from_hash: str
    to_hash: str
    #: Of the last run.
    epoch: int
    #: Where a part of the feed begins: the image before it, or `LOG_BEGINNING`; empty = the page
    #: follows another one.
    begins_at: str = ""
    #: The node that was asked, and when the page was made, microseconds since 1970 UTC.
    node_id: str = ""
    made_at: int = 0
    runs: tuple[KeptRun, ...] = ()
    #: As the node cut them: the first one may begin before the page.
    segments: tuple[Segment, ...] = ()
    #: Of commit tables.
    versions: tuple[OrderedVersion, ...] = ()
    tables: tuple[NamedTable, ...] = ()
    #: Reported since the page before, of positions up to its end.
    signatures: tuple[ReportedSignatures, ...] = ()
    format_version: int = FORMAT_VERSION

    @cached_property
    def ends(self) -> tuple[RunEnd, ...]:
        """Where its runs end, ascending."""
        return tuple(run_ends(self.first - 1, self.from_hash, self.runs))

    @property
    def end(self) -> RunEnd:
        """Where it ends."""
        ordered_at = self.runs[-1].ordered_at
        return RunEnd(
            position=self.last, chain_hash=self.to_hash, epoch=self.epoch, ordered_at=ordered_at
        )

    @property
    def files(self) -> Iterator[tuple[StagedFile, int]]:
        """All files that it names, each with a position; some may be there twice."""
        for segment in self.segments:
            for effect in segment.effects:
                yield from ((file, effect.first) for file in effect.files)
        for version in self.versions:
            yield from ((file, version.position) for file in version.files)

    def end_at(self, position: int) -> RunEnd | None:
        """Return the run end at a position, None = no run of the page ends there."""
        if position == self.last:
            return self.end
        return next((end for end in self.ends if end.position == position), None)

    def problem(self) -> str:
        """Return why it cannot be what was published, empty = nothing."""
        if not self.runs or not self.segments:
            return "it is empty"
        hashes = {end.position: end.chain_hash for end in self.ends}
        if hashes.get(self.last) != self.to_hash:
            return f"its runs do not lead to position {self.last:,} and its chain hash"
        after = self.first - 1
        for segment in self.segments:
            if not segment.first <= after + 1 <= segment.last:
                return f"its segments have a hole or an overlap after position {after:,}"
            if hashes.get(segment.last) != segment.to_hash:
                return f"its segment up to {segment.last:,} is not of its runs"
            after = segment.last
        if after != self.last:
            return f"its segments end at position {after:,}"
        return ""


def page_bytes(page: FeedPage) -> bytes:
    """Return a page as it is kept."""
    return sealed(page)


def page_of(content: bytes, place: str, first: int) -> FeedPage:
    """Return the page that bytes say.

    Args:
        place: Where they are, for errors.
        first: Where it begins, by its name.

    Raises:
        CorruptLogError: They are damaged, of another place, or of a newer release.
    """
    try:
        page = unsealed(content, FeedPage)
        problem = page.problem()
    except ValueError as error:
        raise damaged_page(place, first, str(error)) from error
    if page.format_version != FORMAT_VERSION:
        problem = f"format {page.format_version} is not known here"
    elif page.first != first:
        problem = f"it begins at position {page.first:,}"
    if problem:
        raise damaged_page(place, first, problem)
    return page


def damaged_page(place: str, first: int, reason: str) -> CorruptLogError:
    """Return the error that a page cannot be used."""
    return CorruptLogError(
        f"the feed's page {place}, from position {first:,} on, is damaged: {reason}",
        hint=f"What is before it can be restored: --at {first - 1}.",
        path=place,
        position=first,
    )
