"""What a recount of a commit table's files found, and what was done about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sparktxlog.model.ids import LARGEST


class FileFault(str, Enum):
    """What is wrong with a file of a version at a site."""

    #: It is not there, or has other bytes than its version has.
    MISSING = "missing"
    CHANGED = "changed"
    #: It is in the place of a version that the log does not have.
    FOREIGN = "foreign"
    #: The site has it as it was recorded here, and other sites have recorded another one.
    CONTRADICTED = "contradicted"


def majority_site(digests: Mapping[str, str]) -> str:
    """Return a site that has recorded what more than half of the sites have; empty = none has.

    Args:
        digests: Site → digest of one version there; at least one.
    """
    ((most, number),) = Counter(digests.values()).most_common(1)
    if number * 2 <= len(digests):
        return ""
    return next(site for site, digest in digests.items() if digest == most)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTableFinding:
    """A fault of a commit table at this site."""

    table: str
    version: int
    #: Its path below the table's directory; of a contradiction, the first one that differs.
    file: str
    fault: FileFault
    text: str
    #: Site → digest of the version there, if sites differ.
    sites: dict[str, str] = field(default_factory=dict)
    repaired: bool = False

    @property
    def is_undecided(self) -> bool:
        """Whether sites contradict each other, and no majority says which one is right.

        A repair does nothing about it then, unless a person names the right site.
        """
        return not self.repaired and bool(self.sites) and not majority_site(self.sites)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTableCheck:
    """A recount of the next versions of a commit table."""

    node_id: str
    table: str
    uuid: str
    #: The last version that was counted, and the newest one that is placed; they are equal at the
    #: end.  -1 = none is.
    checked: int
    placed: int
    files: int = 0
    size_bytes: int = 0
    #: Peers whose records were compared, and why others were not.
    compared: tuple[str, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)
    findings: tuple[CommitTableFinding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTableCheckRequest:
    """Asks for a recount of the versions of a commit table after one, and perhaps for a repair."""

    #: `schema.table`.
    table: str
    after: int = -1
    #: Mend what is found: files come from peers, what was in their place is set aside.
    repair: bool = False
    #: With `repair`: where sites contradict each other, this one is right; empty = the majority.
    right: str = ""

    @property
    def problem(self) -> str:
        """Why it cannot be done, empty = it can."""
        return "" if -1 <= self.after <= LARGEST else f"after is {self.after}, least is -1"
