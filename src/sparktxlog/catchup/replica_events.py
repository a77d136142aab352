"""What the shell tells the machine of a replica, and what the machine wants done.

Work is named by a `ticket`; its outcome comes back with it.  Outcomes of other tickets are late
answers to something given up meanwhile, and are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparktxlog.catchup.planner import Plan


class Fault(str, Enum):
    """Why something failed, as far as it decides what comes next."""

    #: Silence, a broken link, a busy donor: the same may work later.
    TRANSPORT = "transport"
    #: The log, or the offered file, is not there any more.
    UNAVAILABLE = "unavailable"
    #: It would fail again in the same way.
    DETERMINISTIC = "deterministic"
    #: Somebody must do something first: a wrong token, another release, a full disk.  A copy would
    #: not help.
    REFUSED = "refused"


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Positions `first` … `last` are at hand, pushed or asked for; whole runs."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """An `Apply` is in the tables, durably."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUp:
    """A `BackUp` is done, or no backup directory is configured."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOffered:
    """A donor granted a copy."""

    ticket: int
    #: Position of the snapshot, a run end.
    position: int
    #: Chunks to fetch, ≥ 0.
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWritten:
    """A chunk is verified and on disk."""

    ticket: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The copied tables are in place and verified; the replica starts from them."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The work of a ticket ended without success."""

    ticket: int
    fault: Fault
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAlive:
    """The other side still works on a ticket."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTold:
    """The node answered a report: the replica may go on, shall copy, or stop."""

    plan: Plan
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterDeclared:
    """This node is the master from now on."""

    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An operator lets an idle replica try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """`next_deadline()` passed."""


ReplicaEvent = (
    Received
    | Applied
    | BackedUp
    | LoadOffered
    | ChunkWritten
    | Restarted
    | Failed
    | KeptAlive
    | PlanTold
    | MasterDeclared
    | Resume
    | Tick
)


# -- actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Apply positions that are at hand; ends with `Applied` or `Failed`."""

    ticket: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRange:
    """Ask the master for exactly these positions; ends with `Received` or `Failed`."""

    ticket: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackUp:
    """Keep the replica's old files; ends with `BackedUp` or `Failed`."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """Ask for a grant to copy a donor's replica; ends with `LoadOffered` or `Failed`."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchChunk:
    """Fetch, verify and write a chunk; ends with `ChunkWritten` or `Failed`."""

    ticket: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Put the copied tables in place, at this position; ends with `Restarted` or `Failed`."""

    ticket: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoIdle:
    """Say that the replica stands still, and why."""

    reason: str


ReplicaAction = Apply | RequestRange | BackUp | RequestLoad | FetchChunk | Restart | GoIdle
