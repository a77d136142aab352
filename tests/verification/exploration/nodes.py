"""One node of an explored cluster: its state, the steps it can take, and what comes of them.

A step concerns one node only.  So every state of a node is kept once, under a number, and what an
event does to it is computed once; the exploration then works with numbers.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.verification.exploration.canonical import describe
from tests.verification.exploration.demanded import PROPOSES, DemandedMaster
from tests.verification.exploration.outcomes import Judge
from tests.verification.exploration.transactions import TABLE, facts_of, origin_of
from tests.verification.model.disk import CoreDisk, key_of
from tests.verification.model.invariants import check_post, violated

from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.messages.actions import (
    PERSISTS,
    Action,
    Alarm,
    FetchPayload,
    PersistQueue,
    SendPost,
    TellAcquired,
    TellOrdered,
    TellPhase,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import ProbeAnswer, Standing
from sparktxlog.protocol.messages.events import (
    EpochMessageReceived,
    Event,
    PostReceived,
    RunSubmitted,
    Tick,
)
from sparktxlog.protocol.messages.posts import Post, QueueEntry, RunHeader
from sparktxlog.protocol.messages.recovery import MasterConfig, NoOlderIds, RecoveredState
from sparktxlog.protocol.messages.view import TAKES_SUBMITS, View

#: Steps a node takes by itself; deliveries have the message's number, from 0 on.
SUBMIT, TICK, CRASH, PROPOSE, HURRY = -1, -2, -3, -4, -5
STEP_NAMES = {
    SUBMIT: "submit",
    TICK: "tick",
    CRASH: "crash and restart",
    PROPOSE: "start a ballot, wait for all",
    HURRY: "start a ballot, wait for quorums",
}


@dataclass(slots=True)
class NodeState:
    """What one node is: memory, disk, time, and what it said before."""

    master: DemandedMaster
    disk: CoreDisk
    now: int = 0
    #: Transactions submitted so far.
    submitted: int = 0
    #: (epoch, counter) of the last post (I11).
    posted: tuple[int, int] = (0, -1)
    #: Runs that were told as acquired and are not in the own queue yet (I6).
    told: tuple[RunHeader, ...] = ()

    def key(self) -> Hashable:
        """Return everything that what comes next depends on."""
        now = self.now
        return (
            describe(self.master, now),
            describe(self.disk, now),
            now,
            self.submitted,
            self.posted,
            describe(self.told, now),
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What the exploration must know of a node's state, without its master."""

    name: str
    blob: bytes
    #: As it is in this state: nobody writes to it.
    disk: CoreDisk
    #: View that is decided and not in force yet.
    decided: View | None
    is_member: bool
    phase: str
    told: tuple[RunHeader, ...]
    may_submit: bool
    may_propose: bool
    now: int
    #: Equal for states that look the same to the invariants.
    checked: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A message, or a payload that is wanted, not yet under way."""

    sender: str
    receiver: str
    event: Event | None
    #: Set while nobody is found who holds the payload.
    wanted: RunHeader | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step of one node leads to."""

    state: int
    sent: tuple[Sent, ...]


class Nodes:
    """All states that single nodes were seen in.

    Args:
        configs: Of each node.
        submits: What is committed, in submit order; see `transactions`.
        master_class: The core, or a mutant of it, with ballots on demand.
    """

    def __init__(
        self,
        configs: dict[str, MasterConfig],
        submits: tuple[str, ...],
        master_class: type[DemandedMaster],
    ) -> None:
        self.configs = configs
        self.facts: list[Facts] = []
        self._master_class = master_class
        self._submits: dict[str, list[RunSubmitted]] = {name: [] for name in configs}
        self.payloads: dict[bytes, RunFacts] = {}
        for number, facts in enumerate(facts_of(submits), start=1):
            digest = number.to_bytes(32, "big")
            self.payloads[digest] = facts
            self._submits[origin_of(submits[number - 1])].append(
                RunSubmitted(
                    ticket=number, digest=digest, size_bytes=100, staged_bytes=0, facts=facts
                )
            )
        self._judge = Judge(self.payloads, next(iter(configs.values())))
        self._known: dict[Hashable, int] = {}
        self._classes: dict[Hashable, int] = {}
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._pickling = copyreg.dispatch_table.copy()
        self._pickling[IdWindow] = _reduce_window
        self._pickling[CoreDisk] = self._reduce_disk
        _DISKS[id(self)] = self.payloads

    @property
    def steps(self) -> int:
        """Steps of single nodes that were computed."""
        return len(self._outcomes)

    def start(self, name: str) -> Outcome:
        """Start a node for the first time."""
        disk = CoreDisk(name, self.payloads)
        disk.tables = {TABLE.name: TABLE}
        disk.standings = {other: Standing() for other in self.configs if other != name}
        config = self.configs[name]
        state = NodeState(self._master_class(config, _recovered(config, disk), 0), disk)
        return self._finish(name, state, [Tick()])

    def step(self, state: int, code: int, event: Event | None) -> Outcome:
        """Return what an event, or a step of the node itself, leads to.

        Raises:
            InvariantViolation: The step breaks an invariant.
        """
        outcome = self._outcomes.get((state, code))
        if outcome is None:
            outcome = self._outcomes[state, code] = self._step(state, code, event)
        return outcome

    def thaw(self, state: int) -> NodeState:
        """Return a copy of a node's state that may be changed."""
        return pickle.loads(self.facts[state].blob)  # type: ignore[no-any-return]

    def _step(self, number: int, code: int, event: Event | None) -> Outcome:
        state, name = self.thaw(number), self.facts[number].name
        if event is not None:
            return self._finish(name, state, [event])
        if code == SUBMIT:
            submit = self._submits[name][state.submitted]
            state.submitted += 1
            return self._finish(name, state, [submit])
        if code == CRASH:
            config = replace(self.configs[name], incarnation=state.disk.incarnation)
            recovered = _recovered(config, state.disk)
            state.master = self._master_class(config, recovered, state.now)
        elif code == TICK:
            state.now += 1
        else:
            state.master.demand(code == HURRY)
        return self._finish(name, state, [Tick()])

    def _finish(self, name: str, state: NodeState, events: list[Event]) -> Outcome:
        sent = self.handle(name, state, events)
        return Outcome(self._intern(name, state), tuple(filter(_counts, sent)))

    def handle(self, name: str, state: NodeState, events: list[Event]) -> list[Sent]:
        """Let the core handle events, keep what is to be kept, and return what is sent.

        Raises:
            InvariantViolation: The step breaks an invariant.
        """
        actions = state.master.handle_all(events, state.now)
        submits = {submit.ticket: submit for submit in self._submits[name]}
        state.disk.write([a for a in actions if isinstance(a, PERSISTS)], submits)
        sent: list[Sent] = []
        for action in actions:
            self._carry_out(name, state, action, sent)
        ordered = state.disk.ordered
        state.told = tuple(h for h in state.told if key_of(h) not in ordered)
        kept, told = _entries(actions, PersistQueue), _entries(actions, TellOrdered)
        if told != kept:
            violated(f"I7: {name} tells clients {told}, its queue has {kept}")
        self._judge.check(state.disk, state.master)
        return sent

    def _carry_out(self, name: str, state: NodeState, action: Action, sent: list[Sent]) -> None:
        match action:
            case SendPost():
                epoch, counter = state.posted
                if action.post.epoch < epoch:
                    violated(f"I11: {name} posts in {action.post.epoch}, after {epoch}")
                check_post(state.disk, action.post, counter if action.post.epoch == epoch else -1)
                state.posted = (action.post.epoch, action.post.counter)
                sent.append(Sent(name, action.peer, PostReceived(post=_ranked(action.post))))
            case FetchPayload():
                sent.append(Sent("", name, None, action.header, action.sources))
            case TellAcquired():
                state.told = (*state.told, action.header)
            case Alarm():
                violated(f"{name}: {action.text}")
            case TellRejected():
                violated(f"{name} refuses a submit: {action.text}")
            case TellPhase():
                if action.phase == "FAULT":
                    violated(f"{name} halts: {action.reason}")
            case _:
                letter = state.disk.letter_of(action, self.configs[name], len(state.disk.queue))
                if letter is not None:
                    sent.append(Sent(name, *letter))

    def _intern(self, name: str, state: NodeState) -> int:
        key = (name, state.key())
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.facts)
            self.facts.append(self._facts_of(name, state))
        return number

    def _facts_of(self, name: str, state: NodeState) -> Facts:
        master, disk = state.master, state.disk
        held = {**disk.ordered, **disk.incoming}
        holds = frozenset((key, header.digest) for key, header in held.items())
        is_member = name in master.view.members
        seen = (name, tuple(disk.queue), disk.view, master._decided, is_member, state.told, holds)
        return Facts(
            name=name,
            blob=self._freeze(state),
            disk=disk,
            decided=master._decided,
            is_member=is_member,
            phase=master.phase,
            told=state.told,
            may_submit=master.phase in TAKES_SUBMITS and state.submitted < len(self._submits[name]),
            may_propose=is_member and master.phase in PROPOSES,
            now=state.now,
            checked=self._classes.setdefault(describe(seen, 0), len(self._classes)),
        )

    # -- copies ------------------------------------------------------------------------------------

    def _freeze(self, state: NodeState) -> bytes:
        stream = io.BytesIO()
        pickler = pickle.Pickler(stream, protocol=5)
        pickler.dispatch_table = self._pickling
        pickler.dump(state)
        return stream.getvalue()

    def _reduce_disk(self, disk: CoreDisk) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        fields = {name: value for name, value in vars(disk).items() if name != "_facts"}
        return _disk, (id(self), fields)


def _entries(actions: Iterable[Action], kind: type[PersistQueue | TellOrdered]) -> list[QueueEntry]:
    return [entry for action in actions if isinstance(action, kind) for entry in action.entries]


def _counts(sent: Sent) -> bool:
    """Leave out answers to probes: they only feed suspicion, which decides nothing here."""
    event = sent.event
    return not (isinstance(event, EpochMessageReceived) and isinstance(event.message, ProbeAnswer))


def _ranked(post: Post) -> Post:
    """Number a post by what it says, which only grows in a node's life, instead of by counting.

    So the order of posts is kept and posts that say the same are one, however many went before.
    """
    said = (*post.known.values(), *post.acquired.values())
    rank = post.counter + post.last_seq + post.base.position + sum(said)
    return replace(post, round=1_000 * post.epoch + rank)


#: Payloads of each exploration: all states share them.
_DISKS: dict[int, dict[bytes, RunFacts]] = {}


def _disk(owner: int, fields: dict[str, Any]) -> CoreDisk:
    disk = CoreDisk.__new__(CoreDisk)
    vars(disk).update(fields)
    disk._facts = _DISKS[owner]
    return disk


def _recovered(config: MasterConfig, disk: CoreDisk) -> RecoveredState:
    # No id comes twice here: what is older than the window is never asked.
    return replace(disk.load(config.id_window), older_ids=NoOlderIds())


def _reduce_window(window: IdWindow) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    count = min(window.end - window.first + 1, window.size)
    first = window.end - count + 1
    ids = b"".join(
        int(array[position % window._capacity]).to_bytes(8, "little")
        for position in range(first, window.end + 1)
        for array in (window._a_view, window._b_view)
    )
    return _window, (window.size, window._capacity - window.size, first, ids)


def _window(size: int, max_run: int, first: int, ids: bytes) -> IdWindow:
    window = IdWindow(size, max_run)
    window.end, window.first = first - 1, first
    window.add(ids)
    return window
