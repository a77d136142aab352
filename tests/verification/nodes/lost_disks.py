"""Three weeks of three sites whose disks are lost one after the other, by the runbook or in haste.

Each week every site loses its disk once and begins with an empty one.  By the runbook the next disk
is lost when the check `data` of the last one is good, and each loss must be one that all others say
would be survived: then nothing is lost.  In haste the next one is lost as soon as the last one is
ready: then the others must say no before the loss that nobody survives.

Workers stand in for Spark's: a lake is a file on the site's disk with the ids that it applied, and
a copy is a copy of that file from another site.  They start late.  Days pass in one step between,
for all clocks at once, as if all machines slept; the log is shortened to two days.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, TypeVar

from tests.verification.nodes import clients
from tests.verification.nodes.run import LAYOUTS
from tests.verification.nodes.world import World
from tests.verification.seeds import Outcome

from sparktxlog.model.report import WorkerReport
from sparktxlog.protocol.messages.view import Phase

if TYPE_CHECKING:
    from tests.verification.nodes.node import SimulatedNode

WEEKS, _DAYS, _DAY_S = 3, 7, 86_400.0
#: Seconds with load on each day, and how often a worker looks.
_LOAD_S, _LOOK_S = 1.0, 1.0
#: A worker is started so long after its node: in haste, and by the runbook, whose waits are long.
_LATE_S, _SOON_S = 15.0, 5.0
#: Whatever is waited for comes in that time.
_PATIENCE_S = 240.0
_NEVER = 1e12
_T = TypeVar("_T")


@dataclass(slots=True)
class _Lake:
    """The replica of a site; its file lies on the site's disk."""

    position: int = 0
    chain_hash: str = ""
    #: Ids of all transactions up to the position, in their order.
    ids: list[str] = field(default_factory=list)


class LostDisks:
    """Lets three weeks pass in a world.

    Args:
        waits: By the runbook; else in haste.
    """

    def __init__(self, world: World, *, waits: bool) -> None:
        self._world = world
        self._waits = waits
        #: Site → when its worker starts.
        self._starts = dict.fromkeys(world.layout.masters, 0.0)
        #: The last loss in haste was said not to be survived, and was not.
        self.foreseen = False
        world.after(_LOOK_S, self._work)

    def pass_time(self) -> None:
        """Let all days pass, and every site lose its disk each week."""
        for node in self._world.nodes.values():
            node.start()
        self._until("all sites are whole", lambda: all(map(self._is_whole, self._names)))
        for _ in range(WEEKS):
            for _ in range(_DAYS):
                if self._world.over:
                    return
                self._run(_LOAD_S)
                self._world.loop._now += _DAY_S
                self._run(_LOAD_S)  # who is silent for a day is suspected first
                self._until("all take part", lambda: all(map(self._takes_part, self._names)))
            self._lose_all()
            if self._world.over or self.foreseen:
                return

    @property
    def _names(self) -> tuple[str, ...]:
        return self._world.layout.masters

    def _lose_all(self) -> None:
        for name in self._names:
            others = [other for other in self._names if other != name]
            if self._waits:
                self._until(
                    f"all say that the loss of {name} would be survived",
                    lambda name=name, others=others: all(  # type: ignore[misc]
                        self._survives(name, other) for other in others
                    ),
                )
            lost = not any(map(self._has_rows, others))
            said = [self._survives(name, other) for other in others]
            if lost and any(said):
                self._world.checks.fail(f"{others} say that the loss of {name} would be survived")
            self._world.checks.happened("disk lost that nobody else is a copy of" if lost
                                        else "disk lost")  # fmt: skip
            self.foreseen = self.foreseen or (lost and not any(said))
            node = self._world.nodes[name]
            node.kill(disk=True)
            self._starts[name] = self._world.loop.time() + (_SOON_S if self._waits else _LATE_S)
            self._world.after(1.0, node.start)
            self._until(f"{name} is ready again", lambda name=name: self._takes_part(name))  # type: ignore[misc]
            if self._world.over or lost:
                return
            if self._waits:
                self._until(f"{name} is whole again", lambda name=name: self._is_whole(name))  # type: ignore[misc]
                if not self._has_rows(name):
                    self._world.checks.fail(f"{name} says that it is whole, and has no rows")

    # -- what sites say ----------------------------------------------------------------------------

    def _takes_part(self, name: str) -> bool:
        """Whether a node is a member, and `/readyz` is 200."""
        running = self._world.nodes[name].running
        if running is None or self._world.nodes[name].app is None:
            return False
        master = running.base.master
        if master.phase is not Phase.NORMAL or set(master.view.members) != set(self._names):
            return False
        return all(check.good for check in self._at(name, running.ready))

    def _is_whole(self, name: str) -> bool:
        """Whether `/readyz?data` of a node is 200."""
        running = self._world.nodes[name].running
        if running is None or not self._takes_part(name):
            return False
        return all(check.good for check in self._at(name, partial(running.ready, data=True)))

    def _survives(self, site: str, asked: str) -> bool:
        running = self._world.nodes[asked].running
        if running is None:
            return False
        said = self._at(asked, running.survivals)
        return any(one["survives"] for one in said if one["site"] == site)

    def _at(self, name: str, question: Callable[[], _T]) -> _T:
        """Ask a node, by its own clocks."""
        life = self._world.nodes[name].life
        assert life is not None
        return life.context().run(question)

    def _has_rows(self, name: str) -> bool:
        """Whether a site has all rows, by its files: its log, or a lake that leads on to it."""
        running = self._world.nodes[name].running
        if running is None:
            return False
        kept_after = running.base.journal.read_extent().kept_after
        return self._lake(self._world.nodes[name]).position >= kept_after

    # -- time --------------------------------------------------------------------------------------

    def _run(self, seconds: float) -> None:
        self._world.run_until(self._world.loop.time() + seconds)

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        world, held = self._world, False

        def look() -> bool:
            nonlocal held
            held = condition()
            return held

        world.run_until(world.loop.time() + _PATIENCE_S, look)
        if not world.over and not held:
            said = {
                name: node.running
                and [one for one in self._at(name, node.running.ready) if not one.good]
                for name, node in world.nodes.items()
            }
            world.checks.fail(f"not in {_PATIENCE_S:g} s: {what}; {said}")

    # -- workers -----------------------------------------------------------------------------------

    def _work(self) -> None:
        for name, node in self._world.nodes.items():
            late = self._world.loop.time() < self._starts[name]
            if node.life is not None and node.app is not None and not late:
                node.life.context().run(self._apply, node)
        self._world.after(_LOOK_S, self._work)

    def _apply(self, node: SimulatedNode) -> None:
        """Apply what is published, after a copy if the log does not lead on, and report."""
        assert node.running is not None
        base, lake = node.running.base, self._lake(node)
        if lake.position < base.kept_after.value:
            others = (self._lake(one) for one in self._world.nodes.values() if one is not node)
            lake = max(others, key=lambda other: other.position)
            if lake.position < base.kept_after.value:
                return  # no site has what is before this log
            self._world.checks.happened("lake copied")
        for stored in base.journal.read_queue(lake.position, 100_000, payloads=False):
            entry = stored.entry
            if entry.end > base.published.value:
                break
            assert entry.position == lake.position + 1
            lake.position, lake.chain_hash = entry.end, entry.chain_hash.hex()
            lake.ids += [stored.ids[at : at + 16].hex() for at in range(0, len(stored.ids), 16)]
        if lake.position:
            text = json.dumps([lake.position, lake.chain_hash, lake.ids])
            (node.disk.path / "lake.json").write_text(text)
            answer = node.running.accept_report(
                WorkerReport(
                    worker_id=f"worker of {node.name}",
                    node_id=node.name,
                    log_id=base.config.log_id,
                    epoch=base.master.view.epoch,
                    position=lake.position,
                    chain_hash=lake.chain_hash,
                    follows=True,
                )
            )
            if answer["verdict"] != "IN_SYNC":
                self._world.checks.fail(f"the lake of {node.name} is {answer}")

    @staticmethod
    def _lake(node: SimulatedNode) -> _Lake:
        path = node.disk.path / "lake.json"
        return _Lake(*json.loads(path.read_text())) if path.exists() else _Lake()

    def check_end(self) -> None:
        """See that every site has every row, in the order of the one queue."""
        for name, node in self._world.nodes.items():
            lake = self._lake(node)
            if lake.position != self._world.checks.end[0] or len(lake.ids) != lake.position:
                self._world.checks.fail(
                    f"the lake of {name} has {len(lake.ids)} rows at {lake.position}, the log "
                    f"{self._world.checks.end[0]}"
                )
        lakes = {tuple(self._lake(node).ids) for node in self._world.nodes.values()}
        if len(lakes) > 1:
            self._world.checks.fail("the lakes differ")


def run_weeks(seed: int, root: Path, *, waits: bool, log: Callable[[str], None] | None) -> Outcome:
    """Simulate three weeks in an empty directory; a violation is returned, not raised.

    Once a process, as `run.run_seed`.
    """
    layout = LAYOUTS[0]
    outcome, started = Outcome(seed=seed, layout=layout.name), process_time()
    gc.disable()  # what is collected of a killed node would run once more
    clients._HARMED = 0.0  # of a staged file: another story
    world = World(seed, layout, root, load_until_s=_NEVER, log=log, log_kept_h=48.0)
    story = LostDisks(world, waits=waits)
    story.pass_time()
    if not waits and not story.foreseen:
        world.checks.fail("in haste nothing was lost")
    if waits and not world.over:
        world.rest()
        world.run_until(world.loop.time() + _PATIENCE_S, lambda: not _open(world))
        world.run_until(world.loop.time() + 3 * _LOOK_S)
        if unhealed := _open(world):
            world.checks.fail(f"I8: {unhealed}")
        else:
            world.checks.check_end()
            story.check_end()
    checks = world.checks
    outcome.trace, outcome.events, outcome.marks = checks.trace, checks.events, checks.marks
    outcome.violation, outcome.transactions = checks.violation, checks.transactions
    outcome.epochs = max(checks.views, default=1)
    outcome.simulated_s = world.loop.time()
    outcome.seconds = process_time() - started
    return outcome


def _open(world: World) -> str:
    if world.clients.busy or world.writers.busy:
        return "clients still wait"
    return world.checks.unhealed()
