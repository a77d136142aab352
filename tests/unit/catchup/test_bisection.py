"""The first difference of two sites, against a dumb walk over all positions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparktxlog.catchup.bisection import (
    HISTORY,
    Difference,
    common_positions,
    disagreeing,
    standing_differences,
)


class Sites:
    """Two sites; `b` differs from `a` in a table at the positions given for it."""

    def __init__(self, positions: list[int], **wrong: set[int]) -> None:
        self.positions = positions
        self.wrong = wrong
        self.asked: list[tuple[str, int]] = []

    def signature_at(self, site: str, position: int) -> Mapping[str, str]:
        self.asked.append((site, position))
        state = {HISTORY: f"hash{position}", "same": f"{position}:0:0"}
        for table, differs in self.wrong.items():
            state[table] = f"{position}:0:{site if position in differs else 0}"
        return state

    def find(self, known_equal: int = 0) -> list[Difference]:
        return standing_differences(
            "a", "b", self.positions, self.signature_at, known_equal=known_equal
        )


def test_only_positions_of_both_are_compared() -> None:
    assert common_positions([1, 4, 9, 12], [2, 4, 12, 13]) == [4, 12]
    assert common_positions([], [1]) == []
    assert standing_differences("a", "b", [], lambda *_: pytest.fail("asked")) == []


@given(
    positions=st.lists(st.integers(1, 10_000), min_size=1, max_size=300, unique=True).map(sorted),
    data=st.data(),
)
def test_a_difference_that_stays_is_found_exactly_with_few_questions(
    positions: list[int], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(positions)))
    sites = Sites(positions, t=set(positions[begin:]))
    found = sites.find()
    if begin == len(positions):
        assert found == [] and len(sites.asked) == 2
        return
    (difference,) = found
    assert difference.table == "t"
    assert difference.first_differing == positions[begin]
    assert difference.last_equal == (positions[begin - 1] if begin else 0)
    assert (difference.left, difference.right) == (f"{positions[begin]}:0:a",
                                                   f"{positions[begin]}:0:b")  # fmt: skip
    assert len(sites.asked) <= 2 * (2 * math.log2(len(positions) + 1) + 2)
    assert len(set(sites.asked)) == len(sites.asked)


def test_each_table_has_its_own_difference() -> None:
    found = Sites([10, 20, 30, 40], t={40}, u={20, 30, 40}).find()
    assert [(d.table, d.last_equal, d.first_differing) for d in found] == [
        ("t", 30, 40),
        ("u", 10, 20),
    ]


def test_a_repaired_difference_is_history() -> None:
    assert Sites([10, 20, 30, 40], t={20, 30}).find() == []


def test_a_new_difference_after_a_repair_is_found_from_the_end() -> None:
    # Bisection from the beginning would name (10, 20], which was repaired.
    (found,) = Sites([10, 20, 25, 30, 50], t={20, 25, 50}).find()
    assert (found.last_equal, found.first_differing) == (30, 50)


def test_behind_a_position_known_equal_nothing_older_is_asked() -> None:
    # The repair at 40 lies between two galloping steps: what is named is true, but older.
    positions = [10, 20, 30, 40, 50, 60, 70]
    sites = Sites(positions, t={20, 30, 40, 60, 70})
    (found,) = sites.find()
    assert (found.last_equal, found.first_differing) in {(10, 20), (50, 60)}
    sites.asked.clear()
    (found,) = sites.find(known_equal=50)
    assert (found.last_equal, found.first_differing) == (50, 60)
    assert min(position for _, position in sites.asked) > 50


@given(
    positions=st.lists(st.integers(1, 500), min_size=1, max_size=60, unique=True).map(sorted),
    data=st.data(),
)
def test_whatever_is_named_is_true(positions: list[int], data: st.DataObject) -> None:
    wrong = {position for position in positions if data.draw(st.booleans())}
    found = Sites(positions, t=wrong).find()
    assert bool(found) == (positions[-1] in wrong)
    for difference in found:
        assert difference.first_differing in wrong
        assert difference.last_equal not in wrong
        between = range(difference.last_equal + 1, difference.first_differing)
        assert not set(between) & set(positions)


def test_a_missing_table_and_another_order_are_differences() -> None:
    states = {"a": {HISTORY: "x", "t": "1:0:0"}, "b": {HISTORY: "y"}}
    found = standing_differences("a", "b", [7], lambda site, _: states[site])
    assert [(d.table, d.left, d.right) for d in found] == [(HISTORY, "x", "y"), ("t", "1:0:0", "")]


@pytest.mark.parametrize(
    ("signatures", "sites"),
    [
        ({}, ()),
        ({"a": "1", "b": "2"}, ()),
        ({"a": "1", "b": "1", "c": "1"}, ()),
        ({"a": "1", "b": "2", "c": "1"}, ("b",)),
        ({"a": "1", "b": "2", "c": "3"}, ()),
        ({"a": "1", "b": "2", "c": "1", "d": "2"}, ()),
        ({"a": "1", "b": "2", "c": "1", "d": "1", "e": "3"}, ("b", "e")),
    ],
)
def test_the_majority_is_more_than_half_of_three(
    signatures: dict[str, str], sites: tuple[str, ...]
) -> None:
    assert disagreeing(signatures) == sites
