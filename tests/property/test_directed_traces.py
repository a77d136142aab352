"""Directed traces pass with the real core, and fail with the mutations they are made for."""

from __future__ import annotations

import pytest

from sparktxlog.protocol.master import Master
from sparktxlog.testing.mutation.killers import hunt
from sparktxlog.testing.mutation.mutant import Killer, Mutant
from sparktxlog.testing.mutation.table import MUTANTS
from sparktxlog.testing.mutation.traces import TRACES, Trace


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
