"""What docs/verification/benchmarks.md shows of results.json; `make docs` writes it there."""

from __future__ import annotations

import json

from benchmarks.goals import goal_table
from benchmarks.peers.suite import UNITS
from benchmarks.peers.tables import peer_table
from benchmarks.plots import RESULTS, charts_of, file_name, table
from benchmarks.results import Figure

_NOTHING = "`make bench-peers` measures it; benchmarks/results.json has no figures of it."


def recorded() -> dict[str, Figure]:
    """Return the figures that were written last, by name."""
    return {row["name"]: Figure(**row) for row in json.loads(RESULTS.read_text())}


def goals() -> str:
    """Return the goals next to what was measured."""
    return goal_table(recorded()) or _NOTHING


def peers() -> str:
    """Return what was measured of all peers."""
    return peer_table(list(recorded().values()), UNITS) or _NOTHING


def growth() -> str:
    """Return each chart with the points that it is drawn from."""
    drawn = charts_of({name: figure.value for name, figure in recorded().items()})
    parts = [
        f"![{kind}: {quantity}](plots/{file_name(kind, quantity)})\n\n"
        f"{quantity}:\n\n{table(kind, series)}"
        for (kind, quantity), series in drawn.items()
    ]
    return "\n\n".join(parts) or _NOTHING
