"""What the dead had told a client stays, whoever goes on (P12, P15, P16)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.verification.cluster import Cluster

from sparktxlog.protocol.words.actions import Action, SendEpochMessage, TellAcquired, TellOrdered
from sparktxlog.protocol.words.balloting import Prepare
from sparktxlog.protocol.words.events import Event
from sparktxlog.protocol.words.view import Phase

#: Node 4 has precedence, so it is the one that proposes; three of the five acquire a run.
NODES = "45123"
STEP_US = 50_000
TIMEOUT_US = 1_000_000


class Five:
    """Five nodes; node 1 takes a run that only 1, 2 and 3 acquire."""

    def __init__(self) -> None:
        self.cluster = Cluster(NODES, 3, quorum_rule="default", suspect_timeout_us=TIMEOUT_US)
        self.told: list[Action] = []
        self.proposers: set[str] = set()
        self.cluster.watchers.append(self.watch)
        self.cluster.start_all()
        self.cluster.deliver_all()
        self.cluster.cut |= {("1", "4"), ("1", "5")}

    def watch(
        self, name: str, events: Sequence[Event], actions: Sequence[Action], whole: bool
    ) -> None:
        for action in actions:
            if isinstance(action, SendEpochMessage) and isinstance(action.message, Prepare):
                self.proposers.add(name)
            elif isinstance(action, (TellAcquired, TellOrdered)) and name == "1":
                self.told.append(action)

    def runs(self, name: str) -> list[tuple[str, int]]:
        """Return the runs in a node's queue."""
        queue = self.cluster.nodes[name].disk.queue
        return [(entry.header.origin, entry.header.seq) for entry in queue]

    def holds(self, name: str) -> bool:
        disk = self.cluster.nodes[name].disk
        return ("1", 1, 1) in disk.incoming or ("1", 1, 1) in disk.ordered

    def let_pass(self, steps: int) -> None:
        for _ in range(steps):
            self.cluster.now += STEP_US
            for name in self.cluster.alive():
                self.cluster.tick(name)
            self.cluster.deliver_all()

    def kill(self, names: str) -> None:
        """Lose nodes, and all that they have sent and nobody has got."""
        for name in names:
            self.cluster.crash(name)
        for letter in list(self.cluster.letters):
            if letter.sender in names or letter.receiver in names:
                self.cluster.drop(letter)
        for name in names:
            for other in self.cluster.alive():
                self.cluster.link(other, name, up=False)


@pytest.mark.parametrize("dead", ["1", "12"])
@pytest.mark.parametrize("told", [TellAcquired, TellOrdered])
def test_whoever_goes_on_has_what_was_told(told: type[Action], dead: str) -> None:
    """Also if the proposer never heard of it: each three of five have one that acquired it."""
    five = Five()
    if told is TellAcquired:
        five.cluster.cut |= {("4", "1"), ("5", "1")}  # without their promises nothing is added
    five.let_pass(18)
    five.cluster.submit("1", [b"x" * 16])
    five.let_pass(4)  # the others' heartbeats
    assert type(five.told[-1]) is told
    assert bool(five.runs("1")) == (told is TellOrdered)
    assert [name for name in sorted(NODES) if five.holds(name)] == ["1", "2", "3"]
    assert not five.runs("4")
    five.kill(dead)
    left = [name for name in NODES if name not in dead]
    five.let_pass(100)
    assert five.proposers == {"4"}
    for name in left:
        master = five.cluster.nodes[name].master
        assert master is not None
        assert (list(master.view.members), master.phase) == (left, Phase.NORMAL), name
        assert five.runs(name) == [("1", 1)], name
        assert five.holds(name)


def test_with_three_dead_nobody_goes_on_without_what_was_told() -> None:
    """All three that acquired it: the two others wait instead of forgetting it."""
    five = Five()
    five.cluster.submit("1", [b"x" * 16])
    five.cluster.deliver_all()
    five.kill("123")
    five.let_pass(100)
    assert not five.proposers
    for name in "45":
        master = five.cluster.nodes[name].master
        assert master is not None
        assert (master.view.epoch, master.phase) == (1, Phase.SUSPECT)
    # One of them returns: it brings the run along.
    five.cluster.start("3")
    for name in "45":
        five.cluster.link("3", name, up=True)
    five.let_pass(100)
    for name in "345":
        assert five.runs(name) == [("1", 1)], name


def test_what_one_node_alone_held_returns_with_it() -> None:
    """It was told as accepted only; the others go on without it, and it comes later, once."""
    five = Five()
    five.cluster.cut |= {("1", "2"), ("1", "3")}
    five.cluster.submit("1", [b"x" * 16])
    five.cluster.deliver_all()
    assert not five.told
    five.kill("1")
    five.let_pass(100)
    assert [five.runs(name) for name in "2345"] == [[]] * 4
    five.cluster.submit("4", [b"y" * 16])
    five.let_pass(10)
    five.cluster.cut.clear()
    five.cluster.start("1")
    for name in "2345":
        five.cluster.link("1", name, up=True)
    five.let_pass(200)
    for name in NODES:
        assert five.runs(name) == [("4", 1), ("1", 1)], name
