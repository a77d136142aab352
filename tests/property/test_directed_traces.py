"""Directed traces pass with the real core, and fail with the mutations they are made for."""

from __future__ import annotations

import traceback

import pytest
from tests.verification.mutation.killers import hunt
from tests.verification.mutation.mutant import Killer, Mutant
from tests.verification.mutation.table import MUTANTS
from tests.verification.mutation.traces import TRACES, Trace

from sparktxlog.protocol.master import Master

#: Where the traces assert.
_FILES = {trace.__code__.co_filename for trace in TRACES}


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.__name__)
def test_core_obeys(trace: Trace) -> None:
    trace(Master)


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if Killer.TRACE in m.killers], ids=lambda mutant: mutant.name
)
def test_mutant_does_not(mutant: Mutant) -> None:
    """The trace holds the rule by assertion, the mutated core breaks one."""
    kill, runs = hunt(mutant, Killer.TRACE, budget_s=60.0)
    assert kill is not None, f"{mutant.name} passes {runs} traces"
    assert kill.violation.startswith("AssertionError"), kill.violation


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.__name__)
def test_trace_can_fail(trace: Trace) -> None:
    """An assertion of its own finds some mutation, whichever trace would find that first."""
    assert [mutant.name for mutant in MUTANTS if _fails_by_itself(trace, mutant)]


def _fails_by_itself(trace: Trace, mutant: Mutant) -> bool:
    """Return whether a trace finds a mutation, other than by the disk it writes to."""
    with mutant.core() as core:
        try:
            trace(core)
        except AssertionError as error:
            return traceback.extract_tb(error.__traceback__)[-1].filename in _FILES
    return False
