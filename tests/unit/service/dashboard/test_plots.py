"""Lines of a history as paths."""

from __future__ import annotations

import pytest

from sparktxlog.service.dashboard.plots import FIELD, path_of, plots_of, shown


def test_a_path_begins_left_ends_right_and_breaks_at_gaps() -> None:
    at = [100.0, 110, 120, 130, 140, 150, 160, 170, 180]
    values = [0, 5, None, 10, None, None, None, 0, 1]
    path = path_of(at, values, 80, 100, 10)
    assert path == "M120.0 100.0h0L180.0 50.0M300.0 0.0h0M540.0 100.0h0L600.0 90.0"


def test_many_samples_keep_their_peaks() -> None:
    at = [60.0 * number for number in range(1_440)]
    values = [1.0] * 1_440
    values[777] = 9.0
    path = path_of(at, values, at[0], 86_400, 10)
    assert path.count("L") == 359 and path.count(" 10.0") == 1
    assert path.startswith(f"M0.0 {FIELD[1] - 10:.1f}")


def test_plots_have_the_lines_of_their_series_only() -> None:
    series = {"lag.A": [1, 3], "lag.B": [0, None], "lag_s.A": [0.5, 0.25], "state": [0, 1]}
    time, count = plots_of({"at": [0, 10], "series": series}, 3600)
    assert (time.title, [(one.name, one.now, one.most) for one in time.lines]) == (
        "Behind, in time",
        [("A", "250 ms", "500 ms")],
    )
    assert [(one.name, one.now, one.most) for one in count.lines] == [
        ("A", "3", "3"),
        ("B", "–", "0"),
    ]
    assert (time.top, count.top) == ("500 ms", "5")
    assert plots_of({"at": [], "series": {}}, 3600) == []


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 s"),
        (0.0123, "s", "12.3 ms"),
        (600, "s", "10 min"),
        (86_400, "s", "24 h"),
        (1_234_567, "B", "1.23 MB"),
        (999, "", "999"),
        (12_345, "/s", "12.3 k/s"),
    ],
)
def test_values_are_short(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
