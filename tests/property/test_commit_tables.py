"""Commit tables in all histories of a few steps: the rules of decision 47 keep every promise.

Each design that was rejected breaks one; the shortest history in which it does is named here, and
in docs/decisions/0047-commit-tables.md.
"""

from __future__ import annotations

import pytest
from tests.verification.model import commit_tables
from tests.verification.model.commit_tables import Design, shortest_counterexample

pytestmark = pytest.mark.thorough

#: Steps of the histories in which the rules are looked at.
_MOST = 12
#: The same with a third site, which has many more histories.
_MOST_OF_THREE = 8


def test_the_rules_keep_every_promise_in_all_short_histories() -> None:
    assert shortest_counterexample(Design(), _MOST) is None


def test_a_third_site_changes_nothing_of_that() -> None:
    assert shortest_counterexample(Design(), _MOST_OF_THREE, 3) is None


@pytest.mark.parametrize(
    ("design", "promise", "history"),
    [
        (
            commit_tables.JudgedByTheNode,
            "told",
            "A asks, A orders, B asks, B orders, B learns, B learns, B answers 200",
        ),
        (
            commit_tables.JudgedByName,
            "told",
            "A asks, replaced, A orders, A learns, A learns, A answers 200",
        ),
        (
            commit_tables.EachRequestCounts,
            "told",
            "A asks, A orders, A gives up, A asks again, A withdraws",
        ),
        (
            commit_tables.AnsweredBeforePlaced,
            "blind",
            "A asks, A orders, B asks, B orders, B learns, B learns, B answers 409",
        ),
        (
            commit_tables.ShownBeforePlaced,
            "blind",
            "replaced, A learns, A asks",
        ),
        (
            commit_tables.ConflictIfLate,
            "told",
            "A asks, A orders, A gives up",
        ),
        (
            commit_tables.PublishedBeforeAnswer,
            "history",
            "A asks, A publishes",
        ),
        (
            commit_tables.PlacedWhenTaken,
            "history",
            "A asks",
        ),
        (
            commit_tables.PlacedInAnyOrder,
            "gap",
            "replaced, A learns, A places, A asks, A orders, B learns, B learns, B places",
        ),
        (
            commit_tables.KeptAfterForce,
            "history",
            "B asks, split, B orders, B learns, B places, B gives way",
        ),
    ],
)
def test_a_rejected_design_breaks_a_promise(
    design: type[Design], promise: str, history: str
) -> None:
    steps = history.split(", ")
    found = shortest_counterexample(design(), len(steps))
    assert found is not None
    assert (found[0], found[1].partition(":")[0]) == (steps, promise), found
    assert shortest_counterexample(design(), len(steps) - 1) is None
