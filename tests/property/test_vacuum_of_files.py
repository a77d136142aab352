"""Vacuum of a commit table in all histories of a few steps: what is needed stays (decision 51)."""

from __future__ import annotations

import pytest
from tests.verification.model import vacuum_of_files
from tests.verification.model.vacuum_of_files import Vacuum, shortest_counterexample

pytestmark = pytest.mark.thorough

#: Steps of the histories in which the rules are looked at.
_MOST = 13


@pytest.mark.parametrize("late", [2, 6])
def test_what_somebody_needs_stays_in_all_short_histories(late: int) -> None:
    """Versions come soon, or later than the retention: then nobody may read the old ones."""
    assert shortest_counterexample(Vacuum(late), _MOST) is None


@pytest.mark.parametrize(
    ("rules", "late", "promise", "last"),
    [
        (vacuum_of_files.NewestOnly, 2, "read", "opens, places, vacuum"),
        (vacuum_of_files.AnyAge, 2, "staged", "writes a file, vacuum"),
        (vacuum_of_files.AgeOfBytes, 6, "placed", "names a file, vacuum"),
        (vacuum_of_files.StagedForgotten, 6, "placed", "file is here, vacuum"),
        (vacuum_of_files.LogEnd, 6, "whole", "time, vacuum"),
    ],
)
def test_another_rule_breaks_a_promise(
    rules: type[Vacuum], late: int, promise: str, last: str
) -> None:
    found = shortest_counterexample(rules(late), _MOST)
    assert found is not None
    steps, broken = found
    assert broken.startswith(f"{promise}: "), found
    assert ", ".join(steps).endswith(last), found
