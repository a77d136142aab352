"""All states that a configuration can reach, breadth first.

A state is a tuple of numbers: one for each node's state, what is left of the bounds, and a bit for
every message that was ever sent.  What was sent may arrive at any time, any number of times, or
never: so every loss, duplication and reordering is covered, and needs no step of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from time import perf_counter

from tests.verification.exploration.canonical import describe
from tests.verification.exploration.checks import check
from tests.verification.exploration.configurations import Configuration
from tests.verification.exploration.demanded import DemandedMaster
from tests.verification.exploration.labels import label
from tests.verification.exploration.nodes import (
    CRASH,
    HURRY,
    PROPOSE,
    SUBMIT,
    TICK,
    Nodes,
    Outcome,
)

from sparktxlog.errors import InvariantViolation
from sparktxlog.protocol.messages.events import Event, PayloadArrived, PostReceived
from sparktxlog.protocol.messages.posts import RunHeader

#: (state of each node …, ballots and crashes left, messages)
State = tuple[int, ...]

_BALLOT, _CRASH = 1, 1 << 8


@dataclass(frozen=True, slots=True)
class Message:
    """Something on its way to a node."""

    sender: str
    receiver: str
    event: Event | None
    #: A payload nobody held when it was asked for.
    wanted: RunHeader | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A step from one state to another."""

    node: int
    #: Message number, or one of the node's own steps.
    code: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What a step of one node leads to, its messages numbered."""

    state: int
    #: Bits of what it sends; `posts` apart, as they may replace others.
    sent: int
    posts: tuple[int, ...]
    #: Payloads to fetch.
    wanted: tuple[Message, ...]


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
        #: Per node: bits of the messages to it.
        self._to = [0] * len(self.names)
        #: Bits of the posts of one link, and the link of a post.
        self._posts: dict[str, int] = {}
        self._link: dict[int, str] = {}
        self._wanted = 0
        self._effects: dict[tuple[int, int], Effect] = {}
        #: Per state of a node: bits of the messages that do nothing to it.
        self._idle: list[int] = []
        self._checked: set[tuple[int, ...]] = set()
        #: Step that is being taken.
        self.last = Step(0, 0)

    # -- states ------------------------------------------------------------------------------------

    def begin(self) -> State:
        """Return the state in which all nodes have just started."""
        own, network = [-1] * len(self.names), 0
        for index, name in enumerate(self.names):
            effect = self._effect_of(self.nodes.start(name))
            own[index] = effect.state
            network = self._send(own, network, effect)
        self._check(own)
        bounds = self.configuration
        return (*own, bounds.ballots * _BALLOT + bounds.crashes * _CRASH, network)

    def successors(self, state: State) -> Iterator[State]:
        """Yield the states behind all possible steps, other than this one; see `last`.

        Raises:
            InvariantViolation: The step `last` breaks an invariant.
        """
        for index, code, left in self._steps(state):
            after = self._take(state, index, code, left)
            if after is not None:
                yield after

    def follow(self, state: State, name: str) -> tuple[str, State]:
        """Take the step of that name (see `label`); return it in words, and the state behind it.

        Raises:
            KeyError: There is no such step here.
            InvariantViolation: It breaks an invariant; `last` is the step.
        """
        for index, code, left in self._steps(state):
            words = label(self, Step(index, code))
            if words.split(" ", 1)[0] == name:
                return words, self._take(state, index, code, left) or state
        raise KeyError(name)

    def _steps(self, state: State) -> Iterator[tuple[int, int, int]]:
        """Yield node, code and what is left of the bounds for every step that may do something."""
        size, idle = len(self.names), self._idle
        left, network = state[size], state[size + 1]
        for index in range(size):
            number = state[index]
            pending = network & self._to[index]
            if number < len(idle):
                pending &= ~idle[number]
            while pending:
                bit = pending & -pending
                pending ^= bit
                code = bit.bit_length() - 1
                if not bit & self._wanted or self._found(state, self.messages[code]):
                    yield index, code, left
            for code, rest in self._own_steps(number, left):
                yield index, code, rest

    def _own_steps(self, number: int, left: int) -> Iterator[tuple[int, int]]:
        """Yield what a node may do by itself, and what is left of the bounds then."""
        bounds, node = self.configuration, self.nodes.facts[number]
        if node.may_submit:
            yield SUBMIT, left
        if node.now < bounds.ticks:
            yield TICK, left
        if left >= _CRASH and node.name not in bounds.witnesses:
            yield CRASH, left - _CRASH
        if left % _CRASH and node.may_propose and node.name in bounds.proposers:
            yield PROPOSE, left - _BALLOT
            if len(bounds.masters) > 1:
                yield HURRY, left - _BALLOT

    def _take(self, state: State, index: int, code: int, left: int) -> State | None:
        """Return the state behind a step, None if it is the same."""
        self.last = Step(index, code)
        size, number = len(self.names), state[index]
        network = state[size + 1]
        effect = self._effects.get((number, code))
        if effect is None:
            effect = self._effect(number, code)
        if effect.state == number and left == state[size]:
            if not (effect.posts or effect.sent or effect.wanted):
                self._note_idle(number, code)
                return None
            own = state[:size]
        else:
            own = (*state[:index], effect.state, *state[index + 1 : size])
            self._check(own)
        if effect.posts or effect.wanted:
            network = self._send(own, network, effect)
        else:
            network |= effect.sent
        after = (*own, left, network)
        return None if after == state else after

    def _note_idle(self, number: int, code: int) -> None:
        idle = self._idle
        idle.extend([0] * (number + 1 - len(idle)))
        idle[number] |= 1 << code

    def _effect(self, number: int, code: int) -> Effect:
        event = None
        if code >= 0:
            message = self.messages[code]
            event = message.event or self._payload(message)
        effect = self._effect_of(self.nodes.step(number, code, event))
        self._effects[number, code] = effect
        return effect

    def _effect_of(self, outcome: Outcome) -> Effect:
        bits, posts, wanted = 0, [], []
        for sent in outcome.sent:
            message = Message(sent.sender, sent.receiver, sent.event, sent.wanted, sent.sources)
            if sent.wanted is not None:
                wanted.append(message)
            elif isinstance(sent.event, PostReceived):
                posts.append(self._number(message))
            else:
                bits |= 1 << self._number(message)
        return Effect(outcome.state, bits, tuple(posts), tuple(wanted))

    def _check(self, own: State | list[int]) -> None:
        facts = [self.nodes.facts[number] for number in own]
        seen = tuple([node.checked for node in facts])
        if seen not in self._checked:
            check(facts, self.configuration.first_quorum)
            self._checked.add(seen)

    # -- network -----------------------------------------------------------------------------------

    def _send(self, own: State | list[int], network: int, effect: Effect) -> int:
        """Put on its way what a step sends."""
        network |= effect.sent
        for number in effect.posts:
            if self.configuration.newest:
                network &= ~self._posts[self._link[number]]
            network |= 1 << number
        for message in effect.wanted:
            if self._found(own, message):
                # On its way from now on, whatever becomes of the source.
                message = Message("", message.receiver, self._payload(message))
            network |= 1 << self._number(message)
        return network

    def _number(self, message: Message) -> int:
        event = message.event
        key = (
            message.sender,
            message.receiver,
            type(event),
            type(getattr(event, "message", None)),
            describe(event, 0),
            describe(message.wanted, 0),
            message.sources,
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.messages)
            self.messages.append(message)
            bit = 1 << number
            self._to[self._index[message.receiver]] |= bit
            if message.wanted is not None:
                self._wanted |= bit
            if isinstance(event, PostReceived):
                link = self._link[number] = f"{message.sender} {message.receiver}"
                self._posts[link] = self._posts.get(link, 0) | bit
        return number

    def _found(self, own: State | list[int], message: Message) -> bool:
        """Return whether a source holds the payload."""
        assert message.wanted is not None
        held_by = [own[self._index[source]] for source in message.sources]
        return any(at >= 0 and self.nodes.facts[at].disk.holds(message.wanted) for at in held_by)

    def _payload(self, message: Message) -> Event:
        assert message.wanted is not None
        facts = self.nodes.payloads[message.wanted.digest]
        return PayloadArrived(header=message.wanted, facts=facts)


@dataclass(slots=True)
class Exploration:
    """What was found."""

    configuration: str
    states: int = 0
    depth: int = 0
    #: Steps that lead to another state.
    transitions: int = 0
    node_states: int = 0
    messages: int = 0
    complete: bool = False
    seconds: float = 0.0
    violation: str = ""
    #: Shortest way to the violation, in words, each step with its name in front.
    trace: tuple[str, ...] = ()
    #: States without a next one.
    ends: int = 0
    #: States that were run on, and healed.
    healed: int = 0
    #: Highest epoch that was reached.
    epochs: int = 1


def explore(
    space: Space,
    *,
    limit: int,
    progress: Callable[[Exploration], None] | None = None,
    visit: Callable[[int, State, bool], bool] | None = None,
) -> Exploration:
    """Walk through the states, breadth first, until all are known or a violation is found.

    Args:
        limit: States to look at.
        progress: Called after every level.
        visit: Called with each state, its number, and whether it is one without a next one; True =
            the state was run on, and healed.
    """
    found = Exploration(space.configuration.name)
    started = perf_counter()
    walk = _Walk(space, limit)
    while walk.level and not found.complete:
        number = -1
        try:
            for number, state in walk.level:
                is_end = not walk.expand(number, state)
                found.ends += is_end
                found.healed += visit is not None and visit(number, state, is_end)
                if len(walk.known) >= limit:
                    break
            else:
                found.complete = not walk.following
        except (InvariantViolation, AssertionError) as error:
            found.violation = f"{type(error).__name__}: {error}"
            last = () if str(error).startswith("[invariant] I8") else (label(space, space.last),)
            found.trace = (*walk.way(number), *last)
        found.depth += bool(walk.following or found.violation)
        found.states, found.transitions = len(walk.known), walk.transitions
        found.node_states, found.messages = len(space.nodes.facts), len(space.messages)
        found.seconds = perf_counter() - started
        if progress is not None:
            progress(found)
        if found.violation or len(walk.known) >= limit:
            break
        walk.level, walk.following = walk.following, []
    found.epochs = max((n.disk.view.epoch for n in space.nodes.facts if n.disk.view), default=1)
    return found


class _Walk:
    """States known so far, and how each was reached first."""

    def __init__(self, space: Space, limit: int) -> None:
        self._space = space
        self._limit = limit
        first = space.begin()
        self.known: set[State] = {first}
        self.level = [(0, first)]
        self.following: list[tuple[int, State]] = []
        self.transitions = 0
        self._parents = array("q", [-1])
        self._taken = array("q", [0])

    def expand(self, number: int, state: State) -> bool:
        """Find the states behind one; return whether there are any."""
        space, known = self._space, self.known
        count = 0
        for after in space.successors(state):
            count += 1
            if after not in known:
                known.add(after)
                self.following.append((len(self._parents), after))
                self._parents.append(number)
                self._taken.append(space.last.node << 32 | (space.last.code + 16))
        self.transitions += count
        return count > 0

    def way(self, number: int) -> tuple[str, ...]:
        """Return the steps to a state in words."""
        steps = []
        while number > 0:
            taken = self._taken[number]
            steps.append(label(self._space, Step(taken >> 32, (taken & 0xFFFFFFFF) - 16)))
            number = self._parents[number]
        return tuple(reversed(steps))
