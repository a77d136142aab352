"""What the dead had told a client stays, whoever goes on (P12, P15, P16)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.verification.cluster import Cluster

from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.messages.actions import (
    Action,
    SendEpochMessage,
    TellAcquired,
    TellOrdered,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import Prepare
from sparktxlog.protocol.messages.events import Event, FilesHeld
from sparktxlog.protocol.messages.view import Phase

#: Node 4 has precedence, so it is the one that proposes; three of the five acquire a run.
NODES = "45123"
STEP_US = 50_000
TIMEOUT_US = 1_000_000


_ANSWERS = (TellAcquired, TellOrdered, TellRejected)


class Nodes:
    """Nodes that are killed and start again, and what node 1 tells its clients.

    Args:
        names: In precedence order.
        quorum: The default one of so many.
    """

    def __init__(self, names: str, quorum: int) -> None:
        self.cluster = Cluster(names, quorum, quorum_rule="default", suspect_timeout_us=TIMEOUT_US)
        self.told: list[Action] = []
        self.proposers: set[str] = set()
        #: Nodes that have files of a run that was announced.
        self.have_files: set[str] = set()
        self.cluster.watchers.append(self.watch)
        self.cluster.start_all()
        self.cluster.deliver_all()

    def submit(self, name: str, value: str, holders: int, staged_bytes: int = 0) -> None:
        """Submit a synchronous run of one transaction, whose id is the value that it sets."""
        facts = RunFacts(n=1, ids=value.encode().ljust(16, b"."), holders=holders)
        self.cluster.submit(name, (), facts=facts, staged_bytes=staged_bytes)

    def values(self, name: str) -> list[str]:
        """Return the values of a node's queue, in the order in which they were set."""
        queue = self.cluster.nodes[name].disk.queue
        ids = (self.cluster.facts[entry.header.digest].ids for entry in queue)
        return [one.decode().rstrip(".") for one in ids]

    def come_back(self, name: str) -> None:
        """Start a node from its disk; everybody hears everybody."""
        self.cluster.cut.clear()
        self.cluster.start(name)
        for other in self.cluster.alive():
            if other != name:
                self.cluster.link(name, other, up=True)

    def watch(
        self, name: str, events: Sequence[Event], actions: Sequence[Action], whole: bool
    ) -> None:
        if any(isinstance(event, FilesHeld) for event in events):
            self.have_files.add(name)
        for action in actions:
            if isinstance(action, SendEpochMessage) and isinstance(action.message, Prepare):
                self.proposers.add(name)
            elif isinstance(action, _ANSWERS) and name == "1":
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


class Five(Nodes):
    """Five nodes; what node 1 takes only 1, 2 and 3 acquire."""

    def __init__(self) -> None:
        super().__init__(NODES, 3)
        self.cut_off()

    def cut_off(self) -> None:
        """From now on nodes 4 and 5 hear nothing of node 1."""
        self.cluster.cut |= {("1", "4"), ("1", "5")}


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


def _twenty_instead_of_ten() -> Five:
    """All read 10; node 1 sets 20, which 1, 2 and 3 hold, and tells its client so."""
    five = Five()
    five.cluster.cut.clear()
    five.submit("1", "A=10", holders=3)
    five.let_pass(4)
    assert [five.values(name) for name in NODES] == [["A=10"]] * 5
    five.cut_off()
    five.submit("1", "A=20", holders=3)
    five.let_pass(12)  # the others' heartbeats
    (_, ordered) = [one for one in five.told if isinstance(one, TellOrdered)]
    assert ordered.holders == 5, "as many as there are members, so not late"
    assert five.values("1") == ["A=10", "A=20"]
    assert [five.values(name)[-1] for name in "45"] == ["A=10"] * 2
    return five


@pytest.mark.parametrize("dead", ["1", "12", "13"])
def test_all_read_a_synchronous_value_that_was_told(dead: str) -> None:
    """P34: node 4 leads, which never heard of it; it takes what the others hold."""
    five = _twenty_instead_of_ten()
    five.kill(dead)
    five.let_pass(100)
    assert five.proposers == {"4"}
    left = [name for name in NODES if name not in dead]
    assert [five.values(name) for name in left] == [["A=10", "A=20"]] * len(left)


def test_those_that_never_heard_of_a_synchronous_value_do_not_go_on() -> None:
    """P34: nodes 4 and 5 alone would force 10; they wait, and read 20 once node 2 is back."""
    five = _twenty_instead_of_ten()
    five.kill("123")
    five.submit("4", "A=30", holders=3)
    five.let_pass(100)
    assert not five.proposers
    assert [five.values(name) for name in "45"] == [["A=10"]] * 2
    five.come_back("2")
    five.let_pass(100)
    values = five.values("2")
    assert values[:2] == ["A=10", "A=20"]
    assert [five.values(name) for name in "45"] == [values] * 2


@pytest.mark.parametrize(("staged_bytes", "dies"), [(0, True), (1 << 20, True), (0, False)])
def test_what_was_told_as_failed_is_ordered_by_nobody(staged_bytes: int, *, dies: bool) -> None:
    """P34: it has no number under which others could order it, though they may have its files."""
    three = Nodes("123", 2)
    three.kill("3")
    three.let_pass(100)
    three.submit("1", "A=20", 3, staged_bytes)
    three.let_pass(30)
    assert not three.told
    assert ("2" in three.have_files) == bool(staged_bytes)
    three.let_pass(1_500)
    assert [(type(one), one.code) for one in three.told if isinstance(one, TellRejected)] == [
        (TellRejected, "synchro-timeout")
    ]
    if dies:
        three.kill("1")
    three.come_back("3")
    three.let_pass(100)
    three.submit("2", "A=30", 2)
    three.let_pass(10)
    if dies:
        three.come_back("1")
    three.let_pass(200)
    assert [three.values(name) for name in "123"] == [["A=30"]] * 3


def test_what_others_may_order_is_not_told_as_failed() -> None:
    """P34: it got its stamp, and the confirmations are late: its client hears nothing."""
    three = Nodes("123", 2)
    three.cluster.cut |= {("2", "1"), ("3", "1")}
    three.submit("1", "A=20", 3)
    three.let_pass(15)
    three.kill("1")
    three.let_pass(150)
    assert [three.values(name) for name in "23"] == [["A=20"]] * 2
    three.come_back("1")
    three.let_pass(200)
    assert three.values("1") == ["A=20"]
    assert not [one for one in three.told if isinstance(one, TellRejected)]
