"""All states that a configuration can reach, breadth first.

A state is a tuple of numbers: one for each node's state, the bounds that are left, and the
messages on their way, sorted.  A message that is never delivered is a lost one, so loss needs no
step of its own.  Of identical messages on their way one counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from time import perf_counter

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.events import EpochMessageReceived, Event, PayloadArrived, PostReceived
from sparktxlog.protocol.messages import RunHeader
from sparktxlog.testing.exploration.canonical import describe
from sparktxlog.testing.exploration.checks import check
from sparktxlog.testing.exploration.configurations import Configuration
from sparktxlog.testing.exploration.demanded import DemandedMaster
from sparktxlog.testing.exploration.labels import label
from sparktxlog.testing.exploration.nodes import CRASH, HURRY, PROPOSE, SUBMIT, TICK, Nodes, Outcome
from sparktxlog.testing.simulation.disk import key_of

State = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Something on its way to a node."""

    sender: str
    receiver: str
    event: Event | None
    #: A payload nobody held when it was asked for.
    wanted: RunHeader | None = None
    sources: tuple[str, ...] = ()

    @property
    def is_post(self) -> bool:
        """Whether it is a post."""
        return isinstance(self.event, PostReceived)


@dataclass(frozen=True, slots=True)
class Step:
    """A step from one state to another."""

    node: int
    #: Message number, or one of the node's own steps.
    code: int
    #: The message stays on its way.
    again: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step of one node leads to, its messages numbered."""

    state: int
    posts: State
    others: State
    #: Payloads to fetch.
    wanted: tuple[Message, ...]

    @property
    def is_sending(self) -> bool:
        """Whether anything is sent."""
        return bool(self.posts or self.others or self.wanted)


@dataclass(slots=True)
class Exploration:
    """What was found."""

    configuration: str
    states: int = 0
    depth: int = 0
    transitions: int = 0
    node_states: int = 0
    messages: int = 0
    complete: bool = False
    seconds: float = 0.0
    violation: str = ""
    #: Shortest way to the violation, and what replays it.
    trace: tuple[str, ...] = ()
    #: States without a next one.
    ends: int = 0
    healed: int = 0
    #: Highest epoch that was reached, and states in which a node is in a later one.
    epochs: int = 1


class Space:
    """The states of one configuration."""

    def __init__(
        self, configuration: Configuration, master_class: type[DemandedMaster] = DemandedMaster
    ) -> None:
        self.configuration = configuration
        configs = configuration.configs()
        self.names = tuple(configs)
        self._index = {name: index for index, name in enumerate(self.names)}
        self.nodes = Nodes(configs, configuration.submits, master_class)
        self.messages: list[Message] = []
        self._numbers: dict[Hashable, int] = {}
        self._checked: set[State] = set()
        self._receiver: list[int] = []
        #: Of posts: sender and receiver.
        self._links: list[str] = []
        self._effects: dict[tuple[int, int], Effect] = {}
        #: (state of a node, message) → whether it would change nothing.
        self._idle: dict[tuple[int, int], bool] = {}

    # -- states ------------------------------------------------------------------------------------

    def begin(self) -> State:
        """Return the state in which all nodes have just started."""
        size, bounds = len(self.names), self.configuration
        left = (bounds.ballots, bounds.crashes, bounds.duplicates)
        state: State = (*(-1 for _ in self.names), *left)
        for index, name in enumerate(self.names):
            outcome = self.nodes.start(name)
            state = (*state[:index], outcome.state, *state[index + 1 :])
            sent = self._send(state, state[size + 3 :], self._effect_of(outcome))
            state = (*state[: size + 3], *sent)
        self._check(state[:size])
        return state

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the steps that are possible."""
        size, bounds, facts = len(self.names), self.configuration, self.nodes.facts
        ballots, crashes, duplicates = state[size : size + 3]
        for number in state[size + 3 :]:
            message = self.messages[number]
            if message.wanted is None or self._found(state, message):
                receiver = self._receiver[number]
                yield Step(receiver, number)
                if duplicates:
                    yield Step(receiver, number, again=True)
        for index in range(size):
            node = facts[state[index]]
            if node.may_submit:
                yield Step(index, SUBMIT)
            if node.now < bounds.ticks:
                yield Step(index, TICK)
            if crashes and node.name not in bounds.witnesses:
                yield Step(index, CRASH)
            if ballots and node.may_propose and node.name in bounds.proposers:
                yield Step(index, PROPOSE)
                yield Step(index, HURRY)

    def take(self, state: State, step: Step) -> State:
        """Return the state that a step leads to.

        Raises:
            InvariantViolation: It breaks an invariant.
        """
        size, index, code = len(self.names), step.node, step.code
        ballots, crashes, duplicates = state[size : size + 3]
        network = state[size + 3 :]
        event = None
        if code >= 0:
            message = self.messages[code]
            event = message.event or self._payload(message)
            if step.again:
                duplicates -= 1
            elif not self.configuration.again or message.event is None:
                place = network.index(code)
                network = network[:place] + network[place + 1 :]
        elif code == CRASH:
            crashes -= 1
        elif code in (PROPOSE, HURRY):
            ballots -= 1
        effect = self._effects.get((state[index], code))
        if effect is None:
            effect = self._effects[state[index], code] = self._effect(state[index], code, event)
        own = (*state[:index], effect.state, *state[index + 1 : size])
        if effect.is_sending:
            network = self._send(own, network, effect)
        if self.configuration.absorb:
            network = self._absorb(own, network)
        found = (*own, ballots, crashes, duplicates, *network)
        if effect.state != state[index]:
            self._check(own)
        return found

    def _effect(self, number: int, code: int, event: Event | None) -> Effect:
        return self._effect_of(self.nodes.step(number, code, event))

    def _effect_of(self, outcome: Outcome) -> Effect:
        posts, others, wanted = [], [], []
        for sent in outcome.sent:
            message = Message(sent.sender, sent.receiver, sent.event, sent.wanted, sent.sources)
            if message.is_post:
                posts.append(self._number(message))
            elif sent.wanted is not None:
                wanted.append(message)
            else:
                others.append(self._number(message))
        return Effect(outcome.state, tuple(posts), tuple(others), tuple(wanted))

    def _check(self, own: State) -> None:
        if own not in self._checked:
            check([self.nodes.facts[number] for number in own], self.configuration.first_quorum)
            self._checked.add(own)

    # -- network -----------------------------------------------------------------------------------

    def _send(self, own: State, network: State, effect: Effect) -> State:
        """Put on its way what a step sends."""
        found = set(network)
        found.update(effect.others)
        for number in effect.posts:
            if self.configuration.newest:
                link = self._links[number]
                found.difference_update([n for n in found if self._links[n] == link])
            found.add(number)
        for message in effect.wanted:
            if self._found(own, message):
                # On its way from now on, whatever becomes of the source.
                event = self._payload(message)
                message = Message("", message.receiver, event)
            found.add(self._number(message))
        return tuple(sorted(found))

    def _number(self, message: Message) -> int:
        event = message.event
        key = (
            message.sender, message.receiver, type(event), type(getattr(event, "message", None)),
            describe(event, 0), describe(message.wanted, 0), message.sources,
        )  # fmt: skip
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.messages)
            self.messages.append(message)
            self._receiver.append(self._index[message.receiver])
            link = f"{message.sender} {message.receiver}" if message.is_post else ""
            self._links.append(link)
        return number

    def _absorb(self, own: State, network: State) -> State:
        """Take posts and payloads as lost that would change nothing."""
        receivers, idle = self._receiver, self._idle
        kept = []
        for number in network:
            run = (own[receivers[number]], number)
            useless = idle.get(run)
            if useless is None:
                useless = idle[run] = self._changes_nothing(*run)
            if not useless:
                kept.append(number)
        return tuple(kept) if len(kept) < len(network) else network

    def _changes_nothing(self, state: int, number: int) -> bool:
        message = self.messages[number]
        if message.event is None or isinstance(message.event, EpochMessageReceived):
            return False
        outcome = self.nodes.step(state, number, message.event)
        return outcome.state == state and not outcome.sent

    def _found(self, state: State, message: Message) -> bool:
        """Return whether a source holds the payload."""
        assert message.wanted is not None
        run = (key_of(message.wanted), message.wanted.digest)
        facts = self.nodes.facts
        return any(
            state[self._index[source]] >= 0 and run in facts[state[self._index[source]]].holds
            for source in message.sources
        )

    def _payload(self, message: Message) -> Event:
        assert message.wanted is not None
        facts = self.nodes.payloads[message.wanted.digest]
        return PayloadArrived(header=message.wanted, facts=facts)

    # -- words -------------------------------------------------------------------------------------

    def label(self, step: Step) -> str:
        """Return a step in words that say all of it."""
        return label(self, step)


def explore(
    space: Space,
    *,
    limit: int,
    progress: Callable[[Exploration], None] | None = None,
    at_end: Callable[[State], None] | None = None,
) -> Exploration:
    """Walk through the states, breadth first, until all are known or a violation is found.

    Args:
        limit: States to look at.
        progress: Called now and then.
        at_end: Called with states that have no next one.
    """
    found = Exploration(space.configuration.name)
    started = perf_counter()
    first = space.begin()
    known: dict[bytes, int] = {_packed(first): 0}
    parents, taken = array("q", [-1]), [Step(0, 0)]
    level, numbers = [first], [0]
    while level and not found.violation:
        following: list[State] = []
        following_numbers: list[int] = []
        for state, number in zip(level, numbers, strict=True):
            is_end = True
            for step in space.steps(state):
                is_end = False
                try:
                    after = space.take(state, step)
                except (InvariantViolation, AssertionError) as error:
                    found.violation = f"{type(error).__name__}: {error}"
                    found.trace = (*_way(space, number, parents, taken), space.label(step))
                    break
                found.transitions += 1
                key = _packed(after)
                if key not in known:
                    known[key] = len(parents)
                    parents.append(number)
                    taken.append(step)
                    following.append(after)
                    following_numbers.append(len(parents) - 1)
            if found.violation or len(parents) >= limit:
                break
            if is_end:
                found.ends += 1
                if at_end is not None:
                    at_end(state)
        else:
            found.complete = not following
        found.depth += bool(following) or bool(found.violation)
        found.states, found.seconds = len(parents), perf_counter() - started
        found.node_states, found.messages = len(space.nodes.facts), len(space.messages)
        if progress is not None:
            progress(found)
        if len(parents) >= limit and not found.complete:
            break
        level, numbers = following, following_numbers
    found.epochs = max((f.view.epoch for f in space.nodes.facts if f.view), default=1)
    return found


def _packed(state: State) -> bytes:
    return array("I", state).tobytes()


def _way(space: Space, number: int, parents: array[int], taken: list[Step]) -> tuple[str, ...]:
    steps = []
    while number > 0:
        steps.append(space.label(taken[number]))
        number = parents[number]
    return tuple(reversed(steps))
