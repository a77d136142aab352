"""How values show themselves: lines in a terminal, a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_text(micros: int) -> str:
    """Return the time of microseconds since 1970 UTC, to the millisecond."""
    return f"{_moment(micros, 'milliseconds')} UTC"


def time_text(micros: Any) -> str:
    """Return the UTC time of microseconds since 1970, to the second; a dash for none."""
    if not isinstance(micros, (int, float)) or micros <= 0:
        return "-"
    return _moment(int(micros), "seconds")


def _moment(micros: int, unit: str) -> str:
    try:
        found = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:  # past the year 9999
        return f"{micros} µs after 1970"
    return found.replace(tzinfo=None).isoformat(" ", unit)


def html_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table for a notebook; numbers have thousands separators."""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{_cell(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _cell(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return escape(f"{value:,}" if is_number else str(value))
