"""What befalls the nodes: one fault at a time, each healed before the next; drawn from the seed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from tests.support.node_processes import NodeProcess
from tests.support.site_links import LinkedCluster, ways_between
from tests.verification.places import Places

_SECOND_US = 1_000_000
#: Offsets that a clock jumps to, seconds.
_JUMPS = (-86_400, -3_600, -30, 5, 30, 90, 3_600, 86_400)


class TorturedCluster(LinkedCluster):
    """Nodes with clocks that can be set, disks that can be filled, links that can be cut."""

    #: Root may mount: then each node has a small disk of its own.
    small_disks = False
    #: Where the files of sites lie.
    places = Places()

    def configure(self) -> None:
        """Give every node its place, its clock and, if possible, its disk."""
        for name, node in self.nodes.items():
            lines = "".join(f"{line}\n" for line in self.places.settings(name))
            node.config.write_text(lines + node.config.read_text())
            script = Path(__file__).with_name("skewed_node.py")
            self.set_clock(name, 0)
            node.prefix = (sys.executable, str(script), str(self._clock(name)))
            if self.small_disks:
                disk = self.directory / name
                disk.mkdir(exist_ok=True)
                mount = ["mount", "-t", "tmpfs", "-o", "size=512m", "torture", str(disk)]
                subprocess.run(mount, check=True)

    def _clock(self, name: str) -> Path:
        return self.directory / f"{name}.clock"

    def set_clock(self, name: str, seconds: float) -> None:
        """Let a node's wall clock be off by so much, at once."""
        fresh = self._clock(name).with_suffix(".new")
        fresh.write_text(str(int(seconds * _SECOND_US)))
        fresh.replace(self._clock(name))

    def stop(self) -> None:
        """Stop nodes and relays; disks stay mounted to be read, see `unmount`."""
        for way in self.places.ways.values():
            way.heal()
        for node in self.nodes.values():
            with suppress(ProcessLookupError):
                node.send(signal.SIGCONT)
        super().stop()

    def unmount(self) -> None:
        """Take the disks away."""
        for name in self.nodes if self.small_disks else ():
            subprocess.run(["umount", "-l", str(self.directory / name)], check=False)


class Faults:
    """Draws faults and carries them out.

    Args:
        say: Told each fault in one line.
        kinds: Names of the faults that may happen; none = all.
    """

    def __init__(
        self,
        cluster: TorturedCluster,
        seed: int,
        say: Callable[[str], None],
        kinds: Collection[str] = (),
    ) -> None:
        self._cluster = cluster
        self._chance = random.Random(f"{seed} faults")
        self._say = say
        self.count: Counter[str] = Counter()
        self._kinds: list[Callable[[], str]] = [
            self._kill,
            self._kill_two,
            self._pause,
            self._pause_two,
            self._cut,
            self._one_way,
            self._jump,
            self._restart,
        ]
        if cluster.small_disks:
            self._kinds.append(self._fill)
        if cluster.places.ways:
            self._kinds += [self._store_away, self._store_away_at_start]
        if kinds:
            self._kinds = [kind for kind in self._kinds if kind.__name__.strip("_") in kinds]

    def next(self) -> None:
        """Let one fault happen and end; takes seconds."""
        kind = self._chance.choice(self._kinds)
        self.count[kind.__name__.strip("_")] += 1
        self._say(kind())
        time.sleep(self._chance.uniform(0.5, 3))

    def _nodes(self, count: int) -> list[NodeProcess]:
        return self._chance.sample(self._cluster.masters(), count)

    def _last(self, least: float, most: float) -> float:
        seconds = self._chance.uniform(least, most)
        time.sleep(seconds)
        return seconds

    def _killed(self, count: int) -> str:
        nodes = self._nodes(count)
        for node in nodes:
            node.send(signal.SIGKILL)
        for node in nodes:
            node.kill()
        seconds = self._last(0, 6)
        for node in nodes:
            node.start()
        return f"killed {_names(nodes)}, started again after {seconds:.1f} s"

    def _kill(self) -> str:
        return self._killed(1)

    def _kill_two(self) -> str:
        return self._killed(2)

    def _paused(self, count: int) -> str:
        nodes = self._nodes(count)
        for node in nodes:
            node.send(signal.SIGSTOP)
        seconds = self._last(0.2, 8)
        for node in nodes:
            node.send(signal.SIGCONT)
        return f"stopped {_names(nodes)} for {seconds:.1f} s"

    def _pause(self) -> str:
        return self._paused(1)

    def _pause_two(self) -> str:
        return self._paused(2)

    def _cut(self) -> str:
        one, *others = self._nodes(len(self._cluster.masters()))
        lose = self._chance.random() < 0.5
        ways = ways_between(one.name, "".join(node.name for node in others))
        (self._cluster.links.lose if lose else self._cluster.links.refuse)(ways)
        seconds = self._last(0.5, 8)
        self._cluster.links.heal()
        return f"cut {one.name} off {'silently ' if lose else ''}for {seconds:.1f} s"

    def _one_way(self) -> str:
        one, other = self._nodes(2)
        self._cluster.links.lose([(one.name, other.name)])
        seconds = self._last(0.5, 8)
        self._cluster.links.heal()
        return f"lost what {one.name} sent to {other.name} for {seconds:.1f} s"

    def _jump(self) -> str:
        (node,) = self._nodes(1)
        jump = self._chance.choice(_JUMPS)
        self._cluster.set_clock(node.name, jump)
        seconds = self._last(1, 8)
        self._cluster.set_clock(node.name, 0)
        return f"set the clock of {node.name} {jump:+,} s for {seconds:.1f} s"

    def _restart(self) -> str:
        (node,) = self._nodes(1)
        node.stop()
        node.start()
        return f"restarted {node.name}"

    def _fill(self) -> str:
        (node,) = self._nodes(1)
        filler = self._cluster.directory / node.name / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        seconds = self._last(1, 6)
        filler.unlink()
        if node.process is not None and node.process.poll() is not None:
            node.start()
        return f"filled the disk of {node.name} for {seconds:.1f} s"

    def _store_away(self) -> str:
        (node,) = self._nodes(1)
        silently = self._cut_store(node)
        seconds = self._last(0.5, 12)
        self._cluster.places.ways[node.name].heal()
        return f"cut {node.name} off from its bucket {silently}for {seconds:.1f} s"

    def _store_away_at_start(self) -> str:
        (node,) = self._nodes(1)
        node.kill()
        silently = self._cut_store(node)
        node.start()
        seconds = self._last(2, 12)
        self._cluster.places.ways[node.name].heal()
        return f"started {node.name}, {silently}without its bucket for {seconds:.1f} s"

    def _cut_store(self, node: NodeProcess) -> str:
        silently = self._chance.random() < 0.5
        self._cluster.places.ways[node.name].cut(silently=silently)
        return "silently " if silently else ""


def _names(nodes: list[NodeProcess]) -> str:
    return " and ".join(node.name for node in nodes)
