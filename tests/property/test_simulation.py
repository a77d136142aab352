"""The short form of `make sim`: simulated hours with faults, every invariant at every step."""

from __future__ import annotations

from collections import Counter

import pytest

from sparktxlog.testing.simulation.marks import EXPECTED
from sparktxlog.testing.simulation.run import Outcome, run_seed

SEEDS = 500


def test_one_seed_is_one_history() -> None:
    first, second, other = run_seed(5), run_seed(5), run_seed(12)
    assert (first.trace, first.steps, first.epochs) == (second.trace, second.steps, second.epochs)
    assert first.layout == other.layout and first.trace != other.trace


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hours_with_faults_violate_nothing() -> None:
    marks: Counter[str] = Counter()
    outcomes: list[Outcome] = []
    for seed in range(SEEDS):
        outcome = run_seed(seed)
        again = f"python -m sparktxlog.testing.simulation --seed {seed}"
        assert not outcome.violation, f"{outcome.violation}\nagain: {again}"
        marks += outcome.marks
        outcomes.append(outcome)
    assert [mark for mark in EXPECTED if not marks[mark]] == []
    assert min(outcome.transactions for outcome in outcomes) >= 1_000
    assert min(outcome.epochs for outcome in outcomes) >= 3
