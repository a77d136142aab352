"""The table of mutations is complete, and what finds them works; `make mutants` runs all."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.verification.mutation import __main__ as command
from tests.verification.mutation.__main__ import EXAMINE
from tests.verification.mutation.isolation import run_isolated
from tests.verification.mutation.mutant import (
    BY_NAME,
    KNOWN_SURVIVORS,
    MUTANTS,
    SURVIVORS,
    Killer,
    missing_rules,
    patched_sources,
)
from tests.verification.mutation.report import as_json, pages

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


def test_every_patch_fits() -> None:
    """Who changes a line that a mutation changes, changes the mutation."""
    for mutant in MUTANTS:
        for path, text in patched_sources(mutant.patches).items():
            compile(text, path, "exec")


def test_a_patch_that_does_not_fit_fails() -> None:
    (patch,) = BY_NAME["no-probe"].patches
    with pytest.raises(AssertionError, match=r"suspicion\.py has these lines 0 times"):
        patched_sources((replace(patch, old="        return 17\n"),))
    with pytest.raises(AssertionError, match="has these lines"):
        run_isolated((replace(patch, old="\n"),), EXAMINE, BY_NAME["no-probe"], 1.0)


def test_an_iteration_that_stops_fails() -> None:
    """It would end the list of results, and mutations that were never tried would look found."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        run_isolated((), "builtins:next", iter(()))


@pytest.mark.thorough
def test_simulation_finds() -> None:
    found = command.examine_all(_QUICK, 20.0, [Killer.SIMULATION], jobs=2)
    assert [result.name for result in found if result.kill is None] == []


@pytest.mark.parametrize("killer", Killer)
def test_breaking_down_is_not_being_found(killer: Killer) -> None:
    """An error of a mutation, or of what looks for it, is none of the core."""
    broken = replace(
        BY_NAME["no-probe"].patches[0],
        path="src/sparktxlog/protocol/master.py",
        old="        self._now = now = max(now, self._now)\n        was_set",
        new="        raise KeyError('an error of the mutation')\n        was_set",
    )
    with pytest.raises(KeyError, match="an error of the mutation") as raised:
        run_isolated((broken,), EXAMINE, BY_NAME["no-wedge"], 1.0, [killer])
    (note,) = raised.value.__notes__
    assert note.startswith("mutation no-wedge, ")


def test_a_core_that_collects_without_end_is_found() -> None:
    """It fills its own memory, not that of the machine."""
    greedy = replace(
        BY_NAME["no-probe"].patches[0],
        path="src/sparktxlog/protocol/master.py",
        old="        self._now = now = max(now, self._now)\n        was_set",
        new="        hoard = []\n"
        "        while True:\n"
        "            hoard.append(bytearray(16 << 20))\n"
        "        self._now = now = max(now, self._now)\n        was_set",
    )
    result = run_isolated((greedy,), EXAMINE, BY_NAME["no-wedge"], 1.0, [Killer.TRACE])
    assert result.kill is not None
    assert result.kill.violation == "MemoryError: out of memory"


def test_a_core_that_never_returns_ends_with_its_test() -> None:
    """As a test that took too long ends: without a word to the process, which is busy."""
    task = "import time; print('running', flush=True)\n"
    task += "end = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
    program = f"from {run_isolated.__module__} import run_isolated\n"
    program += f"run_isolated((), 'builtins:exec', {task!r})"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        try:
            assert starter.stdout.readline() == "running\n"
        finally:
            starter.kill()
        # Nobody can write to it any more.
        assert starter.communicate(timeout=60) == ("", None)


@pytest.mark.thorough
def test_real_core_is_not_found() -> None:
    """What finds mutations finds nothing in the core itself."""
    result = run_isolated((), EXAMINE, BY_NAME["no-wedge"], 2.0, list(Killer))
    assert result.kill is None
    assert all(result.tried[killer] for killer in Killer)


def test_report_tells_survivors() -> None:
    (found,) = command.examine_all(["tripwire-off"], 5.0)
    (survived,) = command.examine_all(["tripwire-off"], 0.1, [Killer.SCHEDULES])
    text = "\n".join(pages([found, survived]).values())
    assert "a_contradiction_is_the_senders" in text
    assert "**not expected to survive**" in text
    answer = json.loads(json.dumps(as_json([found, survived])))
    assert (answer["killed"], answer["unexpected"]) == (1, ["tripwire-off"])
