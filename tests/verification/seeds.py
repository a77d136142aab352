"""What both simulations say of the seeds they ran, and how they are asked for them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

#: Seeds after which a long run says how far it is.
_TELL_EVERY = 500


@dataclass(slots=True)
class Outcome:
    """What one seed did."""

    seed: int
    layout: str
    trace: str = ""
    events: int = 0
    epochs: int = 0
    transactions: int = 0
    simulated_s: float = 0.0
    #: CPU seconds it took.
    seconds: float = 0.0
    violation: str = ""
    marks: Counter[str] = field(default_factory=Counter)
    #: From the end of the faults until the cluster was whole, where that is measured.
    healed_s: float = 0.0
    #: Longest time in which nothing was ordered that could be, where that is measured.
    still_s: float = 0.0


def add_arguments(parser: argparse.ArgumentParser, seeds: int) -> None:
    """Add the options that say which seeds to run, and how to tell of them.

    Args:
        seeds: Number of seeds that are run if nothing is said.
    """
    parser.add_argument(
        "--seeds", type=int, default=seeds, help=f"number of seeds (default {seeds})"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, help="run this one seed again and say more of it")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")


def seeds_of(asked: argparse.Namespace) -> range:
    """Return the seeds that are asked for."""
    return range(asked.first, asked.first + asked.seeds)


def telling(
    outcomes: Iterable[Outcome], total: int, again: Callable[[int], str]
) -> Iterator[Outcome]:
    """Pass the outcomes on, and tell of each violation as it comes: a long run may be ended.

    Args:
        outcomes: What the seeds did, as they end.
        total: Number of seeds that are run.
        again: The command that shows a seed again.
    """
    violations = 0
    for number, outcome in enumerate(outcomes, start=1):
        if outcome.violation:
            violations += 1
            print(f"seed {outcome.seed} ({outcome.layout}): {outcome.violation}")
            print(f"  again: {again(outcome.seed)}", flush=True)
        if number % _TELL_EVERY == 0:
            print(
                f"{number} of {total} seeds, {violations} violations", file=sys.stderr, flush=True
            )
        yield outcome


def tell_marks(outcomes: Sequence[Outcome], expected: Iterable[str], enough: int) -> list[str]:
    """Print how often the rare branches were taken; return those that never were.

    Args:
        expected: Marks that must show.
        enough: From so many seeds on; with fewer ones none is missing.
    """
    marks = _marks(outcomes)
    print("marks: " + ", ".join(f"{mark} {count}" for mark, count in sorted(marks.items())))
    if len(outcomes) < enough:
        print(f"marks are not checked: that takes {enough} seeds, these are {len(outcomes)}")
        return []
    missing = [mark for mark in expected if not marks[mark]]
    for mark in missing:
        print(f"never happened: {mark}")
    return missing


def tell_totals(outcomes: Sequence[Outcome], missing: list[str], *, as_json: bool) -> None:
    """Print the last line: `seeds N, events N, epochs N, transactions N, violations N`."""
    totals = {
        "seeds": len(outcomes),
        "events": sum(outcome.events for outcome in outcomes),
        "epochs": sum(outcome.epochs for outcome in outcomes),
        "transactions": sum(outcome.transactions for outcome in outcomes),
        "violations": sum(1 for outcome in outcomes if outcome.violation),
    }
    if as_json:
        print(json.dumps({**totals, "marks": dict(_marks(outcomes)), "missing": missing}))
    else:
        print(", ".join(f"{name} {number}" for name, number in totals.items()))


def _marks(outcomes: Sequence[Outcome]) -> Counter[str]:
    marks: Counter[str] = Counter()
    for outcome in outcomes:
        marks += outcome.marks
    return marks
