"""Where two sites began to differ, and which sites disagree with the majority."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparktxlog.worker.verify.comparing import (
    PairFinding,
    SiteDifference,
    compare_histories,
    disagreeing,
)
from sparktxlog.worker.verify.histories import HISTORY, SiteHistory


def compared(positions: list[int], *, since: int = 0, **wrong: set[int]) -> PairFinding:
    """Compare two sites; `b` differs from `a` in a table at the positions given for it."""
    sites = {site: SiteHistory(site=site) for site in "ab"}
    for site, history in sites.items():
        for position in positions:
            tables = {
                table: f"{position}:0:{site if position in differs else 0}"
                for table, differs in wrong.items()
            }
            history.add(position, f"hash{position}", {"same": f"{position}:0:0", **tables})
    (pair,) = compare_histories(sites, since=since)
    return pair


def found_by(positions: list[int], *, since: int = 0, **wrong: set[int]) -> list[SiteDifference]:
    return list(compared(positions, since=since, **wrong).differences)


def test_only_positions_of_both_are_compared() -> None:
    sites = {site: SiteHistory(site=site) for site in "ab"}
    for site, positions in (("a", [1, 4, 9, 12]), ("b", [2, 4, 12, 13])):
        for position in positions:
            # They differ wherever only one of them has reported.
            sites[site].add(position, "h", {"t": "1" if position in (4, 12) else site})
    assert compare_histories(sites)[0] == PairFinding(left="a", right="b", compared=12, equal_to=12)
    assert compared([]) == PairFinding(left="a", right="b", compared=0, equal_to=0)


@given(
    positions=st.lists(st.integers(1, 10_000), min_size=1, max_size=300, unique=True).map(sorted),
    data=st.data(),
)
def test_a_difference_that_stays_is_found_exactly(
    positions: list[int], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(positions)))
    found = found_by(positions, t=set(positions[begin:]))
    if begin == len(positions):
        assert found == []
        return
    (difference,) = found
    assert difference.table == "t"
    assert difference.first_differing == positions[begin]
    assert difference.last_equal == (positions[begin - 1] if begin else 0)
    at = positions[begin]
    assert difference.signatures == {"a": f"{at}:0:a", "b": f"{at}:0:b"}


def test_each_table_has_its_own_difference() -> None:
    found = found_by([10, 20, 30, 40], t={40}, u={20, 30, 40})
    assert [(d.table, d.last_equal, d.first_differing) for d in found] == [
        ("t", 30, 40),
        ("u", 10, 20),
    ]


def test_a_repaired_difference_is_history() -> None:
    assert found_by([10, 20, 30, 40], t={20, 30}) == []


def test_a_new_difference_after_a_repair_is_found_from_the_end() -> None:
    (found,) = found_by([10, 20, 25, 30, 50], t={20, 25, 50})
    assert (found.last_equal, found.first_differing) == (30, 50)
    (found,) = found_by([10, 20, 30, 40, 50, 60, 70], t={20, 30, 40, 60, 70})
    assert (found.last_equal, found.first_differing) == (50, 60)


def test_nothing_up_to_a_position_known_equal_is_compared() -> None:
    (found,) = found_by([10, 20, 30, 40], since=20, t={10, 20, 30, 40})
    assert (found.last_equal, found.first_differing) == (20, 30)
    assert found_by([10, 20], since=20, t={10, 20}) == []


@given(
    positions=st.lists(st.integers(1, 500), min_size=1, max_size=60, unique=True).map(sorted),
    data=st.data(),
)
def test_whatever_is_named_is_true(positions: list[int], data: st.DataObject) -> None:
    wrong = {position for position in positions if data.draw(st.booleans())}
    found = found_by(positions, t=wrong)
    assert bool(found) == (positions[-1] in wrong)
    for difference in found:
        assert difference.first_differing in wrong
        assert difference.last_equal not in wrong
        between = range(difference.last_equal + 1, difference.first_differing)
        assert not set(between) & set(positions)


def test_a_missing_table_and_another_order_are_differences() -> None:
    sites = {site: SiteHistory(site=site) for site in "ab"}
    sites["a"].add(7, "x", {"t": "1:0:0"})
    sites["b"].add(7, "y", {})
    found = compare_histories(sites)[0].differences
    assert [(d.table, d.signatures) for d in found] == [
        (HISTORY, {"a": "x", "b": "y"}),
        ("t", {"a": "1:0:0", "b": ""}),
    ]


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
