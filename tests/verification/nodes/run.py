"""Running seeds: minutes of faults each, then healing (`make sim-nodes SEEDS=N`)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time

from tests.verification.nodes.clones import Clones
from tests.verification.nodes.faults import Faults
from tests.verification.nodes.world import Layout, World
from tests.verification.seeds import Outcome

LAYOUTS = (
    Layout(name="three", masters=("a", "b", "c")),
    Layout(name="two-and-witness", masters=("a", "b"), witnesses=("w",)),
    Layout(name="two", masters=("a", "b")),
    Layout(name="four", masters=("a", "b", "c", "d")),
    Layout(name="five", masters=("a", "b", "c", "d", "e")),
)
#: So many rounds of all layouts have one in which copies of data directories run.
_CLONED_EVERY = 4
#: In the round after that nodes follow, one of them the other one.
_FOLLOWED = 1
#: Faults begin so late, and no more of them after; seconds.
_FAULTS_FROM_S, FAULTS_UNTIL_S = 5.0, 120.0
#: Mean time between two faults, seconds.
_FAULT_PAUSE_S = 4.0
#: The cluster must be whole so long after the last fault, at the latest.
_HEAL_S = 150.0


def layout_of(seed: int) -> Layout:
    """Return the cluster that a seed simulates."""
    layout = LAYOUTS[seed % len(LAYOUTS)]
    turn = seed // len(LAYOUTS) % _CLONED_EVERY
    if turn == _FOLLOWED:
        return replace(layout, followers=("f", "g"))
    return replace(layout, cloned=True) if turn == _CLONED_EVERY - 1 else layout


def run_seed(
    seed: int, root: Path, *, faults: bool = True, until_s: float = FAULTS_UNTIL_S,
    log: Callable[[str], None] | None = None,
) -> Outcome:  # fmt: skip
    """Simulate one seed in an empty directory; a violation is returned, not raised.

    Once a process: what a killed node held stays until the process ends.
    """
    layout = layout_of(seed)
    outcome = Outcome(seed=seed, layout=layout.name)
    started = process_time()
    gc.disable()  # what is collected of a killed node would run once more
    world = World(seed, layout, root, load_until_s=until_s, log=log)
    _simulate(world, until_s, faults, outcome)
    checks = world.checks
    outcome.trace, outcome.events, outcome.marks = checks.trace, checks.events, checks.marks
    outcome.violation = checks.violation
    outcome.epochs = max(checks.views, default=1)
    outcome.transactions = checks.transactions
    outcome.simulated_s = world.loop.time()
    outcome.seconds = process_time() - started
    return outcome


def _simulate(world: World, until_s: float, faults: bool, outcome: Outcome) -> None:
    breaks = Faults(world, _FAULTS_FROM_S, until_s, _FAULT_PAUSE_S) if faults else None
    if breaks is not None and world.layout.cloned:
        Clones(world, breaks, _FAULTS_FROM_S, until_s)
    for node in world.nodes.values():
        world.after(world.random.random(), node.start)
    world.run_until(until_s)
    if world.over:
        return
    if breaks is not None:
        breaks.repair()
    world.run_until(until_s + _HEAL_S, lambda: not _works(world) and not world.checks.unhealed())
    outcome.healed_s = world.loop.time() - until_s
    if not world.over:
        unhealed = world.checks.unhealed()
        if unhealed or _works(world):
            world.checks.fail(f"I8: {unhealed or 'clients still wait'}")
        else:
            world.checks.check_end()


def _works(world: World) -> bool:
    return world.clients.busy or world.writers.busy
