"""What nodes say to each other to decide the next epoch (protocol P11–P21).

Every message names the epoch that its sender is in.  `Prepare`, `Flush` and `Accept` carry that
epoch's view, so a receiver that is behind catches up; one that is ahead answers `Decide`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.words.messages import Ahead, MergeBase, RunHeader
from sparktxlog.protocol.words.view import FIRST_VERSION, Ballot, View, Voided


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A value accepted in a ballot (P17)."""

    ballot: Ballot
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotState:
    """Durable part of a voter, for the decision that follows `epoch` (P14, P17)."""

    epoch: int
    promised: Ballot = field(default_factory=Ballot)
    accepted: Vote | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """What a wedged member holds (P14): the end of its queue, and all it acquired beyond."""

    base: MergeBase
    #: Order key of the queue's last run.
    key: tuple[int, int, str, int]
    #: Per origin: last sequence number in the queue.
    watermarks: dict[str, int]
    #: Acquired runs beyond the watermarks, ascending per origin and without gap.
    acquired: tuple[RunHeader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a node has come (P30); all of it was durable there when it was shown."""

    incarnation: int = 1
    #: How often the node was started with this data directory, 0 = it does not say.
    start: int = 0
    #: Names the process.
    boot: str = ""
    epoch: int = 0
    #: Ballots of the decision behind `epoch`.
    promised: Ballot = field(default_factory=Ballot)
    accepted: Ballot = field(default_factory=Ballot)
    #: Counter, never below one that was posted.
    counter: int = 0
    #: Last own sequence number.
    seq: int = 0
    #: End of the queue.
    position: int = 0
    #: Sum of the acquired vector, comparable within an epoch.
    held: int = 0
    #: Own sequence number and counter as they are by now: others may have heard of it from others.
    seq_now: int = 0
    counter_now: int = 0

    @property
    def is_blank(self) -> bool:
        """Whether a node showed that it keeps nothing of any log, and never voted."""
        return self._keeps_nothing and self.epoch <= 1

    @property
    def binds_nothing(self) -> bool:
        """Whether nothing can rest on what a node showed: at most others told it of an epoch."""
        return self._keeps_nothing and (self.epoch <= 1 or not self.counter)

    @property
    def _keeps_nothing(self) -> bool:
        kept = self.seq or self.position or self.held or self.promised.number
        return self.start > 0 and not kept


class EpochHead(TypedDict):
    """First fields of what a node says: the epoch that it is in, and who it is there."""

    lineage: str
    epoch: int
    sender: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidInEpoch:
    """What most messages begin with: an `EpochHead`."""

    lineage: str
    epoch: int
    sender: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotQuestion:
    """What the questions of a ballot begin with."""

    sender: NodeId
    incarnation: int
    #: Of the epoch that the ballot ends.
    view: View
    ballot: Ballot


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(SaidInEpoch):
    """Asks whether the receiver is there, and tells whom the sender suspects (P13)."""

    number: int
    suspects: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer(SaidInEpoch):
    """Answer to a probe."""

    number: int
    #: Nodes that the sender heard itself a short while ago.
    hears: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(BallotQuestion):
    """Starts a ballot for the epoch behind `view` (P14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise(SaidInEpoch):
    """Durable promise to take part in no lower ballot (P14)."""

    ballot: Ballot
    accepted: Vote | None = None
    #: What the sender holds; of one that is no member it goes into no final queue, and only saves
    #: it the flush (P16).  None: the sender is a witness.
    state: MemberState | None = None
    #: Newest wire version that the sender speaks (P31).
    newest: int = FIRST_VERSION
    #: Runs that operators want to be void, asked of the sender (P32).
    voids: tuple[Voided, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(SaidInEpoch):
    """The receiver promised a higher ballot; a refusal carries it, so that retries end soon."""

    ballot: Ballot
    promised: Ballot


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush(BallotQuestion):
    """Asks a member-to-be to hold the whole final queue durably (P16)."""

    candidate: View
    #: A node that has the queue up to the candidate's base.
    holder: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed(SaidInEpoch):
    """How far the sender is with the candidate's final queue (P16)."""

    ballot: Ballot
    #: Runs it does not hold yet; 0 = all is durable here.
    missing: int = 0
    #: Digests of runs that the candidate voids, and that are whole here (P32).
    whole: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept(BallotQuestion):
    """Asks a voter to accept the candidate (P17)."""

    candidate: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(SaidInEpoch):
    """The sender accepted the candidate of the ballot durably (P17)."""

    ballot: Ballot


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """A decided view; answers everything that comes from an older epoch (P17, P18)."""

    sender: NodeId
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(SaidInEpoch):
    """A node that is no member wants to become one; repeated until it is (P21)."""

    #: End of its queue.
    base: MergeBase
    #: Stamp of the last run there.
    ts: int
    #: What it would promise as a member (C3); 0 = not said.
    counter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest(SaidInEpoch):
    """Asks for the queue behind the sender's end (P9, P21)."""

    position: int
    chain_hash: bytes
    #: What of a tail came and waits behind that; None = nothing, or an older release.
    ahead: Ahead | None = None


EpochMessage = (
    Probe
    | ProbeAnswer
    | Prepare
    | Promise
    | Refusal
    | Flush
    | Flushed
    | Accept
    | Accepted
    | Decide
    | JoinRequest
    | TailRequest
)


def epoch_of(message: EpochMessage) -> tuple[str, int]:
    """Return lineage and epoch that the sender of a message is in."""
    if isinstance(message, SaidInEpoch):
        return message.lineage, message.epoch
    return message.view.lineage, message.view.epoch
