"""Events that the node passes to the core, each with `now` (microseconds, steady)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.balloting import EpochMessage, Standing
from sparktxlog.protocol.messages.posts import Announcement, Post, RunHeader, Tail
from sparktxlog.protocol.messages.view import Seat, Voided


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSubmitted:
    """Validated transactions of this node's clients, for one run."""

    #: Names the submit in the core's answers.
    ticket: int
    digest: bytes
    size_bytes: int
    staged_bytes: int
    facts: RunFacts
    session: str | None = None
    #: Wall clock when it was accepted, microseconds since 1970 UTC; counts only for a synchronous
    #: run, whose patience does not begin again with a restart (P34).  None: it was accepted under
    #: an earlier incarnation, may have had a stamp there, and so is not held back or withdrawn.
    submitted_at: int | None = 0
    #: It stays if a run before it in its session is withdrawn (P34).
    stands_alone: bool = False

    def rests_on(self, earlier: RunSubmitted) -> bool:
        """Return whether it is withdrawn with another run (P34)."""
        same = self.session is not None and self.session == earlier.session
        return same and self.ticket > earlier.ticket and not self.stands_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class PostReceived:
    """A peer's post, authenticated."""

    post: Post


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadArrived:
    """The verified payload of a run (pushed or fetched, with staged files) has arrived.

    Not yet durable in the journal; staged files are fsynced.  The core answers with
    `PersistForeignRun` if it wants the run.
    """

    header: RunHeader
    facts: RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """A `FetchPayload` or `PrefetchFiles` ended without success at all sources; retried later."""

    digest: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TailReceived:
    """The tail of a peer with a longer queue (P9)."""

    tail: Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementReceived:
    """A peer announced a late-stamped run (P1a)."""

    announcement: Announcement


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesHeld:
    """The files of an announced run (own or a peer's) are durable here; answers `Check…`."""

    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesLost:
    """A staged file of an own announced run is damaged or gone here; answers `Check…`."""

    digest: bytes
    #: Why, for people.
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChanged:
    """The connection to a peer came up or broke."""

    peer: NodeId
    up: bool
    #: Newest wire version that the peer speaks; 0 = not known (P31).
    newest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeted:
    """A peer's greeting was accepted; `standing` is what it loaded at its start (P30)."""

    peer: NodeId
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradicted:
    """A peer's greeting shows another history than this node's (P10, P17)."""

    peer: NodeId
    text: str
    #: True: another decision for one epoch; False: another queue at one position.
    decision: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMessageReceived:
    """A peer's part in an epoch decision, authenticated."""

    message: EpochMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequested:
    """An operator requests another roster, another quorum, or a void run (P32).

    Places are added, removed, reweighted, reordered.
    """

    #: Names the request in the core's answer.
    ticket: int
    roster: tuple[Seat, ...]
    #: See `View.quorum_rule`; empty = unchanged.
    quorum_rule: str = ""
    #: See `View.synchro_rule`; empty = unchanged.
    synchro_rule: str = ""
    #: A run that no node can deliver; then everything else stays unchanged.
    void: Voided | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceRequested:
    """An operator declares all other nodes dead: this one goes on alone (P23)."""

    ticket: int
    #: New log id from here on, so that the others' log is a fork.
    log_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchroTimeoutSet:
    """An operator set how long a synchronous run may wait for its stamp, microseconds (P34)."""

    timeout_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodAside:
    """Which nodes said that their disks are slow, and that nobody shall wait for them (P37)."""

    nodes: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rested:
    """The node has nothing to write or to send; passed while `Master.wants_rest`, if so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """`next_deadline()` passed."""


Event = (
    RunSubmitted
    | PostReceived
    | PayloadArrived
    | FetchFailed
    | TailReceived
    | AnnouncementReceived
    | FilesHeld
    | FilesLost
    | LinkChanged
    | Greeted
    | Contradicted
    | EpochMessageReceived
    | ChangeRequested
    | ForceRequested
    | SynchroTimeoutSet
    | StoodAside
    | Rested
    | Tick
)


def earliest(times: Iterable[int | None], *, after: int | None = None) -> int | None:
    """Return the least of some times, None if there is none; None among them = never.

    Args:
        after: Times up to this one do not count.
    """
    found: int | None = None
    for time in times:
        if time is None or (after is not None and time <= after):
            continue
        if found is None or time < found:
            found = time
    return found
