"""The table of mutations is complete, and what finds them works; `make mutants` runs all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sparktxlog.protocol.master import Master
from sparktxlog.testing.mutation import __main__ as command
from sparktxlog.testing.mutation.killers import hunt
from sparktxlog.testing.mutation.mutant import Killer, plain
from sparktxlog.testing.mutation.report import as_json, markdown
from sparktxlog.testing.mutation.table import (
    BY_NAME,
    KNOWN_SURVIVORS,
    MUTANTS,
    SURVIVORS,
    missing_rules,
)

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


def test_every_rule_is_broken() -> None:
    assert missing_rules() == []
    assert len(MUTANTS) >= 40
    assert len(BY_NAME) == len(MUTANTS)
    assert "P1b" in {mutant.rule for mutant in MUTANTS}


def test_survivors_are_the_known_ones() -> None:
    """Nothing else may survive, and each has its reason."""
    assert SURVIVORS <= KNOWN_SURVIVORS
    assert all(len(BY_NAME[name].survives) > 20 for name in SURVIVORS)
    assert all(mutant.killers for mutant in MUTANTS)


@pytest.mark.parametrize("name", _QUICK)
def test_simulation_finds(name: str) -> None:
    kill, runs = hunt(BY_NAME[name], Killer.SIMULATION, budget_s=20.0)
    assert kill is not None, f"{name} survived {runs} seeds"


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
    assert "broken_promise_halts" in page
    assert "**not expected to survive**" in page
    answer = json.loads(json.dumps(as_json([found, survived])))
    assert (answer["killed"], answer["unexpected"]) == (1, ["tripwire-off"])
