"""Results of explorations as a table (docs/exploration.md)."""

from __future__ import annotations

from collections.abc import Sequence

from tests.verification.exploration.configurations import CONFIGURATIONS
from tests.verification.exploration.space import Exploration

_HEAD = """# Exhaustive exploration

Written by `make explore` (`python -m tests.verification.exploration --write`).

Every state that a small cluster can reach is visited once, breadth first, with the real core
(`Master` objects and their disks); only when a ballot starts is the exploration's choice.
Whatever was sent may arrive at any time, any number of times, or never; transactions, ballots,
crashes and ticks may happen at any time within their bounds, in the new epochs as well.  In every
state the invariants I1-I7 and I11 of the
[protocol](protocol.md) are checked, and that no core halts or complains.  *Healed* states, every
2,000th one and every 50th of those behind which nothing more can happen, were run on fairly, now
with the core's own patience, until all masters were members again with one queue (I8).

*Ballots*: epoch changes that are started, by any master unless said, at any moment, waiting for
all or only for the quorums.  *Ticks*: heartbeats of each node; every repetition is due with them.
*Newest*: of the posts of one link only the newest is on its way, as the real sender replaces
those that wait.  *Complete*: there are no further states; else it ended at `--limit`,
and deeper states were not seen.  States that differ only in round numbers, statistics or the age
of what no longer matters are one (`canonical.py`).  Broken links, failed fetches and crashes
of a witness are left to the simulation.

|Name|Cluster|Bounds|States|Depth|Complete|Healed|Epochs|Seconds|
|---|---|---|--:|--:|---|--:|--:|--:|
"""

_TAIL = """
A violation is printed as the shortest way to it, with the command that replays it:
`python -m tests.verification.exploration --replay NAME --steps STEP,STEP,…`.
`--mutant NAME` explores a core with one rule broken, to see that it is found.
"""


def document(found: Sequence[Exploration]) -> str:
    """Return the page with the results."""
    return _HEAD + "".join(f"{_row(result)}\n" for result in found) + _TAIL


def _row(found: Exploration) -> str:
    configuration = CONFIGURATIONS[found.configuration]
    cluster = "+".join((*configuration.masters, *configuration.witnesses))
    if len(configuration.masters) > 2:
        cluster += f", q={configuration.quorum_rule}"
    complete = "**violation**" if found.violation else "yes" if found.complete else "no"
    cells = (
        found.configuration, cluster, configuration.bounds, f"{found.states:,}", found.depth,
        complete, found.healed, found.epochs, f"{found.seconds:.0f}",
    )  # fmt: skip
    return "|" + "|".join(map(str, cells)) + "|"


def story(found: Exploration, mutant: str = "") -> str:
    """Return a violation: what, the shortest way, and the command that replays it."""
    steps = ",".join(step.split(" ", 1)[0] for step in found.trace)
    lines = [f"{found.configuration}: {found.violation}"]
    lines += [f"  {number:2d}. {step}" for number, step in enumerate(found.trace, start=1)]
    command = "python -m tests.verification.exploration"
    command += f" --mutant {mutant}" if mutant else ""
    lines.append(f"replay: {command} --replay {found.configuration} --steps {steps}")
    return "\n".join(lines)
