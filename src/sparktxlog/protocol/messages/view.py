"""Views: the members of an epoch, and the end of the epoch before (P11).

An epoch decision decides one view.  It has the *roster* (all configured places in precedence order,
with their votes), the *members* (nodes of the roster that hold the queue and whose promises count)
and the final queue of the epoch before: everything up to `base`, which an answering member had
synchronized, and the `tail` after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.model.transactions.synchro_holders import DEFAULT_EXPRESSION, holders_of
from sparktxlog.protocol.messages.posts import MergeBase, RunHeader

#: Wire version of views and nodes that name none.
FIRST_VERSION = 1
#: Why a roster is refused that would leave the nodes that answer without a majority.
NO_MAJORITY = "with this roster, those that answer would have no majority"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ballot:
    """Number of one attempt to decide an epoch; ordered by number, then node."""

    number: int = 0
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A configured place of the cluster."""

    node_id: NodeId
    #: Where its peers reach it: comma separated addresses, tried in turn.
    url: str = ""
    #: Votes in epoch decisions; 0 = none (P12).
    weight: int = 1
    #: True: votes only, holds no payload and no queue.
    witness: bool = False
    #: True: follows the queue, without vote and promise; it is never a member (P38).
    follower: bool = False
    #: A node that lost its disk returns with a higher one (P21).
    incarnation: int = 1

    @property
    def may_be_member(self) -> bool:
        """Whether its node may be admitted: it is to have data, and others rely on it."""
        return not (self.witness or self.follower)


@dataclass(frozen=True, slots=True, kw_only=True)
class Voided:
    """A run that takes no effect, because nobody can deliver it (P32)."""

    #: Its replacement: same stamp and number; of its content only the ids.
    header: RunHeader
    facts: RunFacts
    #: SHA-256 of the lost run's manifest.
    digest: bytes
    #: Members that may hold the run, and that the operator does not wait for.
    without: tuple[NodeId, ...] = ()

    def is_of(self, header: RunHeader) -> bool:
        """Return whether a run is the lost one."""
        whole = self.facts.n == header.n and len(self.facts.ids) == 16 * header.n
        return whole and header.digest == self.digest and self.header.voids(header)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Outcome of one epoch decision; equal at every node that knows the epoch (I5)."""

    log_id: str
    epoch: int
    #: All places, in precedence order: the first member is the master on duty.
    roster: tuple[Seat, ...]
    #: Node ids of the members, in precedence order.
    members: tuple[NodeId, ...]
    #: Acquisition quorum: `default` (all of up to two members, else the majority), `all`,
    #: `majority`, or a number, of which more than there are members counts as all.
    quorum_rule: str = "default"
    #: End of the longest synchronized queue among the answers of the decision.
    base: MergeBase = field(default_factory=MergeBase)
    #: Runs of the final queue after `base`, in agreed order.
    tail: tuple[RunHeader, ...] = ()
    #: End of the final queue; epoch `epoch` begins after it.
    end: MergeBase = field(default_factory=MergeBase)
    #: (log id, last epoch) of the logs that this one continues by `force` (P23).
    ancestors: tuple[tuple[str, int], ...] = ()
    #: Wire version in force: all members decide by its rules (P31).
    version: int = FIRST_VERSION
    #: Runs of `tail` that need no payload; their headers are part of the decision.
    voided: tuple[Voided, ...] = ()
    #: How many members hold a synchronous transaction before it is ordered (P34): an expression
    #: over N, see `model.synchro_holders`; empty = the default.
    synchro_rule: str = ""

    @property
    def settled(self) -> View:
        """The same view without its tail, for nodes that have it or fetch the queue.

        Only a node that holds the queue up to `end` may send it: others fetch the rest from it.
        """
        return replace(self, base=self.end, tail=()) if self.tail else self

    @property
    def quorum(self) -> int:
        """Acquisition quorum q of this view."""
        return quorum_of(self.quorum_rule, len(self.members))

    @property
    def masters(self) -> int:
        """How many places may be members: N of `synchro_rule`."""
        return sum(seat.may_be_member for seat in self.roster)

    @property
    def synchro_quorum(self) -> int:
        """How many holders a synchronous transaction needs, its origin's included (P34)."""
        return holders_of(self.synchro_rule or DEFAULT_EXPRESSION, self.masters)

    @property
    def data_quorum(self) -> int:
        """How many members must promise: so many meet every set of q (P12)."""
        return len(self.members) - self.quorum + 1

    def continues(self, log_id: str, epoch: int) -> bool:
        """Return whether this log was that one at that epoch, before a `force` (P23)."""
        return any(name == log_id and epoch <= last for name, last in self.ancestors)

    def void(self, header: RunHeader) -> Voided | None:
        """Return the void form of a run in the view's tail, None if it is not void."""
        return next((voided for voided in self.voided if voided.header == header), None)

    def seat(self, node_id: str) -> Seat | None:
        """Return the place of a node, None if it has none."""
        return next((seat for seat in self.roster if seat.node_id == node_id), None)

    def follows(self, node_id: str) -> bool:
        """Return whether a node has the place of a follower (P38)."""
        seat = self.seat(node_id)
        return seat is not None and seat.follower

    def weight(self, node_id: str) -> int:
        """Return a node's votes, 0 = none."""
        seat = self.seat(node_id)
        return 0 if seat is None else seat.weight

    def is_current(self, node_id: str, incarnation: int) -> bool:
        """Return whether a node has a place with that incarnation."""
        seat = self.seat(node_id)
        return seat is not None and seat.incarnation == incarnation

    def joining(self, candidate: View) -> frozenset[NodeId]:
        """Return the members of a view after this one that are none here, or under another life."""
        now = {node: self.seat(node) for node in self.members}
        return frozenset(
            node
            for node in candidate.members
            if (here := now.get(node)) is None or not candidate.is_current(node, here.incarnation)
        )

    def elects(self, voters: Iterable[str]) -> bool:
        """Return whether the votes of `voters` are strictly more than half of all (P12)."""
        present = set(voters)
        total = sum(seat.weight for seat in self.roster)
        return 2 * sum(seat.weight for seat in self.roster if seat.node_id in present) > total

    def preserves(self, answering: Iterable[str]) -> bool:
        """Return whether the members among `answering` hold everything acquired by q (P12)."""
        return len(set(self.members).intersection(answering)) >= self.data_quorum

    def rank(self, node_id: str, absent: Iterable[str] = ()) -> int:
        """Return how many present members precede a node (P13)."""
        missing = set(absent)
        present = [member for member in self.members if member not in missing]
        return present.index(NodeId(node_id)) if node_id in present else len(present)


def same_decision(one: View, other: View) -> bool:
    """Return whether two views are one decision; the beginning of the tail is not part of it."""
    return replace(one.settled, base=MergeBase()) == replace(other.settled, base=MergeBase())


def decision_digest(view: View) -> str:
    """Return the digest of a decision on an epoch, hexadecimal (I5).

    It covers fixed parts in a fixed form, so that releases agree; the beginning of the tail is not
    one of them.
    """
    parts: list[object] = [
        view.log_id,
        view.epoch,
        view.end.position,
        view.end.chain_hash.hex(),
        view.quorum_rule,
        *view.members,
    ]
    for seat in view.roster:
        role = 2 if seat.follower else int(seat.witness)
        parts += (seat.node_id, seat.url, seat.weight, role, seat.incarnation)
    text = "\n".join(str(part) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_rule(text: str) -> bool:
    """Return whether a text is a rule of the acquisition quorum."""
    if text in ("default", "all", "majority"):
        return True
    return text.isascii() and text.isdigit() and len(text) <= 3 and int(text) > 0


def quorum_of(rule: str, members: int) -> int:
    """Return the acquisition quorum that a rule gives for so many members."""
    if rule == "default":
        rule = "all" if members <= 2 else "majority"
    if rule == "all":
        return members
    if rule == "majority":
        return members // 2 + 1
    return max(1, min(int(rule), members))


class Phase(StrEnum):
    """The phase of a node: its present role."""

    #: Fetches what the members have, in order to be admitted; takes no transactions.
    JOINING = "JOINING"
    #: Takes part in everything.
    NORMAL = "NORMAL"
    #: As NORMAL, but rounds stay empty: a member is missing.
    SUSPECT = "SUSPECT"
    #: Promised a ballot: stamps, acquires and adds nothing until the epoch is decided.
    WEDGED = "WEDGED"
    #: Evicted: reads only; on to JOINING at once.  An operator's pause is no phase.
    IDLE = "IDLE"
    #: A contradiction was found: reads only, until an operator has dealt with it.
    FAULT = "FAULT"
    #: Votes only.
    WITNESS = "WITNESS"
    #: Follows the queue and takes no transactions; it never asks to be admitted (P38).
    FOLLOWING = "FOLLOWING"


#: Phase → phases it may turn into.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.JOINING: frozenset({Phase.NORMAL, Phase.IDLE, Phase.FAULT}),
    Phase.FOLLOWING: frozenset({Phase.IDLE, Phase.FAULT}),
    Phase.NORMAL: frozenset({Phase.SUSPECT, Phase.WEDGED, Phase.IDLE, Phase.FAULT}),
    Phase.SUSPECT: frozenset({Phase.NORMAL, Phase.WEDGED, Phase.IDLE, Phase.FAULT}),
    Phase.WEDGED: frozenset({Phase.NORMAL, Phase.IDLE, Phase.FAULT}),
    Phase.IDLE: frozenset({Phase.JOINING, Phase.FOLLOWING, Phase.NORMAL, Phase.FAULT}),
    Phase.FAULT: frozenset(),
    Phase.WITNESS: frozenset({Phase.FAULT}),
}

#: Phases in which a node takes transactions.
TAKES_SUBMITS = frozenset({Phase.NORMAL, Phase.SUSPECT, Phase.WEDGED})
