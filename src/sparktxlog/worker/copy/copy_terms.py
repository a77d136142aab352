"""What a copy is asked for and what came of it, and who brings the files: values, no work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sparktxlog.model.copying import CopyTicket, Grant, OfferedFile, OfferedTable
from sparktxlog.worker.copy.fetch.selection import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What fetching some files of a table took."""

    size_bytes: int = 0
    #: Over the network, after compression.
    wire_bytes: int = 0
    #: Found in the replica or in the workspace.
    reused_bytes: int = 0
    #: Seconds in which bytes came.
    fetch_s: float = 0.0

    def __add__(self, other: Fetched) -> Fetched:
        return Fetched(
            size_bytes=self.size_bytes + other.size_bytes,
            wire_bytes=self.wire_bytes + other.wire_bytes,
            reused_bytes=self.reused_bytes + other.reused_bytes,
            fetch_s=self.fetch_s + other.fetch_s,
        )


class Fetcher(Protocol):
    """Gets a donor's files into the workspace of one copy; repeats nothing that is there.

    select (all tables) → require_space (all of it at once) → fetch (table by table)
    """

    def staged(self, table: str) -> Path:
        """Return the directory that a table's files are fetched to."""

    def select(
        self, grants: Sequence[Grant], offered: OfferedTable, files: Sequence[OfferedFile]
    ) -> Wanted:
        """Stage what the replica has of a table's files by links; return what has to travel.

        Raises:
            TxLogError: The first donor does not say which are equal, or a link cannot be made.
        """

    def require_space(self, wanted: Sequence[Wanted]) -> None:
        """Check that everything that has to travel fits on the disk of the lake together.

        Raises:
            DiskFullError: It does not (definite); nothing was fetched.
        """

    def fetch(self, grants: Sequence[Grant], wanted: Wanted) -> Fetched:
        """Fetch what was selected, verified and durable.

        Raises:
            TxLogError: Not all could be had; what was had is kept.
        """

    def hold(self, ticket: CopyTicket) -> None:
        """Keep the leases of a ticket alive until `release`."""

    def release(self, grants: Sequence[Grant]) -> None:
        """Give held leases back; one that is gone already is no error."""

    def remove(self) -> None:
        """Remove the workspace."""


#: Opens the fetcher of a copy: lake, copy id.
FetcherOf = Callable[[Path, str], Fetcher]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How a copy is made."""

    #: Recount all rows before they replace anything.
    verify: bool = True
    #: Bring old versions too: the tables take over the donor's whole log.
    history: bool = False
    #: Asked for by somebody, whatever the node's plan is.
    forced: bool = False
    #: The site to copy from, though others may differ from it; empty = the best one.
    donor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """What a copy did."""

    copy_id: str
    donor: str
    from_position: int
    position: int
    #: Table → kept, rename or commit.
    tables: dict[str, str] = field(default_factory=dict)
    #: Table → rows in quarantine, -1 = its files.
    quarantined: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    wire_bytes: int = 0
    reused_bytes: int = 0
    fetch_s: float = 0.0
    seconds: float = 0.0
    estimated_s: float | None = None

    def describe(self) -> str:
        """Return one line for people."""
        estimated = "" if self.estimated_s is None else f", estimated {self.estimated_s:,.1f} s"
        lost = ", ".join(f"{name} ({rows} rows)" for name, rows in self.quarantined.items())
        return (
            f"copied position {self.position} from {self.donor} in {self.seconds:,.1f} s"
            f"{estimated}: {self.size_bytes:,} bytes, {self.wire_bytes:,} over the network, "
            f"{self.reused_bytes:,} found here" + (f"; in quarantine: {lost}" if lost else "")
        )
