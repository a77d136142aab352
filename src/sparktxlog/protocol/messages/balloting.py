"""Messages between nodes to decide the next epoch (protocol P11–P21).

Every message names the epoch that its sender is in.  `Prepare`, `Flush` and `Accept` carry that
epoch's view, so a receiver in an older epoch catches up; one in a later epoch answers `Decide`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import Ahead, MergeBase, RunHeader
from sparktxlog.protocol.messages.view import FIRST_VERSION, Ballot, View, Voided


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A value accepted in a ballot (P17)."""

    ballot: Ballot
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotState:
    """Durable state of a voter, for the decision after `epoch` (P14, P17)."""

    epoch: int
    promised: Ballot = field(default_factory=Ballot)
    accepted: Vote | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """What a wedged member holds (P14): the end of its queue, and all later acquired runs."""

    base: MergeBase
    #: Order key of the queue's last run.
    key: tuple[int, int, str, int]
    #: Per origin: last sequence number in the queue.
    watermarks: dict[str, int]
    #: Acquired runs after the watermarks, ascending per origin and without gap.
    acquired: tuple[RunHeader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state that a node shows (P30); all of it was durable there."""

    incarnation: int = 1
    #: How often the node was started with this data directory, 0 = unknown.
    start: int = 0
    #: Names the process.
    boot: str = ""
    epoch: int = 0
    #: Ballots of the decision after `epoch`.
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
    #: Present own sequence number and counter, which other nodes may already know.
    seq_now: int = 0
    counter_now: int = 0

    @property
    def is_blank(self) -> bool:
        """Whether a node showed that it has nothing of any log, and never voted."""
        return self._keeps_nothing and self.epoch <= 1

    @property
    def binds_nothing(self) -> bool:
        """Whether others cannot rely on this state: at most the node heard of an epoch."""
        return self._keeps_nothing and (self.epoch <= 1 or not self.counter)

    @property
    def _keeps_nothing(self) -> bool:
        kept = self.seq or self.position or self.held or self.promised.number
        return self.start > 0 and not kept


class EpochHead(TypedDict):
    """First fields of a message: the sender's epoch, and its incarnation there."""

    log_id: str
    epoch: int
    sender: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidInEpoch:
    """Base of most messages: the fields of an `EpochHead`."""

    log_id: str
    epoch: int
    sender: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BallotQuestion:
    """Base of the questions of a ballot."""

    sender: NodeId
    incarnation: int
    #: View of the epoch that the ballot ends.
    view: View
    ballot: Ballot


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(SaidInEpoch):
    """Asks whether the receiver is alive, and names the sender's suspects (P13)."""

    number: int
    suspects: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer(SaidInEpoch):
    """Answer to a probe."""

    number: int
    #: Nodes that the sender itself heard recently.
    hears: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(BallotQuestion):
    """Starts a ballot for the epoch after `view` (P14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise(SaidInEpoch):
    """Durable promise to join no lower ballot (P14)."""

    ballot: Ballot
    accepted: Vote | None = None
    #: What the sender holds.  Runs of a non-member do not enter the final queue; they only save it
    #: the flush (P16).  None: the sender is a witness.
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
    """The sender's progress with the candidate's final queue (P16)."""

    ballot: Ballot
    #: Number of runs that it lacks, 0 = all are durable there; below 0: its queue lacks so many
    #: transactions before the tail.
    missing: int = 0
    #: Digests of runs that the candidate voids, and that are complete there (P32).
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
    """A decided view; the answer to all messages of older epochs (P17, P18)."""

    sender: NodeId
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(SaidInEpoch):
    """A non-member asks to become a member; repeated until it is (P21)."""

    #: End of its queue.
    base: MergeBase
    #: Stamp of the last run there.
    ts: int
    #: What it would promise as a member (C3); 0 = unknown.
    counter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest(SaidInEpoch):
    """Asks for the queue after the sender's end (P9, P21)."""

    position: int
    chain_hash: bytes
    #: The part of a tail that it has after that; None = nothing.
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
    """Return log id and epoch that the sender of a message is in."""
    if isinstance(message, SaidInEpoch):
        return message.log_id, message.epoch
    return message.view.log_id, message.view.epoch
