"""Lines of a node's history as paths of SVG, which the page draws without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10
from typing import Any

#: Width and height of the field in which lines are drawn, in units of SVG.
FIELD = (600, 100)
#: Most points of a line: of several the highest is drawn, so that no peak is lost.
_POINTS = 360
#: What is drawn: title, unit, and series, or what their names begin with → the names of lines.
_PLOTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Ordered transactions", "/s", {"ordered_per_s": "all sites"}),
    ("Commit of this node's clients", "s", {"commit_p50_s": "half", "commit_p99_s": "99 %"}),
    ("Behind, in time", "s", {"lag_s.": "{}"}),
    ("Behind, in transactions", "", {"lag.": "{}"}),
    (
        "To and from other sites",
        "B/s",
        {"sent_bytes_per_s.": "to {}", "received_bytes_per_s.": "from {}"},
    ),
    ("The log on disk", "B", {"log_bytes": "log"}),
    ("Free on its disk", "B", {"disk_free_bytes": "free"}),
)
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Series = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot."""

    name: str
    path: str
    #: The last value and the highest one, in words.
    now: str
    most: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over the same time, from zero to `top`."""

    title: str
    top: str
    lines: tuple[Curve, ...]


def plots_of(history: Mapping[str, Any], whole_s: float) -> list[Plot]:
    """Return the plots of a history that have a line.

    Args:
        history: As `NodeHistory.show` gives it.
        whole_s: Seconds of the time that plots show; it ends with the last sample.
    """
    found = []
    for title, unit, wanted in _PLOTS:
        series = {
            text.format(name.removeprefix(begin)): values
            for begin, text in wanted.items()
            for name, values in history["series"].items()
            if (name.startswith(begin) if begin.endswith(".") else name == begin)
        }
        if series:
            found.append(_plot(title, unit, history["at"], whole_s, series))
    return found


def _plot(
    title: str, unit: str, at: Sequence[float], whole_s: float, series: Mapping[str, Series]
) -> Plot:
    highest = [
        max((one for one in values if one is not None), default=0) for values in series.values()
    ]
    top = _round_up(max(highest))
    lines = [
        Curve(
            name=name,
            path=path_of(at, values, at[-1] - whole_s, whole_s, top),
            now="–" if values[-1] is None else shown(values[-1], unit),
            most=shown(most, unit),
        )
        for (name, values), most in zip(series.items(), highest, strict=True)
    ]
    return Plot(title, shown(top, unit), tuple(lines))


def path_of(at: Sequence[float], values: Series, start: float, whole_s: float, top: float) -> str:
    """Return a line as a path of SVG; it is broken where a value or samples are missing."""
    width, height = FIELD
    step = -(-len(at) // _POINTS) or 1
    usual = 3 * step * min((after - one for one, after in pairwise(at)), default=whole_s)
    parts, last = list[str](), None
    for first in range(0, len(at), step):
        known = [one for one in values[first : first + step] if one is not None]
        if not known or at[first] < start:
            last = None
            continue
        x = (at[first] - start) / whole_s * width
        y = height - max(known) / top * height
        joined = last is not None and at[first] - last <= usual
        # A point without a neighbour is seen, too: a line of no length has round ends.
        parts.append(f"{'L' if joined else 'M'}{x:.1f} {y:.1f}{'' if joined else 'h0'}")
        last = at[first]
    return "".join(parts)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, … that is at least a value."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return next(unit * one for one in (1, 2, 5, 10) if unit * one >= value * (1 - 1e-9))


def shown(value: float, unit: str) -> str:
    """Return a value in words of at most seven letters, its unit included."""
    if unit == "s" and value >= 120:
        return f"{value / 60:,.0f} min" if value < 7_200 else f"{value / 3_600:,.0f} h"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1_000:.3g} ms"
    for size, letter in _LARGE:
        if value >= size:
            return f"{value / size:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}".rstrip()
