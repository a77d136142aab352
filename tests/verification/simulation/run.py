"""Running seeds: one simulated hour each, faults first, then healing (`make sim SEEDS=N`)."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import replace
from time import process_time

from tests.verification.seeds import Outcome
from tests.verification.simulation.clients import Clients
from tests.verification.simulation.faults import Faults, found_with_wrong_clock
from tests.verification.simulation.network import Weather
from tests.verification.simulation.progress import Progress
from tests.verification.simulation.world import Layout, World

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.events import StoodAside

HOUR_US = 3_600 * 1_000_000
#: So many rounds of all layouts have one in which the nodes are upgraded one by one.
_UPGRADED_EVERY = 8
#: So many have one in which two nodes follow, one of them the other one.
_FOLLOWED_EVERY = 8
#: So many have one in which nobody that a member hears is left out (P39), and one guarded (P40).
_OPTIONS_EVERY = 8
#: Time to heal in the end: return of evicted nodes included.
_HEAL_US = 180 * 1_000_000
#: Time for what is submitted in the very end.
_LAST_US = 20 * 1_000_000

LAYOUTS = (
    Layout(name="two-and-witness", masters={"a": 1, "b": 1}, witnesses=("w",), spares=("x",)),
    Layout(name="three-all", masters={"a": 1, "b": 1, "c": 1}, quorum_rule="all"),
    Layout(name="three", masters={"a": 1, "b": 1, "c": 1}, spares=("x",)),
    Layout(name="two-weighted", masters={"a": 2, "b": 1}),
    Layout(name="two-alone", masters={"a": 1, "b": 1}, forced=True),
    Layout(name="four-and-witness", masters={"a": 1, "b": 1, "c": 1, "d": 1}, witnesses=("w",)),
    Layout(name="five", masters={"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}),
)


def layout_of(seed: int) -> Layout:
    """Return the cluster that a seed simulates."""
    layout = LAYOUTS[seed % len(LAYOUTS)]
    round_ = seed // len(LAYOUTS)
    if round_ % _FOLLOWED_EVERY == _FOLLOWED_EVERY // 2 and not layout.forced:
        return replace(layout, followers={"f": (), "g": ("f",)})
    if round_ % _OPTIONS_EVERY == _OPTIONS_EVERY // 4:
        return carried(layout)
    if round_ % _OPTIONS_EVERY == _OPTIONS_EVERY * 3 // 4 and len(layout.masters) > 2:
        return guarded(layout)
    upgraded = round_ % _UPGRADED_EVERY == _UPGRADED_EVERY - 1
    return replace(layout, upgraded=True) if upgraded else layout


def carried(layout: Layout) -> Layout:
    """Return the layout with nodes that leave out nobody whom a member hears (P39)."""
    return replace(layout, settings={**layout.settings, "keeps_heard": True})


def guarded(layout: Layout) -> Layout:
    """Return the layout with two sets of masters, of which one must be whole (P40)."""
    names = [NodeId(name) for name in layout.masters]
    half = (len(names) + 1) // 2
    guard = (frozenset(names[:half]), frozenset(names[half:]))
    return replace(layout, settings={**layout.settings, "guard": guard})


def run_seed(
    seed: int,
    *,
    layout: Layout | None = None,
    master_class: type[Master] = Master,
    hour_us: int = HOUR_US,
    transactions: int = 1_600,
    fault_pause_us: int = 180_000_000,
) -> Outcome:
    """Simulate one seed; a violation is returned, not raised."""
    layout = layout or layout_of(seed)
    outcome = Outcome(seed=seed, layout=layout.name)
    started = process_time()
    world = World(seed, layout, master_class)
    try:
        with _no_collection():
            _simulate(world, hour_us, transactions, fault_pause_us)
    except (InvariantViolation, AssertionError) as error:
        outcome.violation = f"{type(error).__name__}: at {world.now / 1e6:.6f} s: {error}"
    checks = world.checks
    outcome.trace, outcome.events, outcome.marks = checks.trace, world.steps, world.marks.counts
    outcome.epochs = max(checks.views, default=1)
    outcome.transactions = checks.transactions
    outcome.simulated_s, outcome.still_s = world.now / 1e6, checks.still_us / 1e6
    outcome.seconds = process_time() - started
    return outcome


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Look for garbage in cycles after the hour only: it leaves hardly any on the way."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _simulate(world: World, hour_us: int, transactions: int, fault_pause_us: int) -> None:
    founded_wrong = found_with_wrong_clock(world)
    for node in world.nodes.values():
        world.after(world.random.randrange(300_000), node.start)
    world.run_until(400_000)
    world.relink()
    clients = Clients(world, hour_us, transactions)
    Faults(world, clients, hour_us - _HEAL_US, fault_pause_us, founded_wrong)
    Progress(world, hour_us)
    world.run_until(hour_us - _HEAL_US + 60_000_000)
    world.network.cut.clear()
    world.network.slow_us.clear()
    world.network.weather = Weather()
    for node in world.nodes.values():
        node.slow_us, node.full = 2_000, False
        node.skew_us = 0
        if not node.up:
            node.start()
        elif node.paused:
            node.resume()
        if node.is_before:
            node.crash()
            node.start()
        if world.layout.aside:
            node.handle([StoodAside(nodes=frozenset())])
    world.relink()
    world.run_until(hour_us + _HEAL_US - _LAST_US)
    # No history ends with a node that takes nothing any more.
    world.checks.nobody_is_refused = True
    for node in world.nodes.values():
        if node.member:
            world.submit(node, 1)
    world.run_until(hour_us + _HEAL_US)
    world.checks.check_healed()
