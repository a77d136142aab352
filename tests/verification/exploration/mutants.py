"""Cores with one rule broken each that the exploration must find, at its shortest depth."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest.mock import patch

from tests.verification.exploration.demanded import DemandedMaster
from tests.verification.mutation import deciding
from tests.verification.mutation.ordinary import ReusedCounter, Skipping, SmallerQuorum

from sparktxlog.protocol.epoch import proposer
from sparktxlog.protocol.epoch.voter import Voter
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.words.view import View

_Core = Callable[[], contextlib.AbstractContextManager[type[DemandedMaster]]]


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
        """Do nothing, unless this is a witness, which has nothing to go on with."""
        config = self._config
        if any(seat.witness and seat.node_id == config.node_id for seat in config.roster):
            super().freeze(now)


class UnwedgedMaster(DemandedMaster):
    """Is not wedged by a promise."""

    ordering_class = _Unwedged


def _patched(target: object, name: str, wrong: object) -> _Core:
    """Return a core with one function of the protocol replaced, as `mutation` does it."""

    @contextlib.contextmanager
    def core() -> Iterator[type[DemandedMaster]]:
        with patch.object(target, name, wrong):
            yield DemandedMaster

    return core


def _plain(core: type[DemandedMaster]) -> _Core:
    return lambda: contextlib.nullcontext(core)


MUTANTS: dict[str, _Core] = {
    "skip-instead-of-stop": _plain(SkippingMaster),
    "counter-reused": _plain(ReusingMaster),
    "quorum-minus-one": _plain(SmallerQuorumMaster),
    "not-wedged": _plain(UnwedgedMaster),
    "no-vote-majority": _patched(View, "elects", deciding.any_vote),
    "longest-instead-of-union": _patched(proposer, "final_queue", deciding.longest_queue),
    "accepted-ignored": _patched(proposer.Proposer, "_highest_vote", deciding.no_vote),
    "promise-ignored": _patched(Voter, "accept", deciding.accept_anything),
}
