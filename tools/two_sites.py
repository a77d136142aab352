"""What two masters do when something fails, on the real core: a table of docs/losing-sites.md.

`tools/reference.py` (make docs) writes it, a test compares the page.  Every case is simulated with
several seeds; a cell names more than one outcome if they differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.verification.simulation.network import Weather
from tests.verification.simulation.node import SimulatedNode
from tests.verification.simulation.world import Layout, World

from sparktxlog.protocol.messages.view import Phase

#: The page says how many there are.
_SEEDS = range(6)
_SECOND = 1_000_000
#: What a node does.
_ALONE, _BOTH, _WAITS, _OUT, _DOWN = "goes on alone", "goes on", "waits", "left out", "down"

_HEAD = """| sites | what fails | A | B | then |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A failure: what breaks first, and what breaks a minute later."""

    text: str
    first: str
    second: str = ""


_TWO = (Case("A stops", "-A"), Case("B stops", "-B"), Case("connection A–B", "A|B"))
_THREE = (
    *_TWO,
    Case("A stops, later the witness too", "-A", "-W"),
    Case("the witness stops", "-W"),
    Case("the witness stops, later A too", "-W", "-A"),
    Case("the witness stops, later the connection A–B", "-W", "A|B"),
    Case("A is cut off from B and the witness", "A|BW"),
    Case("B is cut off from A and the witness", "B|AW"),
    Case("the witness is cut off from both", "W|AB"),
)
_SITES: tuple[tuple[str, Layout, tuple[Case, ...]], ...] = (
    ("two equal masters", Layout(name="equal", masters={"A": 1, "B": 1}), _TWO),
    ("weights A 2, B 1", Layout(name="weighted", masters={"A": 2, "B": 1}), _TWO),
    (
        "two masters and a witness",
        Layout(name="witness", masters={"A": 1, "B": 1}, witnesses=("W",)),
        _THREE,
    ),
)


def table_of_cases() -> str:
    """Return a row for each case."""
    lines = [
        f"| {sites} | {case.text} | {a} | {b} | {then} |"
        for sites, layout, cases in _SITES
        for case in cases
        for a, b, then in [_cells(layout, case)]
    ]
    return _HEAD + "\n".join(lines)


def _cells(layout: Layout, case: Case) -> tuple[str, str, str]:
    found = [_try(layout, case, seed) for seed in _SEEDS]
    for one, other, _ in found:
        assert (one, other) != (_ALONE, _ALONE), f"split: {layout.name}, {case.text}"
    a, b, then = (" or ".join(sorted(set(column))) for column in zip(*found, strict=True))
    return a, b, then


def _try(layout: Layout, case: Case, seed: int) -> tuple[str, str, str]:
    world = World(seed, layout)
    for node in world.nodes.values():
        node.start()
    world.relink()
    world.run_until(10 * _SECOND)
    for failure in (case.first, case.second):
        _fail(world, failure)
        world.run_until(world.now + 60 * _SECOND)
    done = {name: _does(world, world.nodes[name]) for name in layout.masters}
    _repair(world)
    world.run_until(world.now + 90 * _SECOND)
    world.checks.check_healed()
    both = all(
        node.master is not None and set(node.master.view.members) == set(layout.masters)
        for node in world.nodes.values()
    )
    return done["A"], done["B"], "both" if both else "**not both**"


def _fail(world: World, failure: str) -> None:
    if failure.startswith("-"):
        world.nodes[failure[1:]].crash()
    elif failure:
        some, others = failure.split("|")
        world.network.cut |= {w for a in some for b in others for w in ((a, b), (b, a))}
        world.relink()


def _does(world: World, node: SimulatedNode) -> str:
    """Return what a node makes of a new transaction."""
    if node.master is None:
        return _DOWN
    before = node.master.status().position
    takes = node.master.phase in (Phase.NORMAL, Phase.SUSPECT)
    if takes:
        world.submit(node, 1)
    world.run_until(world.now + 20 * _SECOND)
    if not takes:
        return _OUT
    if node.master.status().position == before:
        return _WAITS
    return _ALONE if len(node.master.view.members) == 1 else _BOTH


def _repair(world: World) -> None:
    world.network.cut.clear()
    world.network.weather = Weather()
    for node in world.nodes.values():
        if not node.up:
            node.start()
    world.relink()
