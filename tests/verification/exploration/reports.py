"""Results of explorations as a table (docs/verification/exploration.md)."""

from __future__ import annotations

from collections.abc import Sequence

from tests.verification.exploration.configurations import CONFIGURATIONS
from tests.verification.exploration.space import Exploration

_HEAD = """# Exhaustive exploration

Written by `make explore` (`python -m tests.verification.exploration --write`).

Every state that a small cluster can reach is visited once, breadth first, with the real core
(`Master` objects and their disks). A message may arrive at any time, any number of times, or
never. Transactions, ballots, crashes and ticks may happen at any time within the bounds, also in
the new epochs. The exploration differs from the core in one point: it chooses when a ballot
starts.

In every state the invariants I1-I7 and I11 of [rules.md](../rules.md) are checked, and that no core
halts or raises an alarm. After every step of a node its queue is judged from its start by the
reference that the simulation uses: which transactions take effect (P25b, P27), what becomes of
prepared ones (P35), and which versions commit tables have (P36). That is what its clients must
get (I7), and what its disk and its memory must have. Some states are *healed*: every 2,000th one,
and every 50th of those after which nothing more can happen. From there the cluster runs without
faults, with the core's own timeouts, until all masters are members again with one queue (I8).

- *Tx*: transactions. Plain ones touch nothing; for others the row says at which node they do what.
  `update` writes to a table if nobody did since the log began, `write` always. `prepare p q` is an
  update that waits for the participants `p` and `q`, `yes p` and `no p` are marks. `create`,
  `commit 1` and `drop` are of one commit table. `both` creates it and another one, `both 1` commits
  version 1 of both, and is an `update` too. `by 3`: without effect after that log time.
  Timestamps are 2, 3, … until a restart.
- *Ballots*: epoch changes that are started, by any master unless the row names one, at any
  moment. They wait for all nodes or only for the quorums.
- *Ticks*: heartbeats of each node; every repetition is due with them.
- *Newest*: of the posts on one link only the newest is on its way, as the real sender replaces
  those that wait.
- *Complete*: there are no further states. If not, the exploration ended at `--limit`, and deeper
  states were not seen.

States that differ only in round numbers, statistics or the age of what no longer matters count as
one (`canonical.py`). Broken links, failed fetches, crashes of a witness and runs of more than one
transaction are left to the simulation, as are changes of tables and synchronous transactions.

|Name|Cluster|Bounds|States|Depth|Complete|Healed|Epochs|Seconds|
|---|---|---|--:|--:|---|--:|--:|--:|
"""

_TAIL = """
A violation is printed as the shortest sequence of steps to it, with the command that replays it:
`python -m tests.verification.exploration --replay NAME --steps STEP,STEP,…`.
`--mutant NAME` explores a core with one rule broken, to test the exploration itself.
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
        found.configuration,
        cluster,
        configuration.bounds,
        f"{found.states:,}",
        found.depth,
        complete,
        found.healed,
        found.epochs,
        f"{found.seconds:.0f}",
    )
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
