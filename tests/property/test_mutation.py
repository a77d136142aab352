"""The table of mutations is complete, and what finds them works; `make mutants` runs all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.verification.mutation import __main__ as command
from tests.verification.mutation.killers import hunt
from tests.verification.mutation.mutant import Killer, plain
from tests.verification.mutation.report import as_json, markdown
from tests.verification.mutation.table import (
    BY_NAME,
    KNOWN_SURVIVORS,
    MUTANTS,
    SURVIVORS,
    missing_rules,
)

from sparktxlog.protocol.master import Master
from sparktxlog.protocol.words.actions import Action
from sparktxlog.protocol.words.events import Event

#: Found by the first few seeds of the simulation.
_QUICK = (
    "no-vote-majority",
    "longest-queue",
    "resubmits-blindly",
    "restamps-backwards",
    "old-incarnation",
    "no-wedge",
    "evicted-works",
)

#: Which mutation of the table is which of the 31 of the design.
_OF_THE_DESIGN = {
    "stamps-wedged": "stamping while wedged",
    "acquires-wedged": "acquiring or adding while wedged",
    "adds-wedged": "acquiring or adding while wedged",
    "no-vote-majority": "no vote majority",
    "longest-queue": "longest queue instead of the union",
    "no-flush": "no flush",
    "promise-forgotten": "promised ballot not durable",
    "acquired-not-durable": "acquired not durable",
    "own-runs-forgotten": "own transaction not durable",
    "reservation-forgotten": "counter not durable",
    "payload-not-durable": "payload not durable",
    "resubmits-blindly": "blind resubmission",
    "no-epoch-tag": "no epoch tag",
    "counter-reused": "a counter that was posted is given again",
    "greatest-promise": "greatest counter instead of the least",
    "quorum-minus-one": "one holder fewer",
    "skip-instead-of-stop": "skipping what is not acquired",
    "accepted-value-ignored": "accepted value ignored",
    "promise-before-headers": "promise without headers, one form",
    "promise-settled-early": "promise without headers, other form",
    "no-data-quorum": "no data quorum",
    "proposers-queue": "proposer's queue instead of the union",
    "accepted-forgotten": "accepted value not durable",
    "amnesiac-votes": "witness without memory",
    "lowest-ballot": "lowest instead of highest accepted ballot",
    "new-voters-decide": "new voters decide",
    "frozen-posts-repeated": "wedged node repeats frozen posts",
    "queue-volatile": "queue volatile",
    "own-counter-left-out": "own counter left out of the least",
    "claims-beyond-gap": "gaps in what is acquired",
    "counter-not-raised": "counter not raised by a final queue",
    "ballot-counter-volatile": "ballot counter volatile",
}
#: Of those, what survived there.
_SIX_SURVIVORS = {
    "frozen-posts-repeated",
    "queue-volatile",
    "own-counter-left-out",
    "claims-beyond-gap",
    "counter-not-raised",
    "ballot-counter-volatile",
}


def test_every_rule_is_broken() -> None:
    assert missing_rules() == []
    assert len(MUTANTS) >= 40
    assert len(BY_NAME) == len(MUTANTS)
    assert "P1b" in {mutant.rule for mutant in MUTANTS}


def test_mutations_of_the_design_are_there() -> None:
    """Twenty-five that were found, and six that survived."""
    assert len(set(_OF_THE_DESIGN.values())) == 31
    assert BY_NAME.keys() >= _OF_THE_DESIGN.keys() >= _SIX_SURVIVORS


def test_survivors_are_the_known_ones() -> None:
    """Nothing else may survive, and each has its reason."""
    assert KNOWN_SURVIVORS == _SIX_SURVIVORS
    assert SURVIVORS <= KNOWN_SURVIVORS
    assert all(len(BY_NAME[name].survives) > 20 for name in SURVIVORS)
    assert all(mutant.killers for mutant in MUTANTS)


@pytest.mark.parametrize("name", _QUICK)
def test_simulation_finds(name: str) -> None:
    kill, runs = hunt(BY_NAME[name], Killer.SIMULATION, budget_s=20.0)
    assert kill is not None, f"{name} survived {runs} seeds"


class _Broken(Master):
    """Breaks down, instead of breaking a rule."""

    def handle_all(
        self, events: Sequence[Event], now: int, wall: int | None = None
    ) -> list[Action]:
        raise KeyError("an error of the mutation")


@pytest.mark.parametrize("killer", Killer)
def test_breaking_down_is_not_being_found(killer: Killer) -> None:
    mutant = replace(BY_NAME["no-wedge"], core=plain(_Broken))
    with pytest.raises(KeyError, match="an error of the mutation") as raised:
        hunt(mutant, killer, budget_s=1.0)
    (note,) = raised.value.__notes__
    assert note.startswith("mutation no-wedge, ")


def test_real_core_is_not_found() -> None:
    """What finds mutations finds nothing in the core itself."""
    real = replace(BY_NAME["no-wedge"], core=plain(Master))
    for killer in Killer:
        kill, runs = hunt(real, killer, budget_s=2.0)
        assert kill is None, f"{killer}: {kill}"
        assert runs


def test_report_tells_survivors() -> None:
    found = command.examine("tripwire-off", budget_s=5.0)
    survived = command.examine("tripwire-off", budget_s=0.1, killers=(Killer.SCHEDULES,))
    page = markdown([found, survived])
    assert "a_contradiction_is_the_senders" in page
    assert "**not expected to survive**" in page
    answer = json.loads(json.dumps(as_json([found, survived])))
    assert (answer["killed"], answer["unexpected"]) == (1, ["tripwire-off"])
