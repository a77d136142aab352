"""Exhaustive exploration: small clusters completely, and mutants at their shortest depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
from tests.verification.exploration.__main__ import main
from tests.verification.exploration.canonical import describe, unplanned
from tests.verification.exploration.configurations import CONFIGURATIONS, Configuration
from tests.verification.exploration.demanded import DemandedMaster
from tests.verification.exploration.healing import Healing
from tests.verification.exploration.mutants import MUTANTS
from tests.verification.exploration.nodes import Nodes, NodeState, Outcome, Sent
from tests.verification.exploration.space import Space, State, explore
from tests.verification.model.disk import CoreDisk
from tests.verification.mutation.isolation import run_isolated

from sparktxlog.protocol.order.synchronized import SynchronizedQueue

SMALL_EPOCH = Configuration(
    name="small-epoch",
    masters=("a", "b"),
    witnesses=("w",),
    submits=("a",),
    ballots=1,
    newest=True,
    starters=("b",),
)
IDLE_EPOCH = dataclasses.replace(SMALL_EPOCH, name="idle-epoch", submits=())
SMALL_CRASH = Configuration(
    name="small-crash", masters=("a", "b"), submits=("a",), ticks=1, crashes=1, newest=True
)
TWO_BALLOTS = Configuration(
    name="two-ballots", masters=("a", "b"), witnesses=("w",), submits=(), ballots=2, newest=True
)


@pytest.mark.parametrize(
    ("configuration", "states", "depth"),
    [
        (CONFIGURATIONS["rounds-2"], 998, 11),
        (SMALL_CRASH, 1_506, 11),
        (IDLE_EPOCH, 2_504, 17),
    ],
    ids=lambda value: value.name if isinstance(value, Configuration) else None,
)
def test_small_cluster_completely(configuration: Configuration, states: int, depth: int) -> None:
    """Every reachable state keeps the invariants; their number says that all were seen."""
    found = explore(Space(configuration), limit=100_000)
    assert found.violation == ""
    assert found.complete
    assert (found.states, found.depth) == (states, depth)


@pytest.mark.parametrize(
    ("name", "states", "rejected", "decided"),
    [
        ("condition-2", 998, "conflict", ""),
        (
            "prepared-2-no",
            3_129,
            "expired-transaction not-prepared prepared",
            "expired-transaction rolled-back",
        ),
        ("commits-2", 3_127, "unknown-table version-conflict", ""),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ("condition-2-crash", 3_825, "conflict expired-transaction", ""),
                ("prepared-2-lost", 3_129, "conflict not-prepared prepared", "conflict"),
                (
                    "prepared-2-crash",
                    3_825,
                    "expired-transaction not-prepared prepared",
                    "committed expired-transaction",
                ),
                ("commits-2-drop", 3_127, "unknown-table", ""),
                ("commits-2-crash", 3_825, "unknown-table", ""),
                ("commits-2-both", 3_127, "unknown-table version-conflict", ""),
                ("commits-2-both-crash", 3_825, "unknown-table", ""),
                ("commits-2-both-rows", 3_127, "conflict", ""),
            )
        ),
    ],
)
def test_conditions_marks_expiry_and_commits_completely(
    name: str, states: int, rejected: str, decided: str
) -> None:
    """Every node decides what the reference says, and each outcome that there can be is met."""
    space = Space(CONFIGURATIONS[name])
    found = explore(space, limit=100_000)
    assert found.violation == ""
    assert (found.complete, found.states) == (True, states)
    entries = {entry for node in space.nodes.facts for entry in node.disk.queue}
    rejections = {one.code for entry in entries for one in entry.rejections}
    verdicts = [one.rejection for entry in entries for one in entry.verdicts]
    assert rejections == set(rejected.split())
    assert {one.code if one else "committed" for one in verdicts} == set(decided.split())


@pytest.mark.parametrize(
    ("mutant", "configuration", "depth", "broken"),
    [
        ("skip-instead-of-stop", CONFIGURATIONS["rounds-2"], 6, "I1"),
        ("counter-reused", CONFIGURATIONS["rounds-2"], 3, "P10"),
        ("quorum-minus-one", CONFIGURATIONS["rounds-2"], 3, "I3"),
        ("not-wedged", SMALL_EPOCH, 7, "I6"),
        ("longest-instead-of-union", CONFIGURATIONS["epoch-2w"], 8, "I1"),
        ("no-vote-majority", TWO_BALLOTS, 2, "I5"),
        ("other-origins-ignored", CONFIGURATIONS["condition-2"], 6, "P25b"),
        ("writes-forgotten", CONFIGURATIONS["condition-2-crash"], 4, "P27"),
        ("first-yes-decides", CONFIGURATIONS["prepared-2-no"], 6, "P35"),
        ("no-ignored", CONFIGURATIONS["prepared-2-no"], 8, "P35"),
        ("judged-where-ordered", CONFIGURATIONS["prepared-2-lost"], 8, "P35"),
        ("late-yes-counts", CONFIGURATIONS["prepared-2-crash"], 7, "P35"),
        ("expires-by-own-clock", CONFIGURATIONS["prepared-2-no"], 7, "P35"),
        ("undecided-forgotten", CONFIGURATIONS["prepared-2-crash"], 4, "P35"),
        ("all-commits-win", CONFIGURATIONS["commits-2"], 8, "P25b"),
        ("dropped-lives-on", CONFIGURATIONS["commits-2-drop"], 8, "P25b"),
        ("tables-forgotten", CONFIGURATIONS["commits-2-crash"], 4, "P36"),
        ("half-a-transaction", CONFIGURATIONS["commits-2-both"], 8, "P36"),
        ("only-the-first-commit-judged", CONFIGURATIONS["commits-2-both"], 8, "P25b"),
    ],
)
def test_mutants_are_found(
    mutant: str, configuration: Configuration, depth: int, broken: str
) -> None:
    """A core with one rule broken breaks an invariant, in so many steps at least."""
    run = "tests.verification.exploration.runs:run_plain"
    found = run_isolated(MUTANTS[mutant], run, dataclasses.asdict(configuration), 100_000)
    assert broken in found.violation
    assert len(found.trace) == found.depth == depth


def test_a_violation_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed command leads to the same violation."""
    assert main(["rounds-2", "--mutant", "skip-instead-of-stop"]) == 1
    command = capsys.readouterr().out.partition("replay: ")[2].splitlines()[0].split()
    assert main(command[command.index("--mutant") :]) == 1
    assert "I1: b has a:1@2 at run 0, others b:1@3" in capsys.readouterr().out


def test_ends_heal() -> None:
    """Where nothing more can happen, time brings the rest (I8)."""
    space = Space(IDLE_EPOCH)
    seen = 0

    def visit(number: int, state: State, is_end: bool) -> bool:
        nonlocal seen
        seen += is_end
        if not is_end or seen % 20:
            return False
        Healing(space.nodes, state[: len(space.names)]).run()
        return True

    assert explore(space, limit=100_000, visit=visit).healed >= 3


def test_work_goes_on_in_the_next_epoch() -> None:
    """Both members order a run that was stamped in epoch 2, submitted before or there."""
    space = Space(SMALL_EPOCH)
    ordered = 0

    def visit(number: int, state: State, is_end: bool) -> bool:
        nonlocal ordered
        queues = (space.nodes.facts[node].disk.queue for node in state[: len(SMALL_EPOCH.masters)])
        ordered += all(any(entry.header.epoch == 2 for entry in queue) for queue in queues)
        return False

    found = explore(space, limit=100_000, visit=visit)
    assert (found.complete, found.violation) == (True, "")
    assert ordered > 1_000
    disks = [node.disk for node in space.nodes.facts if node.may_submit]
    assert 2 in {disk.view.epoch for disk in disks if disk.view}


# -- when two states are one ---------------------------------------------------------------------


def test_every_field_has_a_plan() -> None:
    """Nothing of a core is forgotten when states are compared."""
    space = Space(SMALL_EPOCH)
    explore(space, limit=1_000)
    missing: dict[str, set[str]] = {}
    seen = set[str]()
    for number in range(0, len(space.nodes.facts), 25):
        for value in _objects(space.nodes.thaw(number), set()):
            seen.add(type(value).__name__)
            fields = unplanned(value)
            if fields:
                missing[type(value).__name__] = fields
    assert missing == {}
    assert seen >= {"CoreDisk", "Marking", "LastWrites", "Effects", "Staging"}


def _objects(value: Any, seen: set[int]) -> Iterator[object]:
    """Yield all objects of the core, and of the exploration, that a value consists of."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        children = list(value)
    elif type(value).__module__.startswith(("sparktxlog.", "tests.")):
        yield value
        names = {name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())}
        names |= set(getattr(value, "__dict__", ()))
        children = [getattr(value, name) for name in sorted(names) if hasattr(value, name)]
    else:
        return
    for child in children:
        yield from _objects(child, seen)


class _DoubtingNodes(Nodes):
    """Keeps, for a state that is met again, how it looks the second time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.twins: dict[int, bytes] = {}

    def _intern(self, name: str, state: NodeState) -> int:
        key, blob = (name, state.key()), self._freeze(state)
        number = self._known.get(key)
        if number is not None and blob != self.facts[number].blob:
            self.twins.setdefault(number, blob)
        return super()._intern(name, state)


@pytest.mark.parametrize(
    "configuration",
    [SMALL_CRASH, IDLE_EPOCH, CONFIGURATIONS["prepared-2-crash"]],
    ids=lambda c: c.name,
)
def test_equal_states_behave_equally(configuration: Configuration) -> None:
    """Two masters that count as one do the same, whatever happens: the key is not too coarse."""
    space = Space(configuration)
    nodes = _DoubtingNodes(configuration.configs(), configuration.submits, DemandedMaster)
    space.nodes = nodes
    explore(space, limit=1_000)
    compared = 0
    for (number, code), outcome in list(nodes._outcomes.items()):
        twin = nodes.twins.get(number)
        if twin is None:
            continue
        compared += 1
        first = nodes.facts[number]
        nodes.facts[number] = dataclasses.replace(first, blob=twin)
        event = None
        if code >= 0:
            event = space.messages[code].event
        assert _words(nodes._step(number, code, event)) == _words(outcome)
        nodes.facts[number] = first
    assert compared > 50


def _words(outcome: Outcome) -> Hashable:
    def said(sent: Sent) -> Hashable:
        return (sent.receiver, type(sent.event), describe(sent.event, 0), sent.wanted)

    return outcome.state, tuple(map(said, outcome.sent))


def test_what_only_shows_does_not_count() -> None:
    """Round numbers and statistics make no states; what decides does."""
    space = Space(SMALL_EPOCH)
    state = space.nodes.thaw(space.begin()[0])
    key = state.key()
    ordering = state.master._ordering
    ordering._rounds.number += 7
    ordering._empty_rounds += 1
    ordering._added_at += 5
    ordering._peers[0].last_post_at = 3
    assert state.key() == key
    ordering._peers[0].owed = True
    assert state.key() != key
    ordering._peers[0].owed = False
    state.master._counter.value += 1
    assert state.key() != key


def test_what_the_queue_led_to_counts() -> None:
    """A core that forgot tables, writes or what is undecided is in another state."""
    submits = ("a prepare p q", "a yes p", "a write")
    space = Space(dataclasses.replace(SMALL_EPOCH, submits=submits, masters=("a",), ballots=0))
    explore(space, limit=1_000)
    numbers = range(len(space.nodes.facts))
    number = next(at for at in numbers if len(space.nodes.facts[at].disk.queue) == len(submits))
    changes: tuple[Callable[[CoreDisk, SynchronizedQueue], None], ...] = (
        lambda disk, queue: disk.tables.clear(),
        lambda disk, queue: disk.writes.clear(),
        lambda disk, queue: disk.undecided.clear(),
        lambda disk, queue: queue.effects._tables.clear(),
        lambda disk, queue: queue.writes._by_table.clear(),
        lambda disk, queue: queue.marking._by_id.clear(),
        lambda disk, queue: setattr(queue.marking, "_earliest", 1),
        lambda disk, queue: setattr(queue.marking, "_size_bytes", 1),
    )
    keys = {space.nodes.thaw(number).key()}
    for change in changes:
        state = space.nodes.thaw(number)
        change(state.disk, state.master._queue)
        keys.add(state.key())
    assert len(keys) == len(changes) + 1
