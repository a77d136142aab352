"""Names and values of restore points."""

from __future__ import annotations

import pytest

from sparktxlog.errors import InvalidNameError, InvalidRequestError, NotFoundError
from sparktxlog.model.restore_point import (
    RestorePoint,
    check_points,
    find_point,
    keep_hours,
    point_key,
    points_in,
)

POINT = RestorePoint(name="before", made_at=7, position=12, chain_hash="ab", note="why")


def test_points_are_properties_and_come_back_by_position() -> None:
    begun = RestorePoint(name="begun", made_at=9)
    later = RestorePoint(name="after", made_at=8, position=20)
    properties = {point_key(p.name): p.to_value() for p in (later, POINT, begun)}
    assert points_in(properties | {"team": "sales"}) == [begun, POINT, later]
    assert find_point("before", properties) == POINT
    with pytest.raises(NotFoundError, match="begun") as caught:
        find_point("begun", properties)
    assert caught.value.hint == "Points: before, after."
    with pytest.raises(NotFoundError) as caught:
        find_point("x", {})
    assert "restore-point create" in caught.value.hint


@pytest.mark.parametrize("name", ["", ".x", "a b", "a/b", "x" * 101, "é"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="cannot name"):
        point_key(name)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yes",
        "[]",
        "7",
        "{}",
        "[" * 100_000,
        '{"made_at": "now"}',
        '{"made_at": -1}',
        '{"made_at": 1, "position": 1.5}',
        '{"made_at": 1, "position": -3}',
        '{"made_at": 1, "note": null}',
        '{"made_at": 1' + "0" * 30 + "}",
    ],
)
def test_what_says_no_point_is_refused_and_left_out(value: str) -> None:
    """Every user may set properties of a table; each worker's report looks at these."""
    given = {"point.bad": value, point_key("before"): POINT.to_value()}
    with pytest.raises(InvalidRequestError, match="'bad'") as caught:
        check_points(given)
    assert caught.value.definite and "restore-point create" in caught.value.hint
    assert points_in(given) == [POINT]
    with pytest.raises(InvalidNameError):
        check_points({"point.a b": POINT.to_value()})
    check_points({"point.bad": None, "team": value, point_key("x"): POINT.to_value()})


def test_a_point_of_a_later_release_is_one() -> None:
    assert points_in({"point.p": '{"made_at": 1, "name": "q", "more": [1]}'}) == [
        RestorePoint(name="p", made_at=1)
    ]


def test_files_are_kept_since_the_oldest_point() -> None:
    hour = 3_600_000_000
    young = RestorePoint(name="young", made_at=90 * hour)
    assert keep_hours([], 100 * hour) == 0
    assert keep_hours([young], 100 * hour) == 12
    assert keep_hours([young, RestorePoint(name="old", made_at=0)], 100 * hour) == 102
