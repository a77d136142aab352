"""Figures of many peers as tables: a row for each quantity, a column for each peer."""

from __future__ import annotations

from collections.abc import Container, Sequence

from benchmarks.results import Figure, number


def peer_table(figures: Sequence[Figure], quantities: Container[str]) -> str:
    """Return a Markdown table, empty without such figures; cells have least and most in brackets.

    Args:
        figures: Those named `QUANTITY: PEER`, in the order of rows and columns; others are passed
            over.
        quantities: What is a row.
    """
    rows: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        quantity, _, peer = figure.name.rpartition(": ")
        if quantity in quantities:
            rows.setdefault(quantity, {})[peer] = figure
    if not rows:
        return ""
    peers = list(dict.fromkeys(peer for row in rows.values() for peer in row))
    lines = [f"| median of turns (least to most) | {' | '.join(peers)} |"]
    lines.append("|---|" + "---:|" * len(peers))
    for quantity, row in rows.items():
        unit = next(iter(row.values())).unit
        cells = [_cell(row[peer]) if peer in row else "" for peer in peers]
        lines.append(f"| {quantity}, {unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(figure: Figure) -> str:
    if figure.least is None or figure.most is None or figure.least == figure.most:
        return _short(figure.value)
    return f"{_short(figure.value)} ({_short(figure.least)} to {_short(figure.most)})"


def _short(value: float) -> str:
    """Return a number with three digits that count."""
    return number(float(f"{value:.3g}"))
