"""The earliest of several points in time, some of which may not come at all."""

from __future__ import annotations

from collections.abc import Iterable


def earliest(times: Iterable[int | None], *, after: int | None = None) -> int | None:
    """Return the least of some times, None if there is none; None among them = never.

    Args:
        after: Times up to this one do not count.
    """
    found: int | None = None
    for time in times:
        if time is None or (after is not None and time <= after):
            continue
        if found is None or time < found:
            found = time
    return found
