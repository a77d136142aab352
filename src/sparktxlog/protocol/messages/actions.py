"""Actions that the core returns to the node, in execution order.

The executor carries out the actions as one first-in-first-out stream: every `Persist…` is durable
(fsynced) before any later action.  So the content of a message or an answer is durable before it is
sent ("persist before you speak").  The executor may make many `Persist…` actions durable with one
fsync.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.marks import UndecidedChange
from sparktxlog.protocol.messages.balloting import BallotState, EpochMessage, Standing
from sparktxlog.protocol.messages.posts import Ahead, Announcement, Post, QueueEntry, RunHeader
from sparktxlog.protocol.messages.view import Phase, View, Voided


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistOwnRun:
    """Keep header and payload of an own, now stamped run; removes its announcement, if any."""

    ticket: int
    header: RunHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistForeignRun:
    """Keep header and payload of a peer's run (the payload came with `PayloadArrived`)."""

    header: RunHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistReservation:
    """Keep the reserved counter H: after a restart the counter starts there (P2)."""

    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistAnnouncement:
    """Keep an own unstamped run: payload and place in its session (P1a)."""

    ticket: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnRun:
    """An own unstamped run that will never be stamped."""

    ticket: int
    digest: bytes
    #: Why, for its clients.
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistWithdrawal:
    """Forget own unstamped runs, all of them or none: one, and those that rest on it (P1a, P34)."""

    runs: tuple[WithdrawnRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistQueue:
    """Append entries to the synchronized queue."""

    entries: tuple[QueueEntry, ...]
    #: Tables created or changed by them (P25b, P33): (position, definition after it), ascending.
    tables: tuple[tuple[int, TableDefinition], ...] = ()
    #: Table and what was written to it, for each entry that did, ascending by entry (P27).
    writes: tuple[tuple[str, TableWrites], ...] = ()
    #: Prepared transactions that came, were marked or decided, ascending by entry (P35).
    undecided: tuple[UndecidedChange, ...] = ()
    #: Commit tables as each entry left those that it changed, ascending by entry (P36).
    commit_tables: tuple[CommitTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistBallot:
    """Keep this voter's promise and accepted value (P14, P17)."""

    state: BallotState


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistView:
    """Keep a decided view, and drop runs after the queue's end (P18).

    Runs that this node itself stamped with `incarnation` stay.
    """

    view: View
    #: This node's incarnation from now on.
    incarnation: int
    #: Whether it has another log id: then entries before it are final only with it (P23).
    forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistVoid:
    """Keep the void form of a run, instead of the run (P32)."""

    voided: Voided


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistRestamp:
    """Keep the new stamp of an own durable run: same origin, seq and payload (P20)."""

    header: RunHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistStanding:
    """Keep the greatest standing of another node (P30)."""

    node: NodeId
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEpochMessage:
    """Send a part of an epoch decision to one node; losing it is harmless."""

    peer: NodeId
    message: EpochMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPost:
    """Post to one peer.  A newer post to the same peer replaces one that is still waiting."""

    peer: NodeId
    post: Post


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPush:
    """Push a small run's header and payload to one peer (P3a); losing it is harmless."""

    peer: NodeId
    header: RunHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAnnouncement:
    """Announce an unstamped run to one peer."""

    peer: NodeId
    announcement: Announcement


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTail:
    """Send a lagging peer the queue after `position`, a bounded number of entries (P9)."""

    peer: NodeId
    position: int
    #: The peer's chain hash at `position`; another one here means divergence (P28).
    chain_hash: bytes
    #: What it already has after that: begin there, if this queue has the same hash there.
    ahead: Ahead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPayload:
    """Get a run's payload and staged files from one of `sources`, in that order of preference."""

    header: RunHeader
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchFiles:
    """Get manifest and staged files of an announced run from its origin."""

    announcement: Announcement


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFiles:
    """Check whether a run's payload is complete here: `FilesHeld` or `FilesLost` answers (P32)."""

    header: RunHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckUnstamped:
    """Check whether an own unstamped run is complete here, before it gets a stamp (P1a).

    `FilesHeld` or `FilesLost` answers.
    """

    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TellAccepted:
    """The submit is durable here; repeated with its header once a late run is stamped."""

    ticket: int
    #: None while unstamped (P1a).
    header: RunHeader | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TellAcquired:
    """Own run durable at the acquisition quorum."""

    header: RunHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class TellOrdered:
    """Entries are durable in the synchronized queue: receipts, publishing."""

    entries: tuple[QueueEntry, ...]
    #: How many members are known to hold each of them; more may.  A synchronous run that was to
    #: have more is reported as late (P34).
    holders: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TellRejected:
    """The submit changed nothing: `code` as in `errors` (`busy`, `clock-skew`, …)."""

    ticket: int
    code: str
    text: str
    #: First id of the other run of its session with which this one was withdrawn (P34).
    rests_on: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPhase:
    """This node's phase changed; in IDLE, JOINING and FAULT waiting clients get UNKNOWN (P19)."""

    phase: Phase
    view: View
    #: Why, for people.
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TellChange:
    """Answer to `ChangeRequested` or `ForceRequested`."""

    ticket: int
    #: Epoch that has it; None: it did not happen, with the reason in `text`.
    epoch: int | None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellDoubt:
    """A node contradicts itself: it must greet again, with a new incarnation (P10, P30)."""

    peer: NodeId
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A message for operators; with `fatal` the core takes no more part (P10)."""

    code: str
    text: str
    fatal: bool = False


#: Actions that must be durable before later ones are carried out.
Persist = (
    PersistOwnRun
    | PersistForeignRun
    | PersistReservation
    | PersistAnnouncement
    | PersistWithdrawal
    | PersistQueue
    | PersistBallot
    | PersistView
    | PersistVoid
    | PersistRestamp
    | PersistStanding
)
PERSISTS = get_args(Persist)

Action = (
    Persist
    | SendEpochMessage
    | SendPost
    | SendPush
    | SendAnnouncement
    | SendTail
    | FetchPayload
    | PrefetchFiles
    | CheckFiles
    | CheckUnstamped
    | TellAccepted
    | TellAcquired
    | TellOrdered
    | TellRejected
    | TellPhase
    | TellChange
    | TellDoubt
    | Alarm
)
