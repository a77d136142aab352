"""Running what may find a mutation, until the first violation or the end of the budget.

Found is a mutation by an invariant or an assertion (of a trace, the checks, the simulated disk or
the core), or by the limit of memory of its process.  Any other exception is an error of the
mutation, or of what looks for it, and is raised.
The mutation itself is in the modules that this process imported: see `isolation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import process_time
from typing import Any

from tests.verification.mutation.mutant import Kill, Killer, Mutant, Result
from tests.verification.mutation.traces import TRACES, Trace
from tests.verification.simulation.run import LAYOUTS, guarded, run_seed
from tests.verification.simulation.world import Layout
from tests.verification.strategies import run_schedule

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.master import Master

#: Simulated time, mean pause of faults and transactions of a simulated seed: much happens in it.
_STRESS = {"hour_us": 400_000_000, "fault_pause_us": 5_000_000, "transactions": 600}
_RIVALS = {"_rivals": 120, "_crash": 60}
_SLOW = {"_slow_disk": 60}
#: Beside those of the simulation, for single mutations.
_MORE_LAYOUTS = (
    # Here a majority of votes may hold too little data.
    Layout(name="three-and-two-witnesses", masters={"a": 1, "b": 1, "c": 1}, witnesses=("v", "w")),
    # Ballots against ballots, with crashes between.
    Layout(name="two-rivals", masters={"a": 1, "b": 1}, witnesses=("w",), faults=_RIVALS),
    Layout(name="three-rivals", masters={"a": 1, "b": 1, "c": 1}, faults=_RIVALS),
    Layout(name="five-rivals", masters=dict.fromkeys("abcde", 1), faults=_RIVALS),
    # Slow disks, whose nodes stand aside.
    Layout(name="three-slow", masters={"a": 1, "b": 1, "c": 1}, faults=_SLOW, aside=True),
    Layout(name="five-slow", masters=dict.fromkeys("abcde", 1), faults=_SLOW, aside=True),
    # Only a side with a whole set goes on (P40).
    guarded(Layout(name="pairs-guarded", masters=dict.fromkeys("abcd", 1), witnesses=("w",))),
    # Followers that are often down, cut off, promoted and made followers again (P38).
    Layout(
        name="three-followed",
        masters={"a": 1, "b": 1, "c": 1},
        followers={"f": (), "g": ("f",)},
        faults={"_turn_follower": 30},
    ),
    # Hours as `make sim` has them: with the pauses between faults in which I12 wants progress.
    Layout(name="three-hours", masters={"a": 1, "b": 1, "c": 1}),
    Layout(
        name="followed-hours",
        masters={"a": 1, "b": 1, "c": 1},
        followers={"f": (), "g": ("f",)},
    ),
)
LAYOUTS_BY_NAME = {layout.name: layout for layout in (*LAYOUTS, *_MORE_LAYOUTS)}
_FIRST_SCHEDULE, _MAX_SCHEDULES = 5_000, 1_000
_MAX_SEEDS = 2_000


def hunt(mutant: Mutant, killer: Killer, budget_s: float) -> tuple[Kill | None, int]:
    """Return how a killer found the mutation (None = not), and how many runs it took.

    Args:
        budget_s: No run begins later, CPU seconds: how busy the machine is changes nothing.

    Raises:
        Exception: A run ended in something else than an invariant, an assertion or the limit of
            memory; a note says which.
    """
    started, runs = process_time(), 0
    for where, run in _runs(mutant, killer):
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
            kill = Kill(killer=killer, where=where, runs=runs, seconds=seconds, violation=violation)
            return kill, runs
    return None, runs


def examine(mutant: Mutant, budget_s: float, killers: Sequence[Killer] = ()) -> Result:
    """Let the killers of a mutation look for it, in their order.

    Args:
        budget_s: For each killer, CPU seconds.
        killers: Only these; empty = those of the table.
    """
    started = process_time()
    tried: dict[str, int] = {}
    for killer in killers or mutant.killers:
        kill, runs = hunt(mutant, killer, budget_s)
        if kill is not None:
            spent = process_time() - started
            return Result(name=mutant.name, kill=kill, tried=tried, seconds=spent)
        tried[str(killer)] = runs
    return Result(name=mutant.name, kill=None, tried=tried, seconds=process_time() - started)


def _runs(mutant: Mutant, killer: Killer) -> Iterator[tuple[str, Callable[[], str]]]:
    if killer is Killer.TRACE:
        for trace in TRACES:
            yield trace.__name__, partial(_trace, trace)
    elif killer is Killer.SCHEDULES:
        for seed in range(_FIRST_SCHEDULE, _FIRST_SCHEDULE + _MAX_SCHEDULES):
            yield f"schedule {seed}", partial(_schedule, seed)
    else:
        layouts = [LAYOUTS_BY_NAME[name] for name in mutant.layouts] or LAYOUTS
        for seed in range(_MAX_SEEDS):
            layout = layouts[seed % len(layouts)]
            yield f"seed {seed} of {layout.name}", partial(hunted, seed, layout)


def _trace(trace: Trace) -> str:
    trace(Master)
    return ""


def _schedule(seed: int) -> str:
    run_schedule(seed)
    return ""


def hunted(seed: int, layout: Layout) -> str:
    """Return what a simulated seed violates, under stress unless its layout is of whole hours."""
    stress: dict[str, Any] = {} if layout.name.endswith("-hours") else _STRESS
    return run_seed(seed, layout=layout, **stress).violation


def _violation(run: Callable[[], str]) -> str:
    """Run once; return what is violated, if anything is."""
    try:
        return run()
    except (InvariantViolation, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    except MemoryError:
        return "MemoryError: out of memory"
