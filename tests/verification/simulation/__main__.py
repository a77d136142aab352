"""`python -m tests.verification.simulation --seeds 500`: many seeds, or one again.

The last line is `seeds N, events N, epochs N, transactions N, violations N`.  Exit code 1: a seed
violated an invariant or had too little in it, or a rare branch was never taken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter

from rich.console import Console
from rich.progress import track
from tests.verification.seeds import (
    Outcome,
    add_arguments,
    seeds_of,
    tell_marks,
    tell_totals,
    telling,
)
from tests.verification.simulation.marks import EXPECTED, LOST
from tests.verification.simulation.run import HOUR_US, run_seed

#: From so many seeds on every mark must show.
_ENOUGH_FOR_MARKS = 200
#: Each seed counts only with so much in it.
_LEAST_TRANSACTIONS, _LEAST_EPOCHS = 1_000, 3


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    if arguments.seed is not None:
        return _one(arguments.seed)
    seeds = seeds_of(arguments)
    started = perf_counter()
    console = Console(stderr=True)
    running = telling(
        _run_all(seeds, arguments.jobs),
        len(seeds),
        "python -m tests.verification.simulation --seed {}".format,
    )
    outcomes = list(track(running, "seeds", total=len(seeds), console=console, transient=True))
    violations = [outcome for outcome in outcomes if outcome.violation]
    small = [
        outcome
        for outcome in outcomes
        if not outcome.marks.get(LOST)
        and (outcome.transactions < _LEAST_TRANSACTIONS or outcome.epochs < _LEAST_EPOCHS)
    ]
    _report(outcomes, perf_counter() - started)
    for outcome in small[:20]:
        print(
            f"seed {outcome.seed} ({outcome.layout}): only {outcome.transactions} transactions "
            f"and {outcome.epochs} epochs; {_LEAST_TRANSACTIONS} and {_LEAST_EPOCHS} are needed"
        )
    missing = tell_marks(outcomes, EXPECTED, _ENOUGH_FOR_MARKS)
    tell_totals(outcomes, missing, as_json=arguments.json)
    return 1 if violations or missing or small else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.simulation",
        description="Simulate clusters with faults and check the protocol's invariants.",
        epilog="example: make sim SEEDS=10000",
    )
    add_arguments(parser, seeds=500)
    return parser.parse_args()


def _run_all(seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_seed, seeds, chunksize=4)


def _report(outcomes: list[Outcome], seconds: float) -> None:
    """Print the distribution over the seeds."""
    for title, values in (
        ("epochs a seed", [outcome.epochs for outcome in outcomes]),
        ("transactions a seed", [outcome.transactions for outcome in outcomes]),
        ("events a seed", [outcome.events for outcome in outcomes]),
    ):
        values.sort()
        low, middle, high = values[0], values[len(values) // 2], values[-1]
        print(f"{title}: least {low}, median {middle}, most {high}")
    print(f"ordering stood still for {max(o.still_s for o in outcomes):.0f} s at most")
    simulated, spent = sum(o.simulated_s for o in outcomes), sum(o.seconds for o in outcomes)
    print(f"{simulated / 3_600:.0f} simulated hours in {seconds:.0f} s; "
          f"{simulated / max(spent, 1e-9):.0f} x real time a core")  # fmt: skip


def _one(seed: int) -> int:
    outcome = run_seed(seed)
    print(f"seed {seed}, {outcome.layout}, trace {outcome.trace}, {outcome.events} events, "
          f"{outcome.epochs} epochs, {outcome.transactions} transactions of "
          f"{HOUR_US // 1_000_000} s: {outcome.violation or 'no violation'}")  # fmt: skip
    return 1 if outcome.violation else 0


if __name__ == "__main__":
    sys.exit(main())
