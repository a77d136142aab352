"""Maintenance windows and declared maintenance."""

from __future__ import annotations

from datetime import datetime

import pytest

from sparktxlog.config.maintenance_times import is_open, lasts, read_until, read_windows


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1e6)


@pytest.mark.parametrize(
    ("windows", "at", "opened"),
    [
        ("", "2024-01-01T12:00Z", True),
        ("daily 02:00-06:00", "2024-01-01T02:00Z", True),
        ("daily 02:00-06:00", "2024-01-01T06:00Z", False),
        ("sat,sun 00:00-24:00", "2024-01-06T23:59Z", True),  # a Saturday
        ("sat,sun 00:00-24:00", "2024-01-08T00:00Z", False),
        ("mon-fri 01:00-02:00; sun 10:00-11:00", "2024-01-07T10:30Z", True),
        ("fri-mon 01:00-02:00", "2024-01-07T01:30Z", True),
        ("fri 22:00-04:00", "2024-01-06T03:59Z", True),  # begun on Friday
        ("fri 22:00-04:00", "2024-01-05T03:59Z", False),
    ],
)
def test_windows_are_open_at_their_times(windows: str, at: str, opened: bool) -> None:
    assert is_open(read_windows(windows), us(at)) is opened


@pytest.mark.parametrize(
    "text", ["02:00-06:00", "someday 02:00-06:00", "daily 25:00-26:00", "daily 1:75-2:00", 5]
)
def test_other_texts_are_refused_with_the_form(text: object) -> None:
    with pytest.raises(ValueError, match="daily 02:00-06:00"):
        read_windows(text)


def test_a_declared_maintenance_ends_at_its_time() -> None:
    until = read_until("2024-01-01T04:00+02:00")
    assert until == "2024-01-01T02:00:00Z"
    assert lasts(until, us("2024-01-01T01:59Z")) and not lasts(until, us("2024-01-01T02:00Z"))
    assert read_until("") == "" and not lasts("", 0)
    with pytest.raises(ValueError, match="expected a time"):
        read_until("tomorrow")
