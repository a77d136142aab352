"""`python -m benchmarks`: measure, print a Markdown table, write benchmarks/results.json."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.copy_table import copy_table
from benchmarks.goals import goal_table
from benchmarks.peers.suite import UNITS
from benchmarks.peers.tables import peer_table
from benchmarks.plots import charts_of, is_point, table
from benchmarks.results import Figure, machine, markdown, write

#: In this order: first those without a JVM in this process.
NAMES = (
    "peers",
    "growth",
    "ordering",
    "publishing",
    "posts",
    "commits",
    "buckets",
    "conditions",
    "synchronous",
    "groups",
    "latency",
    "followers",
    "far_peers",
    "memory",
    "attacks",
    "dashboard",
    "epochs",
    "copying",
    "uploads",
    "bulk",
    "spark_costs",
    "apply",
    "replay",
    "replicas",
    "upserts",
    "refreshes",
    "visibility",
    "adopting",
    "feeding",
    "spark_commits",
    "bucket_rows",
)


def tables(figures: Sequence[Figure]) -> str:
    """Return the figures as Markdown: those of peers and of growth as tables of their own."""
    drawn = charts_of({figure.name: figure.value for figure in figures})
    own = [f"**{kind}: {what}**\n\n{table(kind, drawn[kind, what])}" for kind, what in drawn]
    rest = [
        figure
        for figure in figures
        if figure.name.rpartition(": ")[0] not in UNITS and not is_point(figure.name)
    ]
    shown = [markdown(rest) if rest else "", peer_table(figures, UNITS), *own]
    return "\n\n".join(text for text in shown if text)


def main() -> int:
    """Run the measurements named on the command line, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=NAMES, action="append", help="measure this one (repeat)")
    parser.add_argument("--short", action="store_true", help="small sizes: a check, no figures")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_name("results.json"), metavar="FILE"
    )
    arguments = parser.parse_args()
    # Who ends this process ends its servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"machine: {machine()}\n", flush=True)
    figures: list[Figure] = []
    keep = arguments.only is not None and arguments.output.exists()
    for name in arguments.only or NAMES:
        begin = time.perf_counter()
        found = importlib.import_module(f"benchmarks.{name}").run(arguments.short)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        figures += found
        if keep and not arguments.short:  # a later one that fails takes nothing with it
            write(arguments.output, found, keep=True)
    print(tables(figures))
    if copies := copy_table({figure.name: figure.value for figure in figures}):
        print(f"\n{copies}")
    if goals := goal_table({figure.name: figure for figure in figures}):
        print(f"\n{goals}")
    if not keep and not arguments.short:
        write(arguments.output, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
