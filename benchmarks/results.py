"""Figures, as a Markdown table and as `benchmarks/results.json`."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value; `ratio` is value / peer_value where a peer ran beside it."""

    name: str
    value: float
    unit: str
    #: Text such as `>= 60000`, empty for figures that only inform.
    goal: str = ""
    met: bool | None = None
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    #: Of several turns, whose median `value` is.
    least: float | None = None
    most: float | None = None


def at_least(name: str, value: float, unit: str, goal: float) -> Figure:
    """Return a figure that should reach `goal`."""
    return Figure(
        name=name, value=round(value, 3), unit=unit, goal=f">= {goal:g}", met=value >= goal
    )


def at_most(name: str, value: float, unit: str, goal: float) -> Figure:
    """Return a figure that should stay below or at `goal`."""
    return Figure(
        name=name, value=round(value, 3), unit=unit, goal=f"<= {goal:g}", met=value <= goal
    )


def informing(name: str, value: float, unit: str) -> Figure:
    """Return a figure without a goal."""
    return Figure(name=name, value=round(value, 3), unit=unit)


def spread(name: str, values: Sequence[float], unit: str) -> Figure:
    """Return the median of several turns without a goal, with the least and the most of them."""
    median, least, most = statistics.median(values), min(values), max(values)
    return Figure(
        name=name,
        value=round(median, 3),
        unit=unit,
        least=round(least, 3),
        most=round(most, 3),
    )


def beside(
    name: str, value: float, unit: str, peer: str, peer_value: float, ratio_goal: float
) -> Figure:
    """Return a figure that is judged by its ratio to a peer measured in the same run."""
    ratio = value / peer_value
    return Figure(
        name=name,
        value=round(value, 3),
        unit=unit,
        goal=f"ratio <= {ratio_goal:g}",
        met=ratio <= ratio_goal,
        peer=peer,
        peer_value=round(peer_value, 3),
        ratio=round(ratio, 3),
    )


def machine() -> str:
    """Return one line about the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load before the run {load:.1f}"
    )


def markdown(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| figure | value | unit | goal | met | peer | peer value | ratio |",
        "|---|---:|---|---|---|---|---:|---:|",
    ]
    for figure in figures:
        met = {None: "", True: "yes", False: "**no**"}[figure.met]
        cells = [
            figure.name,
            number(figure.value) + _turns(figure),
            figure.unit,
            figure.goal,
            met,
            figure.peer,
            _optional(figure.peer_value),
            _optional(figure.ratio),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a value for people; large ones have no fractions."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,g}"


def _turns(figure: Figure) -> str:
    if figure.least is None or figure.most is None:
        return ""
    return f" ({number(figure.least)} to {number(figure.most)})"


def _optional(value: float | None) -> str:
    return "" if value is None else number(value)


def write(path: Path, figures: Sequence[Figure], *, keep: bool = False) -> None:
    """Write the figures as a JSON list.

    Args:
        keep: Figures of other measurements that stand in the file stay.
    """
    rows = {row["name"]: row for row in json.loads(path.read_text())} if keep else {}
    rows |= {figure.name: asdict(figure) for figure in figures}
    path.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
