"""Running what may find a mutation, until the first violation or the end of the budget.

Found is a mutation by an invariant or an assertion: of a trace, the checks, the simulated disk or
the core.  Any other exception is an error of the mutation, or of what looks for it, and is raised.
The mutation itself lies in place only for its own runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import process_time

from tests.verification.mutation.mutant import Killer, Mutant
from tests.verification.mutation.traces import TRACES, Trace
from tests.verification.simulation.run import LAYOUTS, run_seed
from tests.verification.simulation.world import Layout
from tests.verification.strategies import run_schedule

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.master import Master

#: Simulated time, mean pause of faults and transactions of a simulated seed: much happens in it.
_STRESS = {"hour_us": 400_000_000, "fault_pause_us": 5_000_000, "transactions": 600}
_RIVALS = {"_rivals": 120, "_crash": 60}
#: Beside those of the simulation, for single mutations.
_MORE_LAYOUTS = (
    # Here a majority of votes may hold too little data.
    Layout(name="three-and-two-witnesses", masters={"a": 1, "b": 1, "c": 1}, witnesses=("v", "w")),
    # Ballots against ballots, with crashes between.
    Layout(name="two-rivals", masters={"a": 1, "b": 1}, witnesses=("w",), faults=_RIVALS),
    Layout(name="three-rivals", masters={"a": 1, "b": 1, "c": 1}, faults=_RIVALS),
    Layout(name="five-rivals", masters=dict.fromkeys("abcde", 1), faults=_RIVALS),
    # Hours as `make sim` has them: with the pauses between faults in which I12 wants progress.
    Layout(name="three-hours", masters={"a": 1, "b": 1, "c": 1}),
)
LAYOUTS_BY_NAME = {layout.name: layout for layout in (*LAYOUTS, *_MORE_LAYOUTS)}
_FIRST_SCHEDULE, _MAX_SCHEDULES = 5_000, 1_000
_MAX_SEEDS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """How a mutation was found."""

    killer: Killer
    #: Seed, or name of the trace.
    where: str
    #: Runs until then, this one included.
    runs: int
    #: CPU seconds until then.
    seconds: float
    violation: str


def hunt(mutant: Mutant, killer: Killer, budget_s: float) -> tuple[Kill | None, int]:
    """Return how a killer found the mutation (None = not), and how many runs it took.

    Args:
        budget_s: No run begins later, CPU seconds: how busy the machine is changes nothing.

    Raises:
        Exception: A run ended in something else than an invariant or an assertion; a note says
            which.
    """
    started, runs = process_time(), 0
    with mutant.core() as core:
        for where, run in _runs(mutant, killer, core):
            if runs and process_time() - started > budget_s:
                break
            runs += 1
            try:
                violation = _violation(run)
            except Exception as error:
                error.add_note(f"mutation {mutant.name}, {where}")
                raise
            if violation:
                seconds = process_time() - started
                kill = Kill(
                    killer=killer, where=where, runs=runs, seconds=seconds, violation=violation
                )
                return kill, runs
    return None, runs


def _runs(
    mutant: Mutant, killer: Killer, core: type[Master]
) -> Iterator[tuple[str, Callable[[], str]]]:
    if killer is Killer.TRACE:
        for trace in TRACES:
            yield trace.__name__, partial(_trace, trace, core)
    elif killer is Killer.SCHEDULES:
        for seed in range(_FIRST_SCHEDULE, _FIRST_SCHEDULE + _MAX_SCHEDULES):
            yield f"schedule {seed}", partial(_schedule, seed, core)
    else:
        layouts = [LAYOUTS_BY_NAME[name] for name in mutant.layouts] or LAYOUTS
        for seed in range(_MAX_SEEDS):
            layout = layouts[seed % len(layouts)]
            yield f"seed {seed} of {layout.name}", partial(hunted, seed, layout, core)


def _trace(trace: Trace, core: type[Master]) -> str:
    trace(core)
    return ""


def _schedule(seed: int, core: type[Master]) -> str:
    run_schedule(seed, core)
    return ""


def hunted(seed: int, layout: Layout, core: type[Master]) -> str:
    """Return what a simulated seed violates, under stress unless its layout is of whole hours."""
    stress = {} if layout.name.endswith("-hours") else _STRESS
    return run_seed(seed, layout=layout, master_class=core, **stress).violation


def _violation(run: Callable[[], str]) -> str:
    """Run once; return what is violated, if anything is."""
    try:
        return run()
    except (InvariantViolation, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
