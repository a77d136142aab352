"""One attempt to decide the next epoch (protocol P13–P17): prepare, flush, accept.

    PREPARE   until voters with more than half of the weight, and a data quorum of the members,
              promised; then the value is chosen: an accepted one, else members and final queue
    FLUSH     until every member-to-be holds the final queue durably; those whose promises show that
              they do need not be asked, so often there is nothing to wait for
    ACCEPT    until voters with more than half of the weight accepted: decided

An attempt without progress is given up; the next one has a higher ballot and leaves out silent
nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from sparktxlog.model.ids import LARGEST, NodeId
from sparktxlog.protocol.epoch.union import FinalQueue, final_queue, outvoted
from sparktxlog.protocol.messages.balloting import Flushed, MemberState, Promise, Vote
from sparktxlog.protocol.messages.bounds import all_fit
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.versions import raised
from sparktxlog.protocol.messages.view import Ballot, Seat, View, Voided

#: A joiner has half of the patience for its flush, all of it if it comes nearer, and so many times
#: the patience as long as what it reported shows that it will be done by then.
_JOINERS_TIME = 2


class Stage(Enum):
    """The stage of an attempt."""

    PREPARE = "prepare"
    FLUSH = "flush"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The changes that an attempt proposes."""

    #: Members that are not waited for.
    absent: frozenset[str] = frozenset()
    #: Members that must not belong to the next view although they answer.
    excluded: frozenset[str] = frozenset()
    #: Nodes to admit: id → incarnation (P21).
    joiners: dict[NodeId, int] = field(default_factory=dict)
    #: New roster, None = unchanged.
    roster: tuple[Seat, ...] | None = None
    #: New rule of the acquisition quorum, empty = unchanged.
    quorum_rule: str = ""
    #: New rule of the holders of synchronous runs, empty = unchanged (P34).
    synchro_rule: str = ""
    #: Digests of runs that must not be void, because a member holds them (P32).
    vetoed: frozenset[bytes] = frozenset()
    #: The version in force can be raised, if all voters promise in time (P31).
    raises: bool = False
    #: Members that are left out although they answer: their disks are slow (P37).
    aside: frozenset[NodeId] = frozenset()
    #: Sets of places of which one must be whole, if a member is left out (P40).
    guard: tuple[frozenset[NodeId], ...] = ()

    def guarded(self, view: View, answering: Iterable[str], roster: tuple[Seat, ...]) -> bool:
        """Return whether those that are there may go on without the other members (P40).

        A member that answers is there, also one that is left out for its clock, and so is one that
        stands aside.  One whose place goes is not missed.
        """
        if not self.guard:
            return True
        places = {seat.node_id for seat in roster if seat.may_be_member}
        there = self.aside.union(answering)
        return there >= places.intersection(view.members) or any(
            there >= one & places for one in self.guard if one & places
        )


class Proposer:
    """State of one ballot.

    Args:
        view: View of the epoch to end.
        ballot: Higher than all known ones.
        patience_us: An answer that takes longer is not waited for.
        latest: Latest timestamp of a run that can be right (C3).
    """

    __slots__ = (
        "_heard", "_lacking", "_late", "_latest", "_patience_us", "_promises", "_since", "accepted",
        "ballot",
        "candidate", "flushed", "holder", "intent", "objections", "outvoted", "repeat_at", "stage",
        "view", "voids",
    )  # fmt: skip

    def __init__(
        self,
        view: View,
        ballot: Ballot,
        intent: Intent,
        now: int,
        patience_us: int,
        latest: int = LARGEST,
    ) -> None:
        self.view = view
        self.ballot = ballot
        self.intent = intent
        self.stage = Stage.PREPARE
        self.candidate: View | None = None
        #: Node whose queue reaches the candidate's base; empty for a value that was flushed before.
        self.holder = NodeId("")
        self.flushed: set[str] = set()
        #: Runs that the candidate makes void, and refused requests with their reasons (P32).
        self.voids: list[Voided] = []
        self.objections: list[tuple[Voided, str]] = []
        self._promises: dict[NodeId, Promise] = {}
        self._latest = latest
        #: Members that hold runs stamped later than can be: they only vote (C3).
        self._late: set[str] = set()
        #: Members that name a run otherwise than more of the others do: they only vote (P10).
        self.outvoted: set[NodeId] = set()
        #: Nodes that voted for the candidate in this ballot.
        self.accepted: set[str] = set()
        self._patience_us = patience_us
        self._since = now
        #: Member-to-be → when it last reported progress of the flush.
        self._heard: dict[str, int] = {}
        #: Joiner → when it first and last said how much it lacks, and how much that was.
        self._lacking: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
        #: When to repeat unanswered questions.
        self.repeat_at = now + patience_us // 4

    # -- prepare -----------------------------------------------------------------------------------

    def take_promise(self, promise: Promise) -> None:
        """Count a promise of this ballot."""
        self._promises[promise.sender] = promise
        state = promise.state
        if promise.sender in self.view.members and state and not self._fits(state.acquired):
            self._late.add(promise.sender)

    def is_late(self, node: str) -> bool:
        """Return whether a member only votes, because its runs cannot be right (C3)."""
        return node in self._late

    def _fits(self, headers: Iterable[RunHeader]) -> bool:
        return all_fit(headers, self._latest)

    def is_ripe(self, own: NodeId, now: int) -> bool:
        """Return whether the choice waits only for the own promise, of a member."""
        return self._suffice({own}, now)

    def choose(self, now: int) -> bool:
        """Choose the value once enough nodes promised and no other is waited for (P15).

        Members that are outvoted then only vote: the others must be enough (P10).
        """
        if not self._suffice(set(), now):
            return False
        vote = self._binding_vote()
        if vote is not None:
            self.candidate = vote.view
            self._enter(Stage.ACCEPT, now)
            return True
        if wrong := outvoted(self._states()):
            self.outvoted |= wrong
            return self.choose(now)  # if the others are enough
        queue = self._voided(final_queue(self._states()))
        self.candidate, self.holder = self._new_view(queue), queue.holder
        members = self.candidate.members
        if not members:
            return False  # a roster without any of those that hold the log
        there = self._promises.keys() | self.intent.joiners.keys()
        if not self.intent.guarded(self.view, there, self.candidate.roster):
            return False
        if not self.candidate.voided:  # that is asked of each: a holder of the run must say so
            promises = [p for p in self._promises.values() if self.is_to_be(p)]
            self.flushed = {p.sender for p in promises if p.state and queue.is_held(p.state)}
        self._heard = dict.fromkeys(members, now)
        self._enter(Stage.ACCEPT if self.flushed.issuperset(members) else Stage.FLUSH, now)
        return True

    def _voided(self, queue: FinalQueue) -> FinalQueue:
        """Return the final queue with requested runs void, unless something is against it (P32)."""
        wishes = {void.header: void for p in self._promises.values() for void in p.voids}
        for void in wishes.values():
            if reason := self._objection(void, queue):
                self.objections.append((void, reason))
            else:
                self.voids.append(void)
                queue = queue.without(void)
        return queue

    def _objection(self, void: Voided, queue: FinalQueue) -> str:
        """Return why a run must not be void, empty = no objection (P32)."""
        states, header = self._states(), void.header
        # A node that asks to join comes back without its memory.
        gone = set(void.without) | self.intent.joiners.keys()
        silent = set(self.view.members) - states.keys() - gone
        if silent:
            what = "its answer cannot be right" if silent <= self._unusable else "does not answer"
            return f"{', '.join(sorted(silent))} may hold the run, and {what}"
        if void.digest in self.intent.vetoed:
            return "a member holds the run: it can be delivered"
        if any(map(void.is_of, queue.tail)):
            return ""
        if states[queue.holder].watermarks.get(header.origin, 0) >= header.seq:
            return "the run is ordered: a quorum held it, and its outcome stays"
        return "no member that answers has this run: nothing waits for it"

    def _suffice(self, added: set[NodeId], now: int) -> bool:
        """Return whether the promises, with those of members that are `added`, are enough (P12)."""
        states = self._states().keys() | added
        return (
            self.view.elects(self._promises.keys() | added)
            and self.view.preserves(states)
            # Else it is this node whose time is wrong.
            and len(self._late) <= len(states)
            and self._awaited(now) <= added
        )

    def _awaited(self, now: int) -> set[NodeId]:
        """Return the nodes whose promises are still waited for.

        These are the nodes that say what they hold: members, and for a shorter time nodes to admit,
        since the flush asks for what these do not say now.  The other voters are waited for as long
        as nodes to admit, if the version in force stays as it is without their word.
        """
        view, waited = self.view, now - self._since
        nodes = set[NodeId]()
        if waited < self._patience_us // 2:
            nodes.update(set(view.members) - self._given_up())
        if waited < self._patience_us // 4:
            joiners = self.intent.joiners.items()
            nodes.update(n for n, i in joiners if view.weight(n) and view.is_current(n, i))
            if self.intent.raises:
                nodes.update(seat.node_id for seat in view.roster if seat.weight > 0)
        return nodes - self._promises.keys()

    def _given_up(self) -> frozenset[str]:
        """Return the members that are not waited for.

        Where runs are to be void, suspects too must say what they hold: they may be suspected only
        because they lack those runs, as all do (P32).
        """
        voids = [void for promise in self._promises.values() for void in promise.voids]
        if not voids:
            return self.intent.absent
        return frozenset(node for void in voids for node in void.without)

    def _binding_vote(self) -> Vote | None:
        """Return the highest vote (P15), unless it names runs that cannot be and binds nobody (C3).

        It binds as long as a value may be decided: as long as the nodes that are not known never to
        have voted in this epoch may be a majority.  A node that promised votes in no lower ballot.
        """
        vote = self._highest_vote()
        if vote is None or self._fits(vote.view.tail):
            return vote
        never = {node for node, promise in self._promises.items() if promise.accepted is None}
        may_have = {seat.node_id for seat in self.view.roster} - never
        return vote if self.view.elects(may_have) else None

    def _highest_vote(self) -> Vote | None:
        votes = [p.accepted for p in self._promises.values() if p.accepted is not None]
        return max(votes, key=lambda vote: vote.ballot, default=None)

    @property
    def _unusable(self) -> set[str]:
        """Members that only vote."""
        return self._late | self.outvoted

    def _states(self) -> dict[NodeId, MemberState]:
        """Return the states of the answering members of the view."""
        members = set(self.view.members)
        return {
            promise.sender: promise.state
            for promise in self._promises.values()
            if promise.state is not None and promise.sender in members - self._unusable
        }

    def _new_view(self, queue: FinalQueue) -> View:
        view, intent, states = self.view, self.intent, self._states()
        # A roster may have been asked for in an earlier epoch: incarnations are those of now (P21).
        incarnations = {seat.node_id: seat.incarnation for seat in view.roster} | intent.joiners
        roster = tuple(
            replace(seat, incarnation=incarnations.get(seat.node_id, seat.incarnation))
            for seat in (view.roster if intent.roster is None else intent.roster)
        )
        there = [
            seat.node_id
            for seat in roster
            if seat.may_be_member and (seat.node_id in states or seat.node_id in intent.joiners)
        ]
        # If each was silent once, nobody is left out for it: without members nothing goes on.
        members = tuple(node for node in there if node not in intent.excluded) or tuple(there)
        chosen = replace(
            view,
            epoch=view.epoch + 1,
            roster=roster,
            members=members,
            quorum_rule=intent.quorum_rule or view.quorum_rule,
            synchro_rule=intent.synchro_rule or view.synchro_rule,
            base=queue.base,
            tail=queue.tail,
            end=queue.end,
            voided=tuple(self.voids),
        )
        spoken = {node: promise.newest for node, promise in self._promises.items()}
        return replace(chosen, version=raised(view, chosen, spoken, NodeId(self.ballot.node)))

    def is_to_be(self, message: Promise | Flushed) -> bool:
        """Return whether a node has the incarnation that the candidate admits.

        A node that asked to join may have found its former disk again, and be what it was.
        """
        candidate = self.candidate
        return candidate is not None and candidate.is_current(message.sender, message.incarnation)

    # -- flush -------------------------------------------------------------------------------------

    def take_flushed(self, node: str, missing: int, now: int) -> bool:
        """Note that a member-to-be lacks `missing` runs; True: all of them hold all runs.

        Args:
            missing: Below 0: so many transactions before the tail, and nobody counted the tail.
        """
        self._heard[node] = now
        if node in self.intent.joiners and self.candidate is not None:
            lacks = missing if missing >= 0 else len(self.candidate.tail) - missing
            first, _ = self._lacking.get(node, ((now, lacks), (now, lacks)))
            self._lacking[node] = first, (now, lacks)
        if missing == 0:
            self.flushed.add(node)
        if self.candidate is None or not self.flushed.issuperset(self.candidate.members):
            return False
        self._enter(Stage.ACCEPT, now)
        return True

    # -- accept ------------------------------------------------------------------------------------

    def take_accepted(self, node: str) -> bool:
        """Count a vote; True: the candidate is decided (P12)."""
        self.accepted.add(node)
        return self.view.elects(self.accepted)

    # -- time --------------------------------------------------------------------------------------

    def _enter(self, stage: Stage, now: int) -> None:
        self.stage, self._since = stage, now
        self.repeat_at = now + self._patience_us // 4

    def unanswered(self) -> list[NodeId]:
        """Return the nodes to ask again in this stage."""
        if self.stage is Stage.FLUSH:
            assert self.candidate is not None
            return [node for node in self.candidate.members if node not in self.flushed]
        answered = self._promises.keys() if self.stage is Stage.PREPARE else self.accepted
        return [node for node in self.asked() if node not in answered]

    def asked(self) -> list[NodeId]:
        """Return the nodes that this stage asks."""
        if self.stage is Stage.FLUSH:
            assert self.candidate is not None
            return list(self.candidate.members)
        members = set(self.view.members) if self.stage is Stage.PREPARE else set[NodeId]()
        return [s.node_id for s in self.view.roster if s.weight > 0 or s.node_id in members]

    def silent(self, now: int) -> frozenset[str]:
        """Return the members-to-be that were silent for too long (P16).

        Those that are done are included: one of them may alone have had what the others lack.
        """
        if self.stage is not Stage.FLUSH:
            return frozenset()
        limit = now - self._patience_us
        silent = {node for node in self._awaited_in_flush() if self._heard[node] <= limit}
        # All stand still for a joiner: it gets only so long.
        silent.update(node for node in self._joining() if now >= self._until(node))
        return frozenset(silent)

    def _joining(self) -> set[NodeId]:
        """Return the nodes to admit that have not flushed."""
        return self.intent.joiners.keys() & set(self.unanswered())

    def _until(self, node: NodeId) -> int:
        """Return how much time a joiner has for its flush."""
        since, patience = self._since, self._patience_us
        (began, lacked), (at, lacks) = self._lacking.get(node, ((0, 0), (0, 0)))
        done, most = lacked - lacks, since + _JOINERS_TIME * patience
        if done <= 0:
            return since + patience // 2
        return most if at + lacks * (at - began) // done <= most else since + patience

    def _awaited_in_flush(self) -> list[NodeId]:
        """Return the members-to-be that must answer: all, without this one once it is done."""
        done = self.ballot.node if self.ballot.node in self.flushed else ""
        return [node for node in self.asked() if node != done]

    def failed(self, now: int) -> bool:
        """Return whether this attempt is to be given up."""
        if self.stage is Stage.FLUSH:
            return bool(self.silent(now))
        return now >= self._since + self._patience_us

    def next_deadline(self) -> int:
        """Return when to look again."""
        if self.stage is Stage.FLUSH:
            heard = [self._heard[node] + self._patience_us for node in self._awaited_in_flush()]
            heard.extend(map(self._until, self._joining()))
            return min([self.repeat_at, *heard])
        return min(self.repeat_at, self._since + self._patience_us)
