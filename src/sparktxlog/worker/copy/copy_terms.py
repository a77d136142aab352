"""Options and outcome of a copy."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How a copy is made."""

    #: Recount all rows before they replace anything.
    verify: bool = True
    #: Bring old versions too: the tables take over the donor's whole log.
    history: bool = False
    #: Requested by an operator, whatever the node's plan is.
    forced: bool = False
    #: The site to copy from, even if others differ from it; empty = the best one.
    donor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """Result of a copy."""

    copy_id: str
    donor: str
    from_position: int
    position: int
    #: Table → kept, rename or commit.
    tables: dict[str, str] = field(default_factory=dict)
    #: Table → rows in the attic, -1 = its files.
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
            f"{self.reused_bytes:,} found here" + (f"; in the attic: {lost}" if lost else "")
        )
