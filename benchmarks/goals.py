"""The goals next to what was measured: ours, the peer's, their ratio, met or not.

`python -m benchmarks.goals` prints the table from benchmarks/results.json, without measuring.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Figure, number

_BATCHES = "batches of 1,000"
_CPU = f"{_BATCHES}, CPU of servers and client for 1,000"
_RATE = f"{_BATCHES}, three nodes"
_WRITTEN = f"{_BATCHES}, bytes written for a transaction of 200 B"
_SINGLE = "single, 64 at once, CPU of the servers for one"
_LONE = "lone, back to back, CPU of the servers for one"
_SPACED = "lone, every 250 ms, CPU of the servers for one, above idle"
_OURS = "sparktxlog"
_KAFKA, _LAZY_KAFKA = "Kafka, fsync", "Kafka, no fsync"
_NATS, _LAZY_NATS = "NATS JetStream, fsync", "NATS JetStream, no fsync"
_TABLE = "commit tables, three sites: one table"
_UPSERT = "upsert 100,000 rows into 10,000,000"
_TEN = "1,000,000 rows of ten columns"
#: What the turns of the append leave in the table.
_FOUR = "4,000,000 rows of ten columns"
_TWO_COPIES = "lone commit, p50: two copies, `ordered` and synchronous"
_TENFOLD = "CPU with 10,000 tables, divided by that with ten"
_MILLION = "growth, log 1,000,000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A row: names of figures, and where they should be."""

    quantity: str
    ours: str
    #: What measures it: `python -m benchmarks --only …`.
    by: str
    peer: str = ""
    #: Limits of the ratio to the peer, or of our value where `of_ratio` is false.
    at_most: float | None = None
    at_least: float | None = None
    of_ratio: bool = False

    @property
    def text(self) -> str:
        """The goal for people; empty for a row that only informs."""
        if self.at_most is None and self.at_least is None:
            return ""
        sign, limit = ("<=", self.at_most) if self.at_most is not None else (">=", self.at_least)
        assert limit is not None
        return f"{sign} {limit:g}{' x' if self.of_ratio else ''}"

    def met(self, value: float, ratio: float | None) -> str:
        """Return whether figures are where they should be, empty if there is nothing to judge."""
        judged = ratio if self.of_ratio else value
        if judged is None or not self.text:
            return ""
        if self.at_most is not None:
            return "yes" if judged <= self.at_most else "**no**"
        assert self.at_least is not None
        return "yes" if judged >= self.at_least else "**no**"


def _of(quantity: str, name: str, peer: str = "", ours: str = _OURS, **limits: float) -> Goal:
    """Return a row of the suite of peers; a limit is one of the ratio where a peer is named."""
    return Goal(
        quantity=quantity,
        ours=f"{name}: {ours}",
        by="peers",
        peer=f"{name}: {peer}" if peer else "",
        at_most=limits.get("at_most"),
        at_least=limits.get("at_least"),
        of_ratio=bool(peer),
    )


def _delays() -> list[Goal]:
    return [
        Goal(
            quantity=f"commit p50, {ms} ms one way, {case}, ms",
            ours=f"commit, three sites {ms} ms apart, {case}: p50",
            by="latency",
            at_most=2.1 * ms + 5,
        )
        for ms in (20, 80, 200)
        for case in ("spaced", "back to back", "one writer at each site")
    ]


#: In the order of the page; rows without a limit are the same quantity beside other peers.
GOALS = (
    _of("CPU for 1,000 in batches, three nodes and client, ms", _CPU, _KAFKA, at_most=0.9),
    *(
        _of("the same", _CPU, peer)
        for peer in (_LAZY_KAFKA, "etcd", _NATS, _LAZY_NATS, "plain Delta append, one copy")
    ),
    _of("ordered in batches of 1,000, tx/s", _RATE, _KAFKA, at_least=1.5),
    *(
        _of("the same", _RATE, peer)
        for peer in (_LAZY_KAFKA, "etcd", _NATS, _LAZY_NATS, "plain Delta append, one copy")
    ),
    *_delays(),
    _of(
        "CPU of a single POST to ordered, one node, ms",
        _SINGLE,
        ours=f"{_OURS}, one node",
        at_most=0.15,
    ),
    _of("the same, three nodes, ms", _SINGLE, at_most=0.5),
    *(_of("the same", _SINGLE, peer) for peer in (_KAFKA, "etcd", _NATS)),
    _of("CPU of a lone commit, three nodes, back to back, ms", _LONE, at_most=6),
    *(_of("the same", _LONE, peer) for peer in (_KAFKA, "etcd", _NATS)),
    _of("CPU of a lone commit, three nodes, every 250 ms, above idle, ms", _SPACED, at_most=6),
    *(_of("the same", _SPACED, peer) for peer in (_KAFKA, "etcd", _NATS)),
    _of("bytes written for a transaction of 200 B, a node", _WRITTEN, at_most=300),
    *(
        _of("the same", _WRITTEN, peer)
        for peer in (_KAFKA, "etcd", _NATS, "plain Delta append, one copy")
    ),
    Goal(
        quantity="publish lag at full load, s",
        ours="publishing: longest wait without a bound",
        by="publishing",
        at_most=2,
    ),
    Goal(
        quantity="commits of one table from three sites, /s",
        ours=_TABLE,
        by="commits",
        at_least=250,
    ),
    Goal(
        quantity="the same, CPU of all nodes, ms",
        ours=f"{_TABLE}: CPU of all nodes for a commit",
        by="commits",
        at_most=6,
    ),
    Goal(
        quantity="private memory of a node after 1,000,000 transactions, MiB",
        ours=f"{_MILLION}: private memory of a server, MiB: {_OURS}",
        by="growth",
        peer=f"{_MILLION}: private memory of a server, MiB: {_KAFKA}",
        at_most=150,
    ),
    Goal(
        quantity="the same, kept 8 s later above that at the start, MiB",
        ours=f"{_MILLION}: private memory kept above that at the start, 8 s later, MiB: {_OURS}",
        by="growth",
        at_most=20,
    ),
    Goal(
        quantity="10,000 tables against ten, CPU of a lone commit",
        ours=f"{_TENFOLD}: lone",
        by="growth",
        at_most=1.05,
    ),
    Goal(quantity="the same, a batch", ours=f"{_TENFOLD}: batch", by="growth", at_most=1.05),
    *(
        Goal(quantity=quantity, ours=ours, by=by, at_most=limit, of_ratio=True)
        for quantity, ours, by, limit in (
            ("upsert of 100,000 rows into 10,000,000, s", _UPSERT, "upserts", 0.6),
            ("the same, CPU, s", f"{_UPSERT}: CPU", "upserts", 0.6),
            ("recount of 4,000,000 rows, CPU, s", f"recount of {_FOUR}: CPU", "spark_costs", 1.6),
            ("append of them, CPU, s", f"append of {_TEN}: CPU", "spark_costs", 1.1),
            ("a lone commit with two copies, p50, ms", _TWO_COPIES, "synchronous", 1.2),
        )
    ),
)


def goal_table(figures: Mapping[str, Figure]) -> str:
    """Return the table as Markdown, empty where nothing of it was measured.

    Args:
        figures: Name of a figure → it.
    """
    if not any(goal.ours in figures for goal in GOALS):
        return ""
    lines = [
        "| quantity | sparktxlog | peer | its value | ratio | goal | met |",
        "|---|---:|---|---:|---:|---|---|",
        *(_row(goal, figures) for goal in GOALS),
    ]
    return "\n".join(lines)


def _row(goal: Goal, figures: Mapping[str, Figure]) -> str:
    ours = figures.get(goal.ours)
    if ours is None:
        return f"| {goal.quantity} | not measured: --only {goal.by} | | | | {goal.text} | |"
    peer = figures.get(goal.peer)
    name, value, ratio = ours.peer, ours.peer_value, ours.ratio
    if goal.peer:
        name, value = goal.peer.rpartition(": ")[2], peer.value if peer else None
        ratio = ours.value / value if value and value > 0 else None
    cells = [
        goal.quantity,
        number(ours.value),
        name,
        "" if value is None else number(value),
        "" if ratio is None else f"{ratio:.2f}",
        goal.text,
        goal.met(ours.value, ratio),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Print the table of the recorded figures."""
    rows = json.loads(Path(__file__).with_name("results.json").read_text())
    table = goal_table({row["name"]: Figure(**row) for row in rows})
    print(table or "nothing of it was measured")
    return 0 if table else 1


if __name__ == "__main__":
    sys.exit(main())
