"""When upkeep may run, and until when a node is declared to be in maintenance; all times UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"(\S+)\s+(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")
_FORM = (
    "expected windows such as 'daily 02:00-06:00; sat,sun 00:00-24:00': days (daily, mon-fri, "
    "sat,sun) and times in UTC"
)
_DAY_MINUTES = 1_440


def read_windows(value: Any) -> str:
    """Return the text of maintenance windows, checked; empty = always.

    Raises:
        ValueError: It cannot be read.
    """
    if not isinstance(value, str):
        raise ValueError(_FORM)
    _parsed(value)
    return value.strip()


def is_open(windows: str, now_us: int) -> bool:
    """Return whether upkeep may run at a time, microseconds since 1970 UTC.

    A window that ends before it begins goes on over midnight; its days are those on which it began.
    """
    if not windows:
        return True
    now = datetime.fromtimestamp(now_us / 1e6, UTC)
    day, minute = now.weekday(), now.hour * 60 + now.minute
    for days, begin, end in _parsed(windows):
        if begin < end:
            if day in days and begin <= minute < end:
                return True
        elif (day in days and minute >= begin) or ((day - 1) % 7 in days and minute < end):
            return True
    return False


def _parsed(text: str) -> list[tuple[set[int], int, int]]:
    found = []
    for part in filter(None, (piece.strip().lower() for piece in text.split(";"))):
        match = _WINDOW.fullmatch(part)
        if match is None:
            raise ValueError(_FORM)
        times = [int(match[2]) * 60 + int(match[3]), int(match[4]) * 60 + int(match[5])]
        minutes = (int(match[3]), int(match[5]))
        if max(times) > _DAY_MINUTES or max(minutes) > 59 or times[0] in (times[1], _DAY_MINUTES):
            raise ValueError(f"{part!r} has no such time; {_FORM}")
        found.append((_days(match[1]), times[0], times[1]))
    return found


def _days(text: str) -> set[int]:
    if text in ("daily", "*"):
        return set(range(7))
    found = set[int]()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in _DAYS or (dash and last not in _DAYS):
            raise ValueError(f"{part!r} is no day; {_FORM}")
        begin, end = _DAYS.index(first), _DAYS.index(last if dash else first)
        found |= {(begin + step) % 7 for step in range((end - begin) % 7 + 1)}
    return found


def read_until(value: Any) -> str:
    """Return a time in UTC to the second as text, empty for none.

    Raises:
        ValueError: It is no time.
    """
    if value == "":
        return ""
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise ValueError("expected a time such as 2030-01-31T04:00Z, or nothing") from error
    at = at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def ends_at(until: str) -> float:
    """Return when a declared maintenance ends, seconds since 1970 UTC; 0 = none was declared."""
    return datetime.fromisoformat(until).timestamp() if until else 0.0


def lasts(until: str, now_us: int) -> bool:
    """Return whether a declared maintenance has not ended by a time."""
    return bool(until) and ends_at(until) * 1e6 > now_us
