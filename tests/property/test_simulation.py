"""The short form of `make sim`: simulated hours with faults, every invariant at every step."""

from __future__ import annotations

import pytest

from sparktxlog.testing.simulation.run import run_seed

#: CI runs `make sim SEEDS=500` beside the tests.
SEEDS = 12


def test_one_seed_is_one_history() -> None:
    first, second, other = run_seed(5), run_seed(5), run_seed(12)
    assert (first.trace, first.steps, first.epochs) == (second.trace, second.steps, second.epochs)
    assert first.layout == other.layout and first.trace != other.trace


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hours_with_faults_violate_nothing() -> None:
    outcomes = [run_seed(seed) for seed in range(SEEDS)]
    assert [f"seed {o.seed}: {o.violation}" for o in outcomes if o.violation] == []
    assert min(outcome.transactions for outcome in outcomes) >= 1_000
    assert min(outcome.epochs for outcome in outcomes) >= 3
