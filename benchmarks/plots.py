"""Draws growth from benchmarks/results.json as SVG, by plain Python: `python -m benchmarks.plots`.

A figure named `growth, KIND X: QUANTITY: SERIES` is a point; KIND and QUANTITY make a chart.  So is
a commit of `benchmarks.latency`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.results import number

RESULTS = Path(__file__).with_name("results.json")
TARGET = Path(__file__).parents[1] / "docs" / "verification" / "plots"
_POINT = re.compile(r"growth, (\w+) ([\d,]+): (.+): ([^:]+)")
#: Figures of `latency`: delay and case.
_FAR = re.compile(r"commit, three sites ([\d.]+) ms apart, (.+): p50")
_FAR_QUANTITY = "commit, p50, ms"
#: Kind → what the x axis is; a delay grows from 0, so its axis is not logarithmic.
AXES = {
    "log": "transactions in the log",
    "tables": "tables",
    "nodes": "nodes",
    "batch": "transactions in a batch",
    "delay": "delay of one way, ms",
}
_LINEAR = {"nodes", "delay"}
_WIDTH, _HEIGHT = 700, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 230, 36, 48
#: Colours that differ for all eyes, on white and on black.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

#: Chart: kind and quantity → series → points.
Charts = dict[tuple[str, str], dict[str, list[tuple[float, float]]]]


def is_point(name: str) -> bool:
    """Return whether a figure is nothing but a point of a chart."""
    return _POINT.fullmatch(name) is not None


def charts_of(values: Mapping[str, float]) -> Charts:
    """Return the points of all charts.

    Args:
        values: Name of a figure → its value.
    """
    found: Charts = {}
    for name, value in values.items():
        if match := _POINT.fullmatch(name):
            kind, at, quantity, series = match.groups()
            chart = found.setdefault((kind, quantity), {})
            chart.setdefault(series, []).append((float(at.replace(",", "")), value))
        elif match := _FAR.fullmatch(name):
            chart = found.setdefault(("delay", _FAR_QUANTITY), {})
            chart.setdefault(f"sparktxlog, {match[2]}", []).append((float(match[1]), value))
    return {
        key: {series: sorted(points) for series, points in chart.items()}
        for key, chart in found.items()
    }


class _Scale:
    """Numbers to places between two ends, with places for labels."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, log: bool) -> None:
        self._log = log and min(values) > 0
        self._begin, self._end = begin, end
        if self._log:
            low = 10 ** math.floor(math.log10(min(values)))
            high = 10 ** math.ceil(math.log10(max(values)) + 1e-9)
            steps = round(math.log10(high / low))
            self.ticks = [low * 10**n for n in range(steps + 1)]
        else:
            top = max(*values, 1e-9)
            step = _round_step(top / 5)
            self.ticks = [n * step for n in range(math.ceil(top / step) + 1)]
        self._low, self._high = self.ticks[0], self.ticks[-1]
        if self._low == self._high:
            self._high = self._low * 10 or 1.0

    def __call__(self, value: float) -> float:
        low, high = self._low, self._high
        if self._log:
            share = math.log(value / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low)
        return self._begin + share * (self._end - self._begin)


def _round_step(rough: float) -> float:
    """Return 1, 2 or 5 times a power of ten, not below a number."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= rough * (1 - 1e-9))


def _label(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    return f"{value / 1_000:g} k" if value >= 1_000 else f"{value:g}"


def svg(kind: str, quantity: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return a chart."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    across = _Scale(xs, _LEFT, _WIDTH - _RIGHT, log=kind not in _LINEAR)
    wide = min(ys) > 0 and max(ys) / min(ys) > 20
    up = _Scale(ys, _HEIGHT - _BOTTOM, _TOP, log=wide)
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        "<style>text { font-family: sans-serif; font-size: 12px }</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(quantity)}</text>',
    ]
    for tick in up.ticks:
        y = up(tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(tick)}</text>'
        )
    for tick in sorted(set(xs)) if kind in _LINEAR else across.ticks:
        x = across(tick)
        parts.append(f'<path d="M{x:.1f} {floor}v5" stroke="#555"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{_label(tick)}</text>'
        )
    parts.append(f'<path d="M{_LEFT} {_TOP}V{floor}H{right}" fill="none" stroke="#555"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{AXES.get(kind, kind)}</text>'
    )
    for place, (name, points) in enumerate(series.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        line = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>'
            for x, y in points
        ]
        y = _TOP + 14 + 18 * place
        parts.append(f'<path d="M{right + 12} {y - 4}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 34}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def file_name(kind: str, quantity: str) -> str:
    """Return the name of a chart's file."""
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', quantity.lower()).strip('-')}.svg"


def table(kind: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return the points of a chart as Markdown: what it is drawn from."""
    at = sorted({x for points in series.values() for x, _ in points})
    lines = [f"| {AXES.get(kind, kind)} | " + " | ".join(f"{x:,g}" for x in at) + " |"]
    lines.append("|---|" + "---:|" * len(at))
    for name, points in series.items():
        known = dict(points)
        cells = [number(float(f"{known[x]:.3g}")) if x in known else "" for x in at]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Draw all charts, and print the points of each."""
    rows = json.loads(RESULTS.read_text())
    found = charts_of({row["name"]: row["value"] for row in rows})
    if not found:
        print("no growth was measured", file=sys.stderr)
        return 1
    TARGET.mkdir(exist_ok=True)
    for (kind, quantity), series in found.items():
        (TARGET / file_name(kind, quantity)).write_text(svg(kind, quantity, series))
        print(f"\n**{quantity}**\n\n{table(kind, series)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
