"""Cores with one rule broken each that the exploration must find, at its shortest depth."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from unittest.mock import patch

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol import proposer
from sparktxlog.protocol.balloting import MemberState, Vote
from sparktxlog.protocol.ordering import Ordering
from sparktxlog.protocol.union import FinalQueue
from sparktxlog.protocol.view import Ballot, View
from sparktxlog.protocol.voter import Voter
from sparktxlog.testing.exploration.demanded import DemandedMaster
from sparktxlog.testing.mutation.ordinary import ReusedCounter, Skipping, SmallerQuorum


class SkippingMaster(DemandedMaster):
    """Skips a run that is not acquired yet."""

    ordering_class = Skipping


class ReusingMaster(DemandedMaster):
    """Stamps at the posted counter."""

    ordering_class = ReusedCounter


class SmallerQuorumMaster(DemandedMaster):
    """Appends with one holder too few."""

    ordering_class = SmallerQuorum


class _Unwedged(Ordering):
    """Goes on during an epoch change: freezing drops nothing, and stops nothing (P14)."""

    def freeze(self, now: int) -> None:
        """Do nothing."""


class UnwedgedMaster(DemandedMaster):
    """Is not wedged by a promise."""

    ordering_class = _Unwedged


@contextlib.contextmanager
def no_vote_majority() -> Iterator[type[DemandedMaster]]:
    """One vote decides (P12)."""

    def elects(self: View, voters: Iterable[str]) -> bool:
        return bool(set(voters))

    with patch.object(View, "elects", elects):
        yield DemandedMaster


@contextlib.contextmanager
def longest_instead_of_union() -> Iterator[type[DemandedMaster]]:
    """The final queue is the longest one that was answered, without what was acquired (P15)."""

    def final_queue(states: Mapping[NodeId, MemberState]) -> FinalQueue:
        node = max(states, key=lambda name: (states[name].base.position, name))
        base = states[node].base
        return FinalQueue(holder=node, base=base, tail=(), end=base)

    with patch.object(proposer, "final_queue", final_queue):
        yield DemandedMaster


@contextlib.contextmanager
def accepted_ignored() -> Iterator[type[DemandedMaster]]:
    """A ballot does not ask what was accepted before (P15)."""
    with patch.object(proposer.Proposer, "_highest_vote", lambda self: None):
        yield DemandedMaster


@contextlib.contextmanager
def promise_ignored() -> Iterator[type[DemandedMaster]]:
    """A voter accepts below what it promised (P17)."""

    def accept(self: Voter, ballot: Ballot, view: View) -> bool:
        self.accepted = Vote(ballot=ballot, view=view)
        return True

    with patch.object(Voter, "accept", accept):
        yield DemandedMaster


def _plain(
    core: type[DemandedMaster],
) -> Callable[[], contextlib.AbstractContextManager[type[DemandedMaster]]]:
    return lambda: contextlib.nullcontext(core)


MUTANTS: dict[str, Callable[[], contextlib.AbstractContextManager[type[DemandedMaster]]]] = {
    "skip-instead-of-stop": _plain(SkippingMaster),
    "counter-reused": _plain(ReusingMaster),
    "quorum-minus-one": _plain(SmallerQuorumMaster),
    "not-wedged": _plain(UnwedgedMaster),
    "no-vote-majority": no_vote_majority,
    "longest-instead-of-union": longest_instead_of_union,
    "accepted-ignored": accepted_ignored,
    "promise-ignored": promise_ignored,
}
