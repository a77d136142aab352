"""Directed traces pass with the real core, and fail with the mutations they are made for."""

from __future__ import annotations

import json
from pathlib import Path

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


#: Traces that a mutation is known to fail, all traces together; others are run if these pass.
_KNOWN = Path(__file__).parents[1] / "testdata" / "failing_traces.json"


@pytest.fixture(scope="module")
def failing(pytestconfig: pytest.Config) -> dict[str, dict[str, bool]]:
    """Return traces that each mutation fails by an assertion, by its name.

    Only of mutations that a trace shall find: each costs a process.  `pytest --rewrite` runs all
    traces with each of them, and notes what it found.
    """
    traced = [mutant for mutant in MUTANTS if Killer.TRACE in mutant.killers]
    rewrite = pytestconfig.getoption("--rewrite")
    known = {} if rewrite else json.loads(_KNOWN.read_text())
    tasks = [(mutant.patches, _FAILING, (known.get(mutant.name, ()),)) for mutant in traced]
    found = {m.name: traces for m, traces in zip(traced, run_all(tasks, jobs=2), strict=True)}
    if rewrite:
        lines = (f'"{name}": {json.dumps(own)}' for name, own in _shared_out(found).items())
        _KNOWN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return found


def _shared_out(failing: dict[str, dict[str, bool]]) -> dict[str, list[str]]:
    """Give each mutation traces that find it, and each trace a mutation that it finds."""
    shared: dict[str, list[str]] = {}
    given: set[str] = set()
    # Who fails few traces chooses first.
    for name, traces in sorted(failing.items(), key=lambda item: len(item[1])):
        own = [trace for trace, is_own in traces.items() if is_own]
        new = [trace for trace in own if trace not in given]
        given.update(new)
        shared[name] = new or own[:1] or [*traces][:1]
    return {name: shared[name] for name in failing if shared[name]}


@pytest.mark.thorough
def test_mutants_do_not(failing: dict[str, dict[str, bool]]) -> None:
    """Traces hold the rules by assertions; each mutated core breaks one."""
    assert [name for name, traces in failing.items() if not traces] == []


@pytest.mark.thorough
def test_every_trace_can_fail(failing: dict[str, dict[str, bool]]) -> None:
    """An assertion of its own finds some mutation, whichever trace would find that first."""
    can_fail = {trace for traces in failing.values() for trace, own in traces.items() if own}
    never = [trace.__name__ for trace in TRACES if trace.__name__ not in can_fail]
    assert never == [], "if an older mutation fails it, `pytest --rewrite` of this file notes it"
