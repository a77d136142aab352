"""Directed traces pass with the real core, and fail with the mutations they are made for."""

from __future__ import annotations

import pytest
from tests.verification.mutation.isolation import run_all
from tests.verification.mutation.mutant import MUTANTS, Killer
from tests.verification.mutation.traces import TRACES, Trace

from sparktxlog.protocol.master import Master

_FAILING = "tests.verification.mutation.traces:failing_traces"


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.__name__)
def test_core_obeys(trace: Trace) -> None:
    trace(Master)


#: Each mutation costs the start of a process.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def failing() -> dict[str, dict[str, bool]]:
    """Return the traces that each mutation fails by an assertion, by its name.

    Only of mutations that a trace shall find: each costs the start of a process.
    """
    traced = [mutant for mutant in MUTANTS if Killer.TRACE in mutant.killers]
    found = run_all([(mutant.patches, _FAILING, ()) for mutant in traced], jobs=2)
    return {mutant.name: traces for mutant, traces in zip(traced, found, strict=True)}


@pytest.mark.thorough
def test_mutants_do_not(failing: dict[str, dict[str, bool]]) -> None:
    """Traces hold the rules by assertions; each mutated core breaks one."""
    assert [name for name, traces in failing.items() if not traces] == []


@pytest.mark.thorough
def test_every_trace_can_fail(failing: dict[str, dict[str, bool]]) -> None:
    """An assertion of its own finds some mutation, whichever trace would find that first."""
    can_fail = {trace for traces in failing.values() for trace, own in traces.items() if own}
    assert [trace.__name__ for trace in TRACES if trace.__name__ not in can_fail] == []
